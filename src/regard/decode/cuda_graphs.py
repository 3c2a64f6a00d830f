"""CUDA graphs: capture a decoding step once, then replay it.

A small decoding step takes longer to launch kernel by kernel than to compute. On a GPU the step is
therefore captured in a CUDA graph. A graph works on static buffers: the next search of the same
shape by the same model copies its first values into them and is replayed from its first step.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.core.cuda_graph import capture
from regard.data.padding import round_up

CHECK_INTERVAL = 16  # steps between two checks of what has finished: a check waits for the device
CHECK_LEAD = 4  # steps before a check at which its answer is requested, so that it is there in time
MAX_GRAPHS = 4  # captured graphs of a model, each of which holds on to its memory
MAX_PREFILL_SHAPES = 64  # shapes of prefill that are remembered to have occurred
LENGTH_MULTIPLE = 64  # lengths are rounded up to this, so that searches have few shapes

Inputs = TypeVar("Inputs")
State = TypeVar("State")


@dataclass
class CapturedGraph(Generic[State]):
    """A CUDA graph, the state that it writes, and the static buffers that it reads."""

    graph: torch.cuda.CUDAGraph
    state: State
    static_inputs: list[Tensor]


# The caches of graphs: one for steps and one for prefill, each by model and by `_graph_key`, the
# least recently used graph first. They go away with their model. None marks a shape of prefill that
# has occurred once and is captured when it comes again.
_STEP_GRAPHS: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, CapturedGraph[Any]]] = (
    WeakKeyDictionary()
)
_PREFILL_GRAPHS: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, CapturedGraph[Any] | None]] = (
    WeakKeyDictionary()
)
_LOCK = threading.RLock()


def enabled(device: torch.device) -> bool:
    """Whether decoding steps on this device are captured: every step must be like the others."""
    return device.type == "cuda"


def exclusive(device: torch.device) -> AbstractContextManager[Any]:
    """A lock: graphs and their static buffers serve one search at a time, so threads wait."""
    return _LOCK if enabled(device) else nullcontext()


def padded_length(steps: int, device: torch.device) -> int:
    """The number of steps that buffers hold: rounded up on a GPU, so that shapes are few."""
    return round_up(steps, LENGTH_MULTIPLE) if enabled(device) else steps


# --- prefill ---


def prefill(
    begin: Callable[[Inputs], State],
    inputs: Inputs,
    *,
    model: nn.Module,
    key: Hashable,
    capturable: Callable[[], bool],
) -> State:
    """begin(inputs), from a CUDA graph from the second call with the same shapes on.

    The tensors of the result must follow from those of `inputs` and from nothing else. `key` is
    what else the computation depends on; `capturable` says whether it may be captured at all. A
    replay overwrites the state that an earlier call returned.
    """
    if not torch.cuda.is_available():
        return begin(inputs)
    tensors = tensors_in(inputs)
    graphs = _PREFILL_GRAPHS.setdefault(model, OrderedDict())
    key = _graph_key(model, key, tensors)
    captured = graphs.get(key)
    if captured is None and not (key in graphs and capturable()):
        # The first call with these shapes is also the warm-up that a capture needs.
        graphs[key] = None
        while len(graphs) > MAX_PREFILL_SHAPES:
            graphs.popitem(last=False)
        return begin(inputs)
    graphs.move_to_end(key)
    if captured is None:
        static_inputs = copy.deepcopy(inputs)
        graph = torch.cuda.CUDAGraph()
        with capture(graph):
            state = begin(static_inputs)
        captured = CapturedGraph(graph, state, tensors_in(static_inputs))
        graphs[key] = captured
        with_graph = [name for name, entry in graphs.items() if entry is not None]
        for name in with_graph[: -2 * MAX_GRAPHS]:  # of encoders and of what follows them
            del graphs[name]
    # The graph reads these addresses and no others.
    torch._foreach_copy_(captured.static_inputs, tensors)
    captured.graph.replay()
    return captured.state  # type: ignore[no-any-return]


# --- steps ---


class GraphedLoop(Generic[State]):
    """A loop of equal steps over one state, replayed from a CUDA graph where `graphed` is set.

    `step` must do the same each time to the tensors of the state, and leave its results in them.
    `state` is the one in use: if a graph was captured before, that with the graph's static buffers.
    """

    def __init__(
        self,
        step: Callable[[State], None],
        state: State,
        *,
        graphed: bool,
        model: nn.Module,
        key: Hashable = None,
        most_graphs: int = MAX_GRAPHS,
    ) -> None:
        """`key` is what a step depends on besides the shapes of tensors."""
        self.step = step
        self.model = model
        self.key = key
        self.most_graphs = most_graphs
        self.fixed_shapes = graphed
        self.capture = graphed and torch.cuda.is_available()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.requested: Tensor | None = None  # [rows] on its way from the device
        self.arrived = torch.cuda.Event() if self.capture else None
        self.restart(state)

    def restart(self, state: State) -> None:
        """Goes on with another state: in the buffers of a captured graph of its shapes, if any."""
        self.state = state
        self.graph = None
        self.warmed_up = False
        if not self.capture:
            return
        tensors = tensors_in(state)
        graphs = _STEP_GRAPHS.setdefault(self.model, OrderedDict())
        key = _graph_key(self.model, self.key, tensors)
        captured = graphs.get(key)
        if captured is not None:
            graphs.move_to_end(key)
            # What a graph and the new state share is in its place already.
            pairs = zip(captured.static_inputs, tensors, strict=True)
            moved = [(to, of) for to, of in pairs if to.data_ptr() != of.data_ptr()]
            if moved:
                torch._foreach_copy_([to for to, _ in moved], [of for _, of in moved])
            self.state = captured.state
            self.graph = captured.graph

    def check_is_due(self, step: int, running: Callable[[State], Tensor]) -> bool:
        """Whether to look which rows are still `running` [rows] before this step.

        Without fixed shapes that is before each step. With them it is every CHECK_INTERVAL steps,
        and only if half of the rows have stopped, which is when a smaller graph is worth while.
        That number is requested CHECK_LEAD steps earlier, so that the device is not waited for.
        """
        if not self.fixed_shapes:
            return step > 0
        if step % CHECK_INTERVAL == CHECK_INTERVAL - CHECK_LEAD:
            self.requested = running(self.state).to("cpu", non_blocking=True, copy=True)
            if self.arrived is not None:
                self.arrived.record()
        if step % CHECK_INTERVAL or self.requested is None:
            return False
        still_running = self.requested
        self.requested = None
        if self.arrived is not None:
            self.arrived.synchronize()
        return 2 * int(still_running.sum()) <= len(still_running)

    def drop_done(
        self,
        step: int,
        running: Callable[[State], Tensor],
        select: Callable[[State, Tensor], None],
    ) -> bool:
        """Goes on with the rows that are still `running` [rows], if it is time to look before this
        step; whether there are any. `select` keeps only these rows of a state."""
        if not self.check_is_due(step, running):
            return True
        is_running = running(self.state)
        if bool(is_running.all()):
            return True
        rows = is_running.nonzero()[:, 0]
        if len(rows) > 0:
            state = self.state
            if self.fixed_shapes:
                state = copy.deepcopy(state)  # the graph keeps its static buffers
            select(state, rows)
            self.restart(state)
        return len(rows) > 0

    def __call__(self) -> None:
        """One step: replayed, captured, or, the first time, executed to warm up."""
        if self.graph is not None:
            self.graph.replay()
        elif self.capture and self.warmed_up:
            self._capture()
        else:
            # What is compiled or allocated on first use must exist before a capture.
            self.step(self.state)
            self.warmed_up = True

    def _capture(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            self.step(self.state)
        self.graph.replay()  # a capture executes nothing
        tensors = tensors_in(self.state)
        graphs = _STEP_GRAPHS.setdefault(self.model, OrderedDict())
        key = _graph_key(self.model, self.key, tensors)
        graphs[key] = CapturedGraph(self.graph, self.state, tensors)
        while len(graphs) > self.most_graphs:
            graphs.popitem(last=False)


# --- tensors ---


def to_lists(columns: Sequence[Tensor]) -> list[list[Any]]:
    """`tolist` of each tensor; the device is waited for once, not once a tensor."""
    on_cpu = [x.to("cpu", non_blocking=True) for x in columns]
    if any(x.is_cuda for x in columns):
        torch.cuda.current_stream(columns[0].device).synchronize()
    return [x.tolist() for x in on_cpu]


def tensors_in(structure: Any) -> list[Tensor]:
    """All tensors in nested dataclasses and sequences, each once, in a fixed order."""
    tensors: dict[int, Tensor] = {}

    def walk(x: Any) -> None:
        if isinstance(x, Tensor):
            tensors[id(x)] = x
        elif is_dataclass(x):
            for field in fields(x):
                walk(getattr(x, field.name))
        elif isinstance(x, (list, tuple)):
            for item in x:
                walk(item)

    walk(structure)
    return list(tensors.values())


def _graph_key(model: nn.Module, key: Hashable, tensors: list[Tensor]) -> Hashable:
    """The key of a captured graph: the weights' addresses, and all shapes."""
    shapes = tuple((x.shape, x.stride(), x.dtype, x.device) for x in tensors)
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return key, autocast, tuple(_weight_addresses(model)), shapes


def _weight_addresses(model: nn.Module) -> list[int]:
    """The addresses of all parameters and buffers.

    `model.parameters()` also makes the name of each, which takes as long as some decoding steps.
    """
    tensors: list[Tensor | None] = []
    modules: list[nn.Module | None] = [model]
    while modules:
        module = modules.pop()
        if module is not None:
            tensors += (*module._parameters.values(), *module._buffers.values())
            modules += module._modules.values()
    return [x.data_ptr() for x in tensors if x is not None]
