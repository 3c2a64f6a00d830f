"""One turn of a search, again and again. On a GPU it is recorded once and then replayed: the device need not be told.

A recording is kept with the tensors it works on. The next search of the same shape by the same model copies what it begins
with into them and is replayed from its first turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

CHECKED = 16  # turns between two looks at who has finished, where looking means waiting for the device
KEPT = 4  # recordings of a model, which hold on to their memory
Going = TypeVar("Going")


def recordable(device: torch.device) -> bool:
    """Whether turns are better recorded, for which every one of them must be like the others."""
    return device.type == "cuda"


def room(steps: int, device: torch.device) -> int:
    """How many steps are made room for: on a GPU a round number, so that searches have few shapes."""
    return -(-steps // 64) * 64 if recordable(device) else steps


class Recording(Generic[Going]):
    def __init__(self, graph: torch.cuda.CUDAGraph, going: Going) -> None:
        self.graph, self.going = graph, going


_KEPT: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, Recording[Any]]] = WeakKeyDictionary()


class Turns(Generic[Going]):
    """`turn` must do the same each time to the tensors of what it is given, and leave its results in them. `going` is that:
    where a recording is found, the one that it works on."""

    def __init__(
        self, turn: Callable[[Going], None], going: Going, *, record: bool, model: nn.Module, said: Hashable = None
    ) -> None:
        """`said` is what a turn depends on besides tensors."""
        self.turn, self.model, self.said = turn, model, said
        self.record = record and torch.cuda.is_available()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.begin(going)

    def begin(self, going: Going) -> None:
        """From now on with other tensors."""
        self.going, self.graph, self.warm = going, None, False
        if not self.record:
            return
        own, key = list(tensors(going)), self._key(going)
        kept = _KEPT.setdefault(self.model, OrderedDict())
        known = kept.get(key)
        if known is not None:
            kept.move_to_end(key)
            torch._foreach_copy_(list(tensors(known.going)), own)
            self.going, self.graph = known.going, known.graph

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.record and self.warm:  # the first one makes ready what a recording must find ready
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.turn(self.going)
            self.graph.replay()
            kept = _KEPT.setdefault(self.model, OrderedDict())
            kept[self._key(self.going)] = Recording(self.graph, self.going)
            while len(kept) > KEPT:
                kept.popitem(last=False)
        else:
            self.turn(self.going)
            self.warm = True

    def _key(self, going: Going) -> Hashable:
        """What two searches must share to share a recording: where the weights lie, and the shapes of all that changes."""
        weights = tuple(x.data_ptr() for x in _held(self.model))
        return self.said, weights, tuple((x.shape, x.stride(), x.dtype, x.device) for x in tensors(going))


def _held(part: nn.Module) -> Iterator[Tensor]:
    """All parameters and buffers, as often as they occur; PyTorch's own walks make a name of each."""
    for own in (part._parameters, part._buffers):
        yield from (x for x in own.values() if x is not None)
    for inner in part._modules.values():
        if inner is not None:
            yield from _held(inner)


def tensors(x: Any) -> Iterator[Tensor]:
    """All that a structure of dataclasses and sequences holds, each once, in a fixed order."""
    seen: set[int] = set()

    def walk(x: Any) -> Iterator[Tensor]:
        if isinstance(x, Tensor):
            if id(x) not in seen:
                seen.add(id(x))
                yield x
        elif is_dataclass(x):
            for field in fields(x):
                yield from walk(getattr(x, field.name))
        elif isinstance(x, (list, tuple)):
            for part in x:
                yield from walk(part)

    yield from walk(x)
