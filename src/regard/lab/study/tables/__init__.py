"""The tables of the paper, measured on small models."""
