"""Weight averaging: EMA over updates, checkpoint averaging, or the best checkpoint alone.

Training goes on with the raw weights. What is averaged here is only validated (EMA) and exported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch

from regard.builder import edit
from regard.models.saving import weight_tensors
from regard.system.checkpoint import Snapshots, Tensors
from regard.training.engine.progress import Progress
from regard.training.objectives.objective import Objective
from regard.training.parallel.strategy import Strategy
from regard.training.recipe.options import Average, Best, Ema, ExportedWeights


class WeightAveraging:
    """Keeps what the recipe's choice of weights needs: an EMA copy in memory, or snapshots on disk.

    Which snapshots count (`averaged`, `best_step`) is part of `Progress`.
    """

    def __init__(self, choice: ExportedWeights, strategy: Strategy, snapshots: Snapshots) -> None:
        self.choice = choice
        self.strategy = strategy
        self.snapshots = snapshots
        self.parameters = strategy.parameters  # on sharded ranks, the parts of this one
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
        elif not (isinstance(self.choice, Best) and improved):
            return
        weights = self.strategy.gathered(self.current())  # by all ranks
        if self.strategy.ranks.is_main:
            self.snapshots.write(progress.step, weights)

    def leave_out_damaged(self, progress: Progress, say: Callable[[str], None]) -> None:
        """Goes on without snapshots that are missing or damaged: a run must not be lost by them."""
        # Snapshots hold full tensors; of sharded ones this rank knows its own part only.
        expected = {} if self.strategy.layouts else self.parameters
        if isinstance(self.choice, Best) and progress.best_step:
            if problem := self.snapshots.damage(progress.best_step, expected):
                say(f"cannot read the best weights ({problem}); the next ones count as best")
                progress.best = None
                progress.best_step = 0
        elif isinstance(self.choice, Average):
            problems = {s: self.snapshots.damage(s, expected) for s in progress.averaged}
            progress.averaged = [step for step, problem in problems.items() if problem is None]
            for problem in filter(None, problems.values()):
                say(f"the average continues without a snapshot ({problem})")

    def selected(self, progress: Progress) -> Tensors:
        """The weights to export, as far as the run has come: full tensors, on the main rank."""
        match self.choice:
            case Ema() if self.ema is not None and self.choice.has_time(progress.step):
                return self.strategy.gathered(self.ema)
            case Average() if progress.averaged:
                return self._snapshot_mean(progress.averaged)
            case Best() if progress.best_step == progress.step:
                return self.strategy.gathered(self.current())
            case Best() if progress.best_step:
                return self._snapshot_mean([progress.best_step])
            case _:  # Last, or no validation yet
                return self.strategy.gathered(self.current())

    def _snapshot_mean(self, steps: list[int]) -> Tensors:
        return self.snapshots.mean(steps) if self.strategy.ranks.is_main else {}

    def validated(self, progress: Progress) -> Tensors | None:
        """The EMA, which is what will be exported; None for the weights that are trained."""
        if isinstance(self.choice, Ema) and self.choice.has_time(progress.step):
            return self.selected(progress)
        return None

    def best_step(self, progress: Progress) -> int | None:
        """The step of the weights to export, where they are those of one validation."""
        if isinstance(self.choice, Best) and progress.best_step:
            return progress.best_step
        return None

    def current(self) -> Tensors:
        """The raw weights that training works on."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}


def exported_files(objective: Objective) -> dict[Path, Tensors]:
    """The weights now in the model, and those of its companions, as files of the run folder.

    By path, with the tensors of each; not copied where they can be views of the parameters.
    """
    run_folder = objective.setup.run_folder
    models = {run_folder.weights: objective.trained_model}
    for name, companion in objective.companions().items():
        models[run_folder.folder / name / run_folder.weights.name] = companion
    files = {}
    for path, model in models.items():
        exported = model.model
        if objective.setup.recipe.tune.lora:
            # Of a copy: training goes on with the factors apart.
            exported = copy.deepcopy(exported)
            edit.merge(exported)
        files[path] = weight_tensors(exported, model.spec, model.config)
    return files
