"""Below the models: errors, files that cannot tear, checkpoints, memory, processes."""
