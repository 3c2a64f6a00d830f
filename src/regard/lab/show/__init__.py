"""A model on one page: its modules top to bottom, with shapes and parameter counts."""
