"""Front ends: from tokens, patches, frames, samples or nodes to hidden states."""
