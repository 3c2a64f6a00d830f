"""The parts: modules and functions that take plain arguments, for all families."""
