"""Corpora in, batches out."""
