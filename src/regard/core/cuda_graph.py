"""Capturing into a CUDA graph, in a process that may hold other graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Captures what is launched inside into `graph`; its memory is that of `pool`, if given.

    No garbage is collected meanwhile. A model that was used before may be garbage and own graphs:
    to destroy one of them would invalidate the capture, at any moment that Python chooses.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # thread_local: a thread that prefetches may pin memory, a call of CUDA, meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        if was_enabled:
            gc.enable()
