"""Positional encodings: at the input, inside attention, or with parameters in each layer."""
