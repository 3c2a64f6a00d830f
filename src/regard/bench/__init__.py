"""Benchmarks: the same weights, shapes and data for all, in one run, taking turns."""
