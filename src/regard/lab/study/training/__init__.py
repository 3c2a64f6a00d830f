"""Studies of training: warm-up, label smoothing, teacher forcing, memory, depth."""
