"""Benchmarks: speed and memory, measured next to other libraries in one run."""
