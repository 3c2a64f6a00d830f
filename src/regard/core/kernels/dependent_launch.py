"""Programmatic dependent launch (PDL): a kernel begins before the kernel before it has ended.

A kernel launched so may read what no earlier kernel of this step writes, its weights for example,
and then waits for the kernel before it. Every kernel waits: so each of them, once it has waited,
comes after all that were launched before. What it reads before the wait must have been in memory
before the first ordinary kernel of the step.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language import constexpr


@cache
def supports_pdl(device: torch.device) -> bool:
    """Whether this device can launch kernels so: NVIDIA GPUs from Hopper on."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def launch_next(PDL: constexpr):
    """Lets the kernel after this one begin at once."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: constexpr):
    """Waits for the kernel before; then the one after may begin, if it was not let to before."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
