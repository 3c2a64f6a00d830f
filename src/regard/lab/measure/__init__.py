"""Measuring what a computation costs: operations, bytes, seconds, and how they grow."""
