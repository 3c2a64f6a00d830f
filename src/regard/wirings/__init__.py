"""How front ends, stacks and heads are wired into a model, one file a wiring."""
