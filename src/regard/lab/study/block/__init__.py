"""Studies of the block: feed-forward network, residual connections, norms."""
