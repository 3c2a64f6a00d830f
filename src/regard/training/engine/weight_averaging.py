"""Weight averaging: EMA over updates, checkpoint averaging, or the best checkpoint alone.

Training goes on with the raw weights. What is averaged here is only validated (EMA) and exported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from regard.checkpoint import Snapshots, Tensors
from regard.training.engine.progress import Progress
from regard.training.recipe.options import Average, Best, Ema, ExportedWeights


class WeightAveraging:
    """Keeps what the recipe's choice of weights needs: an EMA copy in memory, or snapshots on disk.

    Which snapshots count (`averaged`, `best_step`) is part of `Progress`.
    """

    def __init__(self, choice: ExportedWeights, model: nn.Module, snapshots: Snapshots) -> None:
        self.choice = choice
        self.snapshots = snapshots
        self.parameters = dict(model.named_parameters())
        self.ema: Tensors | None = None
        if isinstance(choice, Ema):
            # It begins with the initial weights, and so needs no bias correction as Adam's.
            self.ema = {name: p.detach().clone() for name, p in self.parameters.items()}

    def after_update(self) -> None:
        """EMA: average ← decay · average + (1 − decay) · weights."""
        if self.ema is None:
            return
        assert isinstance(self.choice, Ema)
        weights = [p.detach() for p in self.parameters.values()]
        # One kernel for all parameters; lerp(a, b, t) = a + t (b − a).
        torch._foreach_lerp_(list(self.ema.values()), weights, 1 - self.choice.decay)

    def after_validation(self, progress: Progress, improved: bool) -> None:
        """Writes a snapshot of the weights if they are to be averaged, or are the best so far."""
        if isinstance(self.choice, Average):
            # The last ones only: others are deleted once no checkpoint on disk needs them.
            progress.averaged = [*progress.averaged, progress.step][-self.choice.count :]
            self.snapshots.write(progress.step, self.current())
        elif isinstance(self.choice, Best) and improved:
            self.snapshots.write(progress.step, self.current())

    def selected(self, progress: Progress) -> Tensors:
        """The weights to export, as far as the run has come."""
        match self.choice:
            case Ema() if self.ema is not None:
                return self.ema
            case Average() if progress.averaged:
                return self.snapshots.mean(progress.averaged)
            case Best() if progress.best_step == progress.step:
                return self.current()
            case Best() if progress.best_step:
                return self.snapshots.mean([progress.best_step])
            case _:  # Last, or no validation yet
                return self.current()

    def best_step(self, progress: Progress) -> int | None:
        """The step of the weights to export, where they are those of one validation."""
        if isinstance(self.choice, Best) and progress.best_step:
            return progress.best_step
        return None

    def current(self) -> Tensors:
        """The raw weights that training works on."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def assign(self, weights: Tensors) -> None:
        """Copies weights into the model, in place: captured CUDA graphs read them there."""
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])

    @contextmanager
    def swapped_in(self, weights: Tensors | None) -> Iterator[None]:
        """Other weights in the model for the duration of the block; None leaves it alone."""
        if weights is None:
            yield
            return
        # Cloned, for assign() writes into the same tensors.
        raw = {name: tensor.clone() for name, tensor in self.current().items()}
        self.assign(weights)
        try:
            yield
        finally:
            self.assign(raw)
