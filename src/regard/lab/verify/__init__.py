"""The invariants of a model, checked on random inputs: two ways, one answer."""
