"""One update, from batches to changed weights. Nothing in it waits for the device.

On a GPU the whole update of a shape that was seen before is recorded once and then replayed: a small model spends more
time on being told what to do than on doing it. A replayed update does the same arithmetic with the same dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from regard.core.seeding import derive_seed
from regard.data.batching import Batch
from regard.training.engine.optimizer import Optimizer

Loss = Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]]
Shape = tuple[tuple[str, torch.Size], ...]


class Step:
    """`loss` gives sums over tokens; the gradient is that of the mean over all tokens of the update."""

    def __init__(
        self,
        loss: Loss,
        updater: Optimizer,
        precision: Callable[[], AbstractContextManager[Any]],
        *,
        record: bool,
    ) -> None:
        self.loss, self.updater, self.precision = loss, updater, precision
        self.device = updater.scale.device
        self.tokens = torch.zeros((), dtype=torch.float64, device=self.device)
        self.record = record and self.device.type == "cuda"
        self.recorded: dict[Shape, _Recorded | None] = {}
        self.ready = True  # whether nothing had to be made for the last step: programs of its shape, or its recording

    def __call__(self, batches: Sequence[Batch], step: int, seed: int) -> Tensor:
        """[skipped, gradient norm, loss, −log p] of the update, on the device."""
        self.updater.prepare(step)
        self.tokens.fill_(sum(batch.tokens for batch in batches))
        if self.record and len(batches) == 1:
            torch.manual_seed(chance(seed, step, 0))
            return self._replayed(batches[0])
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        for micro, batch in enumerate(batches):
            torch.manual_seed(chance(seed, step, micro))
            totals += self._gradients(batch.to(self.device, non_blocking=True).tensors)
        return self._update(totals)

    def _gradients(self, tensors: Mapping[str, Tensor]) -> Tensor:
        with self.precision():
            loss, nll = self.loss(tensors)
        (loss * (self.updater.scale / self.tokens)).backward()
        return torch.stack([loss.detach(), nll]).double()

    def _update(self, totals: Tensor) -> Tensor:
        norm, skipped = self.updater.update(totals[0])
        return torch.cat([torch.stack([skipped.double(), norm.double()]), totals])

    def _replayed(self, batch: Batch) -> Tensor:
        shape = tuple((name, tensor.shape) for name, tensor in batch.tensors.items())
        self.ready = self.recorded.get(shape) is not None
        if shape not in self.recorded:
            # The first time is a plain step, which also makes ready all that a recording must find ready.
            self.recorded[shape] = None
            return self._update(self._gradients(batch.to(self.device, non_blocking=True).tensors))
        known = self.recorded[shape]
        if known is None:
            known = self.recorded[shape] = self._recording(batch)
        for name, tensor in batch.tensors.items():
            known.tensors[name].copy_(tensor, non_blocking=True)
        known.graph.replay()
        return known.verdict.clone()

    def _recording(self, batch: Batch) -> _Recorded:
        tensors = {name: tensor.to(self.device) for name, tensor in batch.tensors.items()}
        graph = torch.cuda.CUDAGraph()
        pool = next(
            (known.graph.pool() for known in self.recorded.values() if known is not None), None
        )
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            verdict = self._update(self._gradients(tensors))
        return _Recorded(graph, tensors, verdict)


class _Recorded:
    def __init__(
        self, graph: torch.cuda.CUDAGraph, tensors: dict[str, Tensor], verdict: Tensor
    ) -> None:
        self.graph, self.tensors, self.verdict = graph, tensors, verdict


def chance(seed: int, step: int, micro: int, rank: int = 0) -> int:
    """The seed of one micro-step: a pure function, so that a resumed run draws the same dropout."""
    return derive_seed(seed, step, micro, rank) >> 1
