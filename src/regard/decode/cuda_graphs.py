"""One turn of a search, again and again. On a GPU it is recorded once and then replayed: the device need not be told.

A recording is kept with the tensors it works on. The next search of the same shape by the same model copies what it begins
with into them and is replayed from its first turn.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

CHECKED = (
    16  # turns between two looks at who has finished, where looking means waiting for the device
)
EARLY = 4  # turns by which it is asked for before
KEPT = 4  # recordings of a model, which hold on to their memory
_ONE = threading.RLock()
Given = TypeVar("Given")
Going = TypeVar("Going")


def recordable(device: torch.device) -> bool:
    """Whether turns are better recorded, for which every one of them must be like the others."""
    return device.type == "cuda"


def alone(device: torch.device) -> AbstractContextManager[Any]:
    """Recordings, and the tensors they work on, serve one search at a time: threads wait for each other."""
    return _ONE if recordable(device) else nullcontext()


def room(steps: int, device: torch.device) -> int:
    """How many steps are made room for: on a GPU a round number, so that searches have few shapes."""
    return -(-steps // 64) * 64 if recordable(device) else steps


@dataclass
class CapturedGraph(Generic[Going]):
    """What is replayed, what it works on, and the tensors that it begins with."""

    graph: torch.cuda.CUDAGraph
    going: Going
    given: list[Tensor]


_KEPT: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, CapturedGraph[Any]]] = WeakKeyDictionary()
_BEGUN: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, CapturedGraph[Any] | None]] = (
    WeakKeyDictionary()
)
_SEEN = 64  # beginnings of a model that are known to have been


def begun(
    begin: Callable[[Given], Going],
    given: Given,
    *,
    model: nn.Module,
    said: Hashable,
    usual: Callable[[], bool],
) -> Going:
    """begin(given), where the tensors of the result follow from those of `given` and nothing else. The second time that a
    model begins in the same shapes it is recorded, if it is `usual`, and replayed from then on: what was returned before is
    overwritten."""
    if not torch.cuda.is_available():
        return begin(given)
    own = list(tensors(given))
    kept, key = _BEGUN.setdefault(model, OrderedDict()), _key(model, said, own)
    known = kept.get(key)
    if known is None and not (key in kept and usual()):
        kept[key] = None
        while len(kept) > _SEEN:
            kept.popitem(last=False)
        return begin(given)
    kept.move_to_end(key)
    if known is None:
        held, graph = copy.deepcopy(given), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            going = begin(held)
        known = kept[key] = CapturedGraph(graph, going, list(tensors(held)))
        for old in [name for name, recording in kept.items() if recording is not None][:-KEPT]:
            del kept[old]
    torch._foreach_copy_(known.given, own)
    known.graph.replay()
    return known.going  # type: ignore[no-any-return]


class GraphedLoop(Generic[Going]):
    """`turn` must do the same each time to the tensors of what it is given, and leave its results in them. `going` is that:
    where a recording is found, the one that it works on."""

    def __init__(
        self,
        turn: Callable[[Going], None],
        going: Going,
        *,
        record: bool,
        model: nn.Module,
        said: Hashable = None,
    ) -> None:
        """`said` is what a turn depends on besides tensors."""
        self.turn, self.model, self.said = turn, model, said
        self.alike, self.record = record, record and torch.cuda.is_available()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.asked: Tensor | None = None
        self.told = torch.cuda.Event() if self.record else None
        self.begin(going)

    def begin(self, going: Going) -> None:
        """From now on with other tensors."""
        self.going, self.graph, self.warm = going, None, False
        if not self.record:
            return
        own = list(tensors(going))
        kept, key = _KEPT.setdefault(self.model, OrderedDict()), _key(self.model, self.said, own)
        known = kept.get(key)
        if known is not None:
            kept.move_to_end(key)
            torch._foreach_copy_(known.given, own)
            self.going, self.graph = known.going, known.graph

    def due(self, step: int, running: Callable[[Going], Tensor]) -> bool:
        """Whether it is worth asking which rows are still `running` [rows]: before each turn, or, of recorded ones, if half
        of them have stopped. The device is asked for that some turns before, so that it need not be waited for."""
        if not self.alike:
            return step > 0
        if step % CHECKED == CHECKED - EARLY:
            self.asked = running(self.going).to("cpu", non_blocking=True, copy=True)
            if self.told is not None:
                self.told.record()
        if step % CHECKED or self.asked is None:
            return False
        answer, self.asked = self.asked, None
        if self.told is not None:
            self.told.synchronize()
        return 2 * int(answer.sum()) <= len(answer)

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif (
            self.record and self.warm
        ):  # the first one makes ready what a recording must find ready
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.turn(self.going)
            self.graph.replay()
            own, kept = list(tensors(self.going)), _KEPT.setdefault(self.model, OrderedDict())
            kept[_key(self.model, self.said, own)] = CapturedGraph(self.graph, self.going, own)
            while len(kept) > KEPT:
                kept.popitem(last=False)
        else:
            self.turn(self.going)
            self.warm = True


def values(columns: Sequence[Tensor]) -> list[list[Any]]:
    """What they hold; the device is waited for once."""
    moved = [x.to("cpu", non_blocking=True) for x in columns]
    if any(x.is_cuda for x in columns):
        torch.cuda.current_stream(columns[0].device).synchronize()
    return [x.tolist() for x in moved]


def _held(model: nn.Module) -> list[int]:
    """Where all parameters and buffers lie. (PyTorch's own walks make a name of each, which takes as long as some turns.)"""
    found: list[Tensor | None] = []
    parts: list[nn.Module | None] = [model]
    while parts:
        part = parts.pop()
        if part is not None:
            found += (*part._parameters.values(), *part._buffers.values())
            parts += part._modules.values()
    return [x.data_ptr() for x in found if x is not None]


def _key(model: nn.Module, said: Hashable, given: list[Tensor]) -> Hashable:
    """What two searches must share to share a recording: where the weights lie, and the shapes of all that changes."""
    shapes = tuple((x.shape, x.stride(), x.dtype, x.device) for x in given)
    narrow = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return said, narrow, tuple(_held(model)), shapes


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
