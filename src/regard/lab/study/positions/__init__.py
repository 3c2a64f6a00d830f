"""Studies of positions: sinusoids, learned embeddings, lengths beyond training."""
