"""The spec of a new model: a preset with the recipe's changes, a file, or one given in Python.

A spec that does not follow from the recipe alone is written to state/model.json before anything
else, so that the run resumes with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import nn

from regard import disk, spec
from regard.builder import build
from regard.core.stack import Stack
from regard.errors import CheckpointError, SettingError
from regard.families import bart, bert, electra, gpt2, memory_network, palm, recurrent, t5, transformer
from regard.training.engine.initialization import initialize
from regard.training.recipe.schema import STARTING_POINT, Recipe
from regard.training.recipe.sections import ModelSettings
from regard.training.run_folder import RunFolder

_ARCHITECTURE = tuple(key for key in ModelSettings.model_fields if key not in STARTING_POINT)


def without_architecture(recipe: Recipe, changes: Collection[str]) -> Recipe:
    """The recipe without its sizes, which those of a given spec replace.

    `changes` are the settings that the caller named: a size among them would contradict the spec.
    """
    for key in _ARCHITECTURE:
        if key in changes:
            raise SettingError(
                f"{key} is decided by the model that was given", f"leave `{key}` or `model` out"
            )
    kept = recipe.model.model_dump(include=set(STARTING_POINT))
    return recipe.model_copy(update={"model": ModelSettings.model_validate(kept)})


def write(run_folder: RunFolder, model: spec.Model) -> None:
    disk.write_json(run_folder.model, spec.to_dict(model))


def read(run_folder: RunFolder, kinds: Sequence[type] = ()) -> spec.Model | None:
    """The spec that a run was given, if any; `kinds` are the dataclasses of parts from outside."""
    if not run_folder.model.is_file():
        return None
    try:
        data = json.loads(disk.read_text(run_folder.model, CheckpointError))
    except ValueError as error:
        raise CheckpointError(
            f"{run_folder.model} cannot be read: {error}", "start a new run"
        ) from None
    model: spec.Model = spec.from_dict(data, kinds)
    return model


def check_vocabulary(name: str, tokens: spec.FrontEnd, size: int) -> None:
    """A model has one embedding for each token of its tokenizer."""
    if not isinstance(tokens, spec.Tokens):
        raise SettingError(f"recipes are of text, not of {type(tokens).__name__}", "give Tokens")
    if tokens.vocabulary != size:
        raise SettingError(
            f"the model's {name} has {tokens.vocabulary} tokens, but the tokenizer {size}",
            f"give the model Tokens({size}), or another tokenizer",
        )


# --- specs of recipes -----------------------------------------------------------------------------


def build_initialized(description: spec.Model, recipe: Recipe) -> Any:
    """A core model with its initial weights, which follow from the seed."""
    # Weights are drawn on the CPU: the same on every device.
    torch.manual_seed(recipe.train.seed)
    core: nn.Module = build(description)
    initialize(core, recipe.initialization)
    set_activation_checkpointing(core, recipe)
    return core


def set_activation_checkpointing(model: nn.Module, recipe: Recipe) -> None:
    for module in model.modules():
        if isinstance(module, Stack):  # recurrent and convolutional ones store few activations
            module.activation_checkpointing = recipe.train.recompute
