"""The allocator of the C library, set so that large blocks are used again.

As it comes, glibc asks the kernel for every large block anew and gives it back at once, so that each tensor of some
megabytes is paid for twice: its pages are cleared and mapped when it is first written. Long inputs then cost more than
their length says. What is kept here instead is what was needed at once before.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # numbers of malloc.h


def keep_large_blocks() -> bool:
    """Says whether anything was set: only glibc, on Linux, has these settings."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(change(_MMAP_MAX, 0) and change(_TRIM_THRESHOLD, 2**31 - 1))
