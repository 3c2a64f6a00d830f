"""Capturing into a CUDA graph, in a process that may hold other graphs and other threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Held while a graph is captured, and by a thread that calls CUDA beside the one that captures.
CAPTURING = threading.RLock()


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Captures what is launched inside into `graph`; its memory is that of `pool`, if given.

    No garbage is collected meanwhile. A model that was used before may be garbage and own graphs:
    to destroy one of them would invalidate the capture, at any moment that Python chooses.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # thread_local: threads that are not ours may call CUDA meanwhile.
        mode = "thread_local"
        with CAPTURING, torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
            yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def on_capture_stream() -> Iterator[None]:
    """What is launched inside comes before and after what is launched around it, but on the stream
    of captures.

    Autograd adds up the gradient of a parameter on the stream on which the parameter was first
    used. Where a graph of autograd outlives its step, that must not be the default stream: the
    backward pass of a capture would wait for it, which invalidates the capture.
    """
    around = torch.cuda.current_stream()
    if torch.cuda.graph.default_capture_stream is None:
        torch.cuda.graph.default_capture_stream = torch.cuda.Stream()
    stream = torch.cuda.graph.default_capture_stream
    stream.wait_stream(around)
    with torch.cuda.stream(stream):
        yield
    around.wait_stream(stream)
