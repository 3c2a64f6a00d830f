"""A model on one page: its stations top to bottom, with shapes and parameters."""
