"""From what people pass to tensors: checks, warnings, batches."""
