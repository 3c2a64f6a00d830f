"""One training step: gradient accumulation over batches, then one optimizer update.

Nothing in it waits for the device. On a GPU the whole step is captured into a CUDA graph, one for
each shape of batch that comes again, and replayed: launching the kernels of a small model one by
one takes longer than running them. A replayed step does the same arithmetic with the same dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.core.cuda_graph import capture, on_capture_stream
from regard.core.seeding import derive_seed
from regard.data.batching import Batch
from regard.system.errors import SettingError
from regard.training.engine.optimizer import Optimizer
from regard.training.parallel.strategy import Strategy

# The tensors of a batch → the loss and −log p, both summed over its tokens.
Loss = Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]]
Shape = tuple[tuple[str, torch.Size], ...]
Part = tuple[Mapping[str, Tensor], float]  # the rows of a rank, and what they count


class Step:
    """One update: `loss` returns sums over tokens, the gradient is that of the step's mean.

    Gradient accumulation over several batches therefore equals one large batch, however unevenly
    the tokens are spread over them. `autocast` makes the context of the forward pass. With a
    `strategy` of several ranks, each computes its rows of every batch.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: Optimizer,
        autocast: Callable[[], AbstractContextManager[Any]],
        *,
        cuda_graphs: bool,
        strategy: Strategy | None = None,
    ) -> None:
        self.loss = loss
        self.strategy = strategy
        self.optimizer = optimizer
        self.autocast = autocast
        self.device = optimizer.scaler.scale.device
        self.tokens = torch.zeros((), dtype=torch.float64, device=self.device)
        self.cuda_graphs = cuda_graphs and self.device.type == "cuda"
        # None: the shape was seen once, and is captured when it comes again.
        self.captured: dict[Shape, _CapturedStep | None] = {}
        self.warm = True  # whether the last step had nothing to compile or to capture

    def __call__(self, batches: Sequence[Batch], step: int, seed: int) -> Tensor:
        """[skipped, gradient norm, loss, −log p] of the update, on the device."""
        self.optimizer.set_learning_rate(step)
        self.tokens.fill_(sum(batch.tokens for batch in batches))
        if self.cuda_graphs and len(batches) == 1:
            shape = tuple((name, tensor.shape) for name, tensor in batches[0].tensors.items())
            self.warm = self.captured.get(shape) is not None
            if shape in self.captured:
                torch.manual_seed(dropout_seed(seed, step, 0))
                return self._replay(batches[0], shape)
            # The first step of a shape runs eagerly: it also initializes what a capture must find
            # initialized (cuBLAS handles, optimizer state, compiled kernels).
            self.captured[shape] = None
            with on_capture_stream():
                return self._update(self._parts(batches, step, seed))
        return self._update(self._parts(batches, step, seed))

    def _parts(self, batches: Sequence[Batch], step: int, seed: int) -> Iterator[Part]:
        """This rank's rows of each batch, on the device, with the dropout seeded for them."""
        for micro_step, batch in enumerate(batches):
            if self.strategy is None:
                torch.manual_seed(dropout_seed(seed, step, micro_step))
                yield batch.to(self.device, non_blocking=True).tensors, 1.0
                continue
            ranks = self.strategy.ranks
            # Ranks of one copy of the model draw alike, others do not.
            torch.manual_seed(dropout_seed(seed, step, micro_step, ranks.data_rank))
            with self.strategy.part(batch, last=micro_step == len(batches) - 1) as rows:
                yield rows.to(self.device, non_blocking=True).tensors, ranks.weight

    def _update(self, parts: Iterable[Part]) -> Tensor:
        """Gradient accumulation over the parts of a step, then the optimizer's update."""
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        for tensors, weight in parts:
            with self.autocast():
                loss, nll = self.loss(tensors)
            if not loss.requires_grad:
                raise SettingError(
                    "the loss of the objective has no gradient",
                    "compute it from the outputs of the model, without detach() or no_grad()",
                )
            if weight != 1.0:  # rows that another rank has
                loss = loss * weight
                nll = nll * weight
            # Divided by the tokens of all batches of the step, and scaled for fp16; backward adds
            # to .grad.
            (loss * (self.optimizer.scaler.scale / self.tokens)).backward()
            totals += torch.stack([loss.detach(), nll]).double()
        if self.strategy is not None:
            totals = self.strategy.sum_totals(totals)
            self.strategy.collect_gradients()
        norm, skipped = self.optimizer.update(totals[0])
        return torch.cat([torch.stack([skipped.double(), norm.double()]), totals])

    def _replay(self, batch: Batch, shape: Shape) -> Tensor:
        """The step as a CUDA graph, which is captured when its shape comes for the second time."""
        captured = self.captured[shape]
        if captured is None:
            inputs = {name: tensor.to(self.device) for name, tensor in batch.tensors.items()}
            graph = torch.cuda.CUDAGraph()
            # All graphs share one memory pool: only one of them runs at a time.
            others = (other.graph.pool() for other in self.captured.values() if other is not None)
            with capture(graph, next(others, None)):
                outcome = self._update([(inputs, 1.0)])
            captured = _CapturedStep(graph, inputs, outcome)
            self.captured[shape] = captured
        for name, tensor in batch.tensors.items():
            captured.inputs[name].copy_(tensor, non_blocking=True)
        captured.graph.replay()
        return captured.outcome.clone()  # the next replay overwrites it


@dataclass(frozen=True)
class _CapturedStep:
    """A CUDA graph with its input buffers and the tensor it writes its outcome to."""

    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    outcome: Tensor


def dropout_seed(seed: int, step: int, micro_step: int, rank: int = 0) -> int:
    """The seed of one micro-step: a pure function, so that a resumed run draws the same dropout."""
    # 63 bits: torch.manual_seed takes a signed 64-bit number.
    return derive_seed(seed, step, micro_step, rank) >> 1
