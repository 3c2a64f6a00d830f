"""Variants of the stack: reversible, universal, staged, with a convolution."""
