"""The planner: what a model costs to train, in parameters, FLOPs, memory, time and money."""
