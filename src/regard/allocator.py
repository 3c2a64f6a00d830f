"""The allocator of the C library, set so that large blocks are used again.

As it comes, glibc asks the kernel for every large block anew and gives it back at once, so that each tensor of some
megabytes is paid for twice: its pages are cleared and mapped when it is first written. Long inputs then cost more than
their length says. What is kept here instead is what was needed at once before.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # numbers of malloc.h


def keep_large_blocks() -> bool:
    """Says whether anything was set: only glibc, on Linux, has these settings."""
    change = _known("mallopt")
    return change is not None and bool(change(_MMAP_MAX, 0) and change(_TRIM_THRESHOLD, 2**31 - 1))


def give_back() -> bool:
    """Returns to the kernel what is free between blocks in use, once, where nothing of that size is needed soon: holes in
    which no block fits exactly, because it has to be aligned, would stay. Says whether there were any."""
    trim = _known("malloc_trim")
    return trim is not None and bool(trim(0))


def _known(name: str) -> Callable[..., int] | None:
    """A function of the C library, if this one has it."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found
