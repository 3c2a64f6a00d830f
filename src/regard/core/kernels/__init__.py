"""Triton kernels. Each is compared with its definition in Triton's interpreter."""
