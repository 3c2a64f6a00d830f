"""Comparisons of models as experiments: equal data, parameters and budget."""
