"""Studies of attention: scores, heads, look-up, projections."""
