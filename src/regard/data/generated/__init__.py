"""Generated data: the built-in language, algorithmic tasks, ListOps, stories."""
