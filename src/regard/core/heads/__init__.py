"""Heads: from hidden states to logits, labels, vectors, forecasts and pixels."""
