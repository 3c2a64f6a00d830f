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
from regard.families import (
    bart,
    bert,
    electra,
    gpt2,
    memory_network,
    palm,
    recurrent,
    t5,
    transformer,
)
from regard.models import Model
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


def check_kind(
    model: spec.Model, classes: tuple[type[spec.ModelSpec], ...], objective: str
) -> None:
    """Refuses a spec of another kind than the objective trains."""
    if not isinstance(model, classes):
        names = " or ".join(f"spec.{kind.__name__}" for kind in classes)
        raise SettingError(
            f"{type(model).__name__} is no model for the objective {objective!r}", f"give a {names}"
        )


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


# --- the model of a recipe ------------------------------------------------------------------------


def max_length(model: Model, recipe: Recipe) -> int:
    """Tokens that a text may have: the recipe's limit, or that of the model's positions."""
    limit = recipe.data.max_length if recipe.is_finetuning else recipe.data.context
    return min(limit, model.spec.max_length or limit)


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


_CHANGES = (
    "d_model",
    "d_ff",
    "heads",
    "layers",
    "decoder_layers",
    "dropout",
    "attention_dropout",
    "feedforward_dropout",
    "activation",
    "attention",
    "memory",
    "compressed",
)
_TRANSFORMER_CHANGES = (*_CHANGES[:-2], "decoder_attention")
_BASELINE_CHANGES = ("d_model", "layers", "dropout")
_DECODER_FAMILIES = {"gpt": gpt2, "palm": palm}


def preset_changes(recipe: Recipe) -> dict[str, Any]:
    changes = {key: getattr(recipe.model, key) for key in _CHANGES}
    return {key: value for key, value in changes.items() if value is not None}


def translation_spec(
    recipe: Recipe, source_vocabulary: int, target_vocabulary: int
) -> spec.EncoderDecoder | spec.SequenceToSequence:
    """The spec of a recipe's translation model."""
    settings = recipe.model
    # One vocabulary for both sides allows one embedding matrix for all three (Section 3.4).
    joint = recipe.tokens.joint and recipe.tokens.target_tokenizer is None
    share = settings.share or ("all" if joint else "target")
    keys = _BASELINE_CHANGES if recipe.is_baseline else _TRANSFORMER_CHANGES
    values = {key: getattr(settings, key) for key in keys}
    changes = {key: value for key, value in values.items() if value is not None}
    changes |= {"share": share, "max_length": recipe.data.max_length}
    vocabularies = (source_vocabulary, target_vocabulary)
    if recipe.is_baseline:
        return recurrent.preset(recipe.model_name, recipe.preset, *vocabularies, **changes)
    changes |= _positions(recipe)
    changes["residual"] = spec.PreNorm() if settings.residual == "pre" else spec.PostNorm()
    return transformer.preset(recipe.preset, *vocabularies, **changes)


def _positions(recipe: Recipe) -> dict[str, Any]:
    """Position encodings: at the input (`position`), or inside attention (`relative`)."""
    # Added to the token embeddings.
    at_input: dict[str, spec.InputPosition] = {
        "sinusoidal": spec.Sinusoidal(),
        "learned": spec.LearnedPosition(recipe.data.max_length),
        "concatenated": spec.ConcatenatedPosition(64),  # concatenated, then mapped to d_model
    }
    # In the attention scores, or on queries and keys.
    inside: dict[str, spec.StackPosition] = {
        "relative": spec.RelativeKeys(16),  # k = 16, as in Shaw et al., Section 4.1
        "buckets": spec.T5Bias(),
        "alibi": spec.Alibi(),
        "rope": spec.Rope(),
    }
    kind = recipe.model.position or "sinusoidal"
    return {"position": at_input.get(kind), "relative": inside.get(kind)}


def language_model_spec(recipe: Recipe, vocabulary: int) -> spec.Decoder | spec.RecurrentDecoder:
    changes = preset_changes(recipe)
    if recipe.is_baseline:
        cell = cast(recurrent.Cell, recipe.model_name)
        return recurrent.language_model(cell, recipe.preset, vocabulary, **changes)
    presets = _DECODER_FAMILIES[recipe.model_name]
    return presets.preset(recipe.preset, vocabulary, recipe.data.context, **changes)


def masked_lm_spec(recipe: Recipe, vocabulary: int) -> spec.Encoder:
    return bert.preset(
        recipe.preset,
        vocabulary,
        recipe.data.context,
        next_sentence=recipe.train.next_sentence,
        **preset_changes(recipe),
    )


def electra_specs(recipe: Recipe, vocabulary: int) -> tuple[spec.Encoder, spec.Encoder]:
    return electra.preset(recipe.preset, vocabulary, recipe.data.context, **preset_changes(recipe))


def text_to_text_spec(recipe: Recipe, vocabulary: int) -> spec.EncoderDecoder:
    # T5 has relative position biases, BART learned positions.
    presets = t5 if recipe.objective == "span" else bart
    return presets.preset(recipe.preset, vocabulary, recipe.data.context, **preset_changes(recipe))


def task_spec(recipe: Recipe, vocabulary: int, task: spec.HeadTask, count: int) -> spec.Encoder:
    assert task == "classify"
    return bert.classifier(
        recipe.preset, vocabulary, recipe.data.context, count, **preset_changes(recipe)
    )


def memory_network_spec(recipe: Recipe, vocabulary: int) -> spec.MemoryNetwork:
    return memory_network.preset(recipe.preset, vocabulary, **preset_changes(recipe))
