"""Triton kernels, and the functions that launch them.

Each is compared with its definition in PyTorch by `tests/equal/test_kernels.py` and
`tests/training/test_loss.py`, on a GPU or in Triton's interpreter.

Names inside kernels: capitals are compile-time constants or sizes; B.. is the size of a block.
"""
