"""Preflight checks: all that can be wrong with a run and needs no data to be seen.

They come before the run folder is made, so that a corrected command finds no folder in its way.
What only its final settings show is said before the first step.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.data.file_access import expand, is_remote, open_binary, split_location
from regard.data.image import require_pillow
from regard.families import folder as folders
from regard.models import choose_device
from regard.system import memory
from regard.system.errors import DataError
from regard.training import model_spec
from regard.training.engine.metrics_log import summary_writer_class
from regard.training.parallel.ranks import Ranks
from regard.training.recipe.options import MOST_INITIAL, Ema
from regard.training.recipe.schema import FILE_KEYS, Recipe
from regard.training.setup import NO_PARTS, Parts, Setup

_NOMINAL = 1000  # tokens or classes: sizes are checked before the data decides how many there are

_BYTES_PER_TRAINED_PARAMETER = 16


def check(recipe: Recipe, parts: Parts = NO_PARTS) -> None:
    """Raises the error that the run would end with: device, extras, files, sizes of the model."""
    # Cheapest first: what costs a read of files comes after what costs nothing.
    choose_device(recipe.train.device)
    if recipe.train.tensorboard:
        summary_writer_class()
    if recipe.objective_settings.data == "images":
        require_pillow()
    for path in _files(recipe, parts):
        _check_readable(path)
    base = None if parts.model is not None else recipe.tune.base
    for folder in (base, recipe.train.teacher):
        if folder is not None:
            folders.peek(Path(folder), parts.kinds)
    if parts.spec is None and not recipe.is_finetuning:
        if recipe.model.spec is not None:
            description = model_spec.read_file(Path(recipe.model.spec))
            parts.objective_of(recipe).check_spec(description, from_file=True)
        # Only the spec, no weights: the largest preset is checked in milliseconds.
        require_memory(parameter_count(nominal_spec(recipe)), recipe)


def _files(recipe: Recipe, parts: Parts) -> list[str]:
    """The files and folders that the recipe names."""
    names: list[str | None] = [getattr(recipe.model, key) for key in FILE_KEYS["model"]]
    if parts.source is None:  # whose name stands in their place
        names += [file for files in recipe.files.values() for file in files]
        names += [getattr(recipe.data, key) for key in FILE_KEYS["data"]]
    for tokenizer in (recipe.tokens.tokenizer, recipe.tokens.target_tokenizer):
        if tokenizer is not None and tokenizer.endswith(".json"):
            names.append(tokenizer)
    return [name for name in names if name is not None and name != "-"]  # standard input


def _check_readable(name: str) -> None:
    for part in split_location(name):
        path = Path(part)
        if is_remote(part):
            continue  # read once: the answer of a server is waited for when the data is needed
        if not part:  # which would be the current folder
            raise DataError("a file path is empty", "give one, or leave out the setting")
        try:
            if path.is_dir():
                os.listdir(path)
            elif glob.has_magic(part) and not path.exists():
                expand(part)
            else:
                with open_binary(part):
                    pass
        except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(
                f"cannot read {part!r}: {reason}", "check the path; it must be a readable file"
            ) from None


def nominal_spec(recipe: Recipe, tokens: int = _NOMINAL) -> spec.Model:
    """The spec of the recipe's model, as if its data had so many tokens, or classes."""
    target = tokens if recipe.objective_settings.data == "pairs" else None
    return model_spec.describe(recipe, tokens, target)


def require_memory(count: int, recipe: Recipe) -> None:
    """Refuses to train so many parameters where the memory of this machine does not hold them."""
    if choose_device(recipe.train.device).type != "cpu":
        memory.require(count, "the model")  # initialized here, trained there
        return
    # Weights, gradients and the two moments of Adam, in float32; activations come on top.
    memory.require_bytes(
        _BYTES_PER_TRAINED_PARAMETER * count,
        f"the model has {count:,} parameters, which with their gradients and optimizer state",
        "use a smaller model or a machine with more memory; `regard plan` shows memory needs",
    )


_FEW_STEPS = 30  # with fewer, a new head has hardly left its random weights


def say_all(setup: Setup, parameters: int) -> None:
    """Says model and schedule, and warns of settings that have no effect, or an unwanted one."""
    train = setup.recipe.train
    ranks = setup.ranks
    on_ranks = ""
    if ranks.several:
        on_ranks = f", {ranks.size} ranks ({setup.recipe.parallel.strategy})"
    setup.say(
        f"model: {parameters:,} parameters, {train.precision} "
        f"on {setup.device}{on_ranks}; run folder: {setup.run_folder.folder}"
    )
    setup.say(
        f"schedule: {train.steps:,} steps, {train.warmup_steps:,} of them warm-up, "
        f"batches of {train.batch_tokens:,} positions"
    )
    for warning in _warnings(setup.recipe, setup.device, ranks):
        setup.say(f"warning: {warning}")


def _warnings(recipe: Recipe, device: torch.device, ranks: Ranks) -> Iterator[str]:
    train = recipe.train
    # A warm-up of one step has the full rate at once.
    if train.warmup_steps >= max(2, train.steps):
        yield (
            f"the warm-up of {train.warmup_steps:,} steps does not end within the {train.steps:,} "
            "steps of the run: the learning rate stays low, and the model learns little\n"
            "  → use a smaller --warmup-steps, or more --steps"
        )
    weights = recipe.exported_weights
    if isinstance(weights, Ema) and not weights.has_time(train.steps):
        needed = math.ceil(math.log(MOST_INITIAL) / math.log(weights.decay))
        yield (
            f"{train.steps:,} steps are too few for the average {train.final_weights}: it would "
            "still be the initial weights, so the last weights are exported\n"
            f"  → train {needed:,} steps, or use a lower decay"
        )
    if train.compile and device.type != "cuda":
        yield f"--compile has no effect on {device}: it only works on GPUs"
    strategy = recipe.parallel.strategy
    if strategy != "ddp" and not ranks.several:
        yield (
            f"--strategy {strategy} needs several processes, and only one is running\n"
            "  → start several with --processes N"
        )
    data = recipe.data
    if data.source is not None and data.source == data.target:
        yield (
            f"{data.source} is both --source and --target: the model learns to copy\n"
            "  → give the translations as --target"
        )
    # Fine-tuning counts epochs: of a few examples these are a few updates.
    if recipe.tune.base is not None and train.steps < _FEW_STEPS:
        yield (
            f"{train.steps:,} steps change a model very little\n"
            "  → use more --epochs or --steps, or more data"
        )
    for split, name in (("valid", "validation"), ("test", "test")):
        scored = [part for file in recipe.files.get(split, ()) for part in split_location(file)]
        for part in scored:
            if os.path.realpath(part) in map(os.path.realpath, recipe.corpora):
                yield (
                    f"{part} is both training and {name} data: the scores do not show how the "
                    "model generalizes to unseen data"
                )
