"""The run under examination: its recipe, data, objective, weights and metrics log."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.data.batching import Batch
from regard.families.folder import open_model
from regard.lab.doctor import stored_data
from regard.lab.doctor.stored_data import Example
from regard.system import disk
from regard.system.checkpoint import Checkpoints, Saved
from regard.system.errors import CheckpointError, RegardError
from regard.training.assembly import assemble
from regard.training.diagnostics.monitor import label_baseline
from regard.training.diagnostics.run_log import Baseline, RunLog, finite, median
from regard.training.engine.optimizer import lr_schedule
from regard.training.objectives.objective import CarriesState, Objective
from regard.training.recipe.objectives import DATA_KEYS
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder, begin
from regard.training.setup import Parts, Setup

BATCHES = 24  # of the training data that are looked at: enough labels for their entropy
WEAK_LEARNING = 0.9  # of the label entropy: a loss above it has learnt little of its input


@dataclass
class RunEvidence:
    """A run, finished or going on, or one that a recipe would begin.

    `objective` is an Objective, and None where the run cannot be assembled here; `problems` says
    why. Most of what follows is asked for only where there is one.
    """

    run_folder: RunFolder
    recipe: Recipe
    parts: Parts
    objective: Any
    log: RunLog
    problems: list[str] = field(default_factory=list)
    has_run: bool = True  # False for a recipe

    # --- data -------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> list[Batch]:
        """The first training batches, without end if the objective has fewer of them."""
        batches = itertools.islice(self.objective.batches(0, 0), BATCHES)
        return [batch for _, batch in batches]

    @cached_property
    def examples(self) -> dict[str, list[Example]]:
        """The examples of each split, in the order of the file; empty for plain text."""
        return stored_data.examples(self.objective)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The plain text of each split; empty for other data."""
        return stored_data.texts(self.objective)

    @cached_property
    def baseline(self) -> Baseline:
        if self.objective is None:
            return Baseline(None)
        return label_baseline(self.objective, BATCHES)

    @property
    def has_generated_data(self) -> bool:
        """Whether the examples come from a generator of the package, whose splits never meet."""
        data = self.recipe.data
        named = any(getattr(data, key) for key in ("source", *DATA_KEYS.values()))
        return not named and not self.recipe.tune.files and self.parts.source is None

    # --- weights ----------------------------------------------------------------------------------

    @cached_property
    def initial(self) -> dict[str, Tensor]:
        """The weights that the run began with, drawn again from its seed."""
        return {name: p.detach().clone() for name, p in self.objective.model.named_parameters()}

    @cached_property
    def saved(self) -> Saved | None:
        """The newest intact checkpoint."""
        try:
            return Checkpoints(self.run_folder.checkpoints).newest(self.problems.append)
        except CheckpointError as error:
            self.problems.append(error.problem)
            return None

    @cached_property
    def earlier(self) -> Saved | None:
        """A checkpoint from before the newest one, for what has changed between them."""
        if self.saved is None:
            return None
        return Checkpoints(self.run_folder.checkpoints).before(self.saved.step)

    @cached_property
    def exported_file(self) -> dict[str, Tensor]:
        """The tensors of model.safetensors, by the names in the file."""
        path = self.run_folder.weights
        if not path.is_file():
            return {}
        try:
            return load_file(path)
        except Exception as error:
            # The library raises its own class, which it does not export.
            self.problems.append(f"{path.name} cannot be read: {error}")
            return {}

    @cached_property
    def is_altered(self) -> bool:
        """Whether model.safetensors is not what was written."""
        path = self.run_folder.weights
        try:
            return path.is_file() and disk.is_altered(path)
        except Exception:
            return True  # not even readable

    @cached_property
    def weights(self) -> dict[str, Tensor] | None:
        """The weights to examine: those exported, or of the checkpoint; None before either."""
        if not self.has_run:
            return None
        for weights in (self._exported(), self._checkpointed()):
            if weights is not None and _fits(weights, self.initial):
                return weights
        return None

    def _exported(self) -> dict[str, Tensor] | None:
        if not self.exported_file:
            return None
        try:
            model, _ = open_model(self.run_folder.folder, kinds=self.parts.kinds)
        except RegardError as error:
            self.problems.append(error.problem)
            return None
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    def _checkpointed(self) -> dict[str, Tensor] | None:
        return None if self.saved is None else self.saved.groups["weights"]

    @contextmanager
    def loaded(self, weights: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """The model with these weights, for the duration of the block."""
        model = self.objective.model
        # Cached on first use, which must come before the model is overwritten.
        before = self.initial
        _assign(model, weights)
        try:
            yield model
        finally:
            _assign(model, before)

    # --- how training went ------------------------------------------------------------------------

    @property
    def peak_rate(self) -> float:
        """The highest learning rate of the run so far; of the whole run for a recipe."""
        schedule = lr_schedule(self.recipe, self.objective.d_model)
        steps = max(1, self.log.last_step) if self.has_run else self.recipe.train.steps
        return schedule(max(1, min(self.recipe.train.warmup_steps, steps)))

    @cached_property
    def relative_step(self) -> float:
        """The peak rate as a share of the initial weights, the median over matrices.

        One update of Adam changes a weight by the learning rate at most, whatever the gradient is.
        """
        sizes = [
            float(tensor.double().square().mean().sqrt())
            for tensor in self.initial.values()
            if tensor.ndim >= 2
        ]
        # What begins at zero, such as the B of LoRA, has no size yet.
        return self.peak_rate / median(size for size in sizes if size > 0)

    @property
    def final_loss(self) -> float:
        """The loss at the end; infinite where training broke off without a finite one."""
        # After three skipped updates in a row the training loop gives up.
        if len(self.log.skipped) >= 3 and self.log.skipped[-1]["step"] >= self.log.last_step:
            return math.inf
        final = self.log.final_loss()
        return math.inf if math.isnan(final) else final

    @cached_property
    def initial_loss(self) -> float:
        """The loss of the initial weights on the first batch, without dropout."""
        if self.objective is None or not self.batches:
            return math.inf
        with torch.no_grad(), self.loaded(self.initial):
            ((_, nll),) = self.losses(1)
        return float(nll)

    def losses(self, count: int) -> Iterator[Tensor]:
        """The loss and −log p of the first batches for each label, without dropout."""
        objective = self.objective
        objective.model.eval()
        with carry_untouched(objective):
            for batch in self.batches[:count]:
                both = torch.stack(objective.loss(batch.to(self.device).tensors))
                yield both / max(1, batch.tokens)

    @property
    def device(self) -> torch.device:
        return next(self.objective.model.parameters()).device

    @property
    def reference(self) -> float:
        """What is reached without learning: the label entropy, or the loss before training."""
        if self.baseline.entropy is not None:
            return self.baseline.entropy
        # The first line of the log has some steps behind it, which may have made it worse.
        first = self.log.losses[0] if self.log.losses else math.inf
        return min(finite([first, self.initial_loss]), default=math.inf)

    @property
    def is_weak(self) -> bool:
        """Whether the run has learnt little of its input, or broke off."""
        return self.has_run and not self.final_loss < WEAK_LEARNING * self.reference


def open_run(run_folder: RunFolder, recipe: Recipe, parts: Parts) -> RunEvidence:
    """A run folder; one that cannot be assembled is examined by its files alone."""
    log = RunLog.read(run_folder.metrics)
    problems = [*_missing_log(run_folder, log)]
    setup = Setup(run_folder, _on_cpu(recipe), _silent, parts)
    objective = None
    try:
        run_folder.check_objective(parts.objective_name)
    except RegardError as error:
        # Its data and its model are examined with the objective that it is derived from.
        problems.append(f"{error.problem}: pass it to regard.doctor.examine(…, objective=…)")
    try:
        objective = assemble(setup, again=True)
    except RegardError as error:
        problems.append(f"the model and data of the run cannot be loaded: {error.problem}")
    return RunEvidence(run_folder, recipe, parts, objective, log, problems)


def _missing_log(run_folder: RunFolder, log: RunLog) -> Iterator[str]:
    """The problem of a trained run whose log of steps is missing or empty."""
    has_trained = run_folder.weights.is_file() or any(run_folder.checkpoints.glob("*"))
    if log.last_step or not has_trained:
        return
    file = run_folder.metrics
    state = "has no training records" if file.is_file() else "is missing"
    yield f"{file.name} {state}, so losses and gradients were not examined"


@contextmanager
def open_recipe(recipe: Recipe, name: str, parts: Parts) -> Iterator[RunEvidence]:
    """What a recipe would begin, assembled in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        run_folder = begin(recipe, Path(folder) / "run", name, parts.objective_name)
        setup = Setup(run_folder, _on_cpu(recipe), _silent, parts)
        objective = assemble(setup)
        yield RunEvidence(
            run_folder, objective.setup.recipe, parts, objective, RunLog(), has_run=False
        )


@contextmanager
def carry_untouched(objective: Objective) -> Iterator[None]:
    """What an objective carries from batch to batch is afterwards what it was."""
    if not isinstance(objective, CarriesState):
        yield
        return
    carry = {name: tensor.clone() for name, tensor in objective.carry.items()}
    try:
        yield
    finally:
        for name, tensor in carry.items():
            objective.carry[name].detach_().copy_(tensor)


def _on_cpu(recipe: Recipe) -> Recipe:
    """The recipe on a device that is here: a run may have been made elsewhere."""
    if recipe.train.device == "cpu" or torch.cuda.is_available():
        return recipe
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"device": "cpu"})})


def _silent(text: str) -> None:
    pass


def _fits(weights: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> bool:
    return all(name in weights and weights[name].shape == like[name].shape for name in like)


@torch.no_grad()
def _assign(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
