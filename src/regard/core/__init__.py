"""The parts: modules and functions that take plain arguments and know no family."""
