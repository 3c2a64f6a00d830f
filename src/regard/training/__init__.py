"""Training: a recipe becomes a run folder."""
