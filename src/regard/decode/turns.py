"""One turn of a search, again and again. On a GPU it is recorded once and then replayed: the device need not be told."""

from __future__ import annotations

from collections.abc import Callable

import torch

CHECKED = 16  # turns between two looks at who has finished, where looking means waiting for the device


def recordable(device: torch.device) -> bool:
    """Whether turns are better recorded, for which every one of them must be like the others."""
    return device.type == "cuda"


class Turns:
    """`turn` must do the same on the same tensors each time, and leave its results in them."""

    def __init__(self, turn: Callable[[], None], *, record: bool) -> None:
        self.turn = turn
        self.record = record and torch.cuda.is_available()
        self.done = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.record and self.done:  # the first one makes ready what a recording must find ready
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.turn()
            self.graph.replay()
        else:
            self.turn()
        self.done += 1
