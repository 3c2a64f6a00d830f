"""Studies of what happens inside: circuits, units, head roles, ambiguity."""
