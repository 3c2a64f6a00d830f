"""Attention kernels as parts: softmax, linear, Linformer, LSH, chunked, and their variants."""
