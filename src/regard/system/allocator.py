"""Settings of glibc's malloc, so that large blocks are reused instead of mapped anew.

By default glibc takes every large block from the kernel with mmap and returns it as soon as it is
freed. Each tensor of some megabytes is then paid for twice: its pages are zeroed and mapped again
on first write. With these settings freed blocks stay in the heap, whose size is the peak of what
was in use at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

# Parameter numbers of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER_TRIM = 2**31 - 1


def keep_large_blocks() -> bool:
    """Turns off mmap and trimming in malloc; returns whether both settings took effect.

    Only glibc, on Linux, has these settings.
    """
    mallopt = _libc_function("mallopt")
    if mallopt is None:
        return False
    # mallopt returns 1 on success and 0 on error.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM))


def give_back() -> bool:
    """Calls malloc_trim(3): returns free heap memory to the kernel, once.

    For moments after which no block of that size is needed soon. Without it, holes between live
    blocks stay reserved. Returns whether any memory was released.
    """
    malloc_trim = _libc_function("malloc_trim")
    return malloc_trim is not None and bool(malloc_trim(0))


def _libc_function(name: str) -> Callable[..., int] | None:
    """A function of the C library, or None where it is missing (musl, macOS, Windows)."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function
