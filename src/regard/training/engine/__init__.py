"""The training engine: one loop for every objective."""
