"""Tokenizers: learn, load, save."""
