"""Hyperparameter search over training runs: the settings that matter, within a budget."""
