"""Encoder–decoders of text."""
