"""Decoding: a start, a step, and a way to choose; the search knows nothing of what is inside the model."""
