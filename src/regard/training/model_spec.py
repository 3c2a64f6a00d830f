"""The spec of a new model: a preset with the recipe's changes, a file, or one given in Python.

It is written to state/model.json, so that a run resumes with the model it began with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard import spec
from regard.builder import build
from regard.core.attention import Attention
from regard.core.convolution import DilatedConvolution
from regard.core.feedforward import ConvFeedForward, FeedForward, GatedFeedForward
from regard.core.frontends.embedding import Table
from regard.core.linear import Linear
from regard.core.positions.positional_encoding import AxialPosition, LearnedPosition
from regard.core.positions.relative_position import T5Bias
from regard.core.stack import Stack
from regard.families import folder as folders
from regard.families import presets
from regard.families.encoders import electra
from regard.models import Model
from regard.system import disk
from regard.system.errors import CheckpointError, ModelError, SettingError
from regard.training.recipe.consistency import STARTING_POINT
from regard.training.recipe.options import Initialization, parse_image_tokens
from regard.training.recipe.schema import Recipe
from regard.training.recipe.sections import ModelSettings
from regard.training.run_folder import RunFolder

_ARCHITECTURE = tuple(key for key in ModelSettings.model_fields if key not in STARTING_POINT)
# Those that change a preset.
_CHANGES = tuple(key for key in _ARCHITECTURE if key not in ("model", "preset", "spec"))


_NAMED_CLASSES = 4  # in an error


def without_architecture(recipe: Recipe, changes: Collection[str]) -> Recipe:
    """The recipe without its sizes, which those of a given spec replace.

    `changes` are the settings that the caller named: a size among them would contradict the spec.
    """
    for key in _ARCHITECTURE:
        if key in changes:
            raise SettingError(
                f"{key} is decided by the model that was given", f"leave `{key}` or `model` out"
            )
    # How weights start is the recipe's choice also for a spec that comes from outside.
    settings = recipe.model.model_dump(include=set(STARTING_POINT))
    return recipe.model_copy(update={"model": ModelSettings.model_validate(settings)})


# Whatever reads a text has hidden states that a head can stand on.
TEXT_READERS = (
    spec.Encoder,
    spec.RecurrentEncoder,
    spec.Decoder,
    spec.RecurrentDecoder,
    spec.EncoderDecoder,
    spec.SequenceToSequence,
)
# What a model reads, by the name of its main input.
_MEDIA = {
    "input_ids": "text",
    "pixel_values": "images",
    "text_images": "images",
    "clips": "clips",
    "input_ids pixel_values": "a text and an image",
    "input_values": "waveforms",
    "input_features": "spectrograms",
    "spectrogram": "spectrograms",
    "past_values": "time series",
    "node_features": "graphs",
    "states": "trajectories",
    "story": "stories",
}


def check_kind(
    model: spec.Model,
    classes: tuple[type[spec.ModelSpec], ...],
    input_names: tuple[str, ...],
    objective: str,
) -> None:
    """Refuses a spec of another kind than the objective trains, or that reads something else."""
    if isinstance(model, classes) and model.reads in input_names:
        described: Any = model
        is_spectrogram = model.main_input_name == "input_features"
        if is_spectrogram and described.spectrogram.max_length is None:
            raise SettingError(
                "the spec does not say how long a window of sound is",
                "give its Spectrogram positions of a length, such as FixedPosition(1500)",
            )
        return
    names = " or ".join(f"spec.{kind.__name__}" for kind in classes)
    media = " or ".join(_MEDIA[name] for name in input_names)
    raise SettingError(
        f"a spec.{type(model).__name__} that reads {_MEDIA[model.reads]} is not a model "
        f"for the objective {objective!r}",
        f"give a {names} that reads {media}, or another objective",
    )


def read(run_folder: RunFolder, kinds: Sequence[type] = ()) -> spec.Model | None:
    """The spec that a run began with; `kinds` are the dataclasses of parts from outside.

    None for a run that has not yet described its model.
    """
    if not run_folder.model.is_file():
        return None
    data = disk.read_json(run_folder.model, CheckpointError)
    model: spec.Model = spec.from_dict(data, kinds)
    return model


def check_vocabulary(name: str, tokens: spec.FrontEnd, size: int) -> None:
    """A model has an embedding for each token of its tokenizer; it may have more (padding)."""
    if not isinstance(tokens, spec.Tokens):
        raise SettingError(f"recipes are of text, not of {type(tokens).__name__}", "give Tokens")
    if tokens.vocabulary < size:
        raise SettingError(
            f"the model's {name} has {tokens.vocabulary} tokens, but the tokenizer {size}",
            f"give the model Tokens({size}), or another tokenizer",
        )


def check_classes(description: Any, labels: Sequence[str]) -> None:
    """A classifier has one output for each class of the data."""
    head: spec.ClassifierHead | spec.DistilledHead = description.labels
    if head.count != len(labels):
        raise SettingError(
            f"the model has {head.count} classes, but the data {len(labels)}: "
            + ", ".join(labels[:_NAMED_CLASSES]),
            f"give its {type(head).__name__} a count of {len(labels)}",
        )


# --- the model of a recipe ------------------------------------------------------------------------


def max_length(model: Model, recipe: Recipe) -> int:
    """Tokens that a text may have: the recipe's limit, or that of the model's positions."""
    limit = recipe.data.max_length if recipe.is_finetuning else recipe.data.context
    return min(limit, model.spec.max_length or limit)


def with_fitting_context(recipe: Recipe, base: Model | None, kinds: Sequence[type]) -> Recipe:
    """The recipe with the default context cut to the positions of the model to fine-tune."""
    data = recipe.data
    if not recipe.is_finetuning or "context" in data.model_fields_set:
        return recipe
    of_base = folders.peek(Path(str(recipe.tune.base)), kinds).spec if base is None else base.spec
    positions = of_base.max_length
    if positions is None or data.context <= positions:
        return recipe
    return recipe.model_copy(update={"data": data.model_copy(update={"context": positions})})


def check_context(base: Model, recipe: Recipe) -> None:
    """Refuses a context that the model to fine-tune has no positions for."""
    context = recipe.data.context
    positions = base.spec.max_length
    if positions is not None and context > positions:
        raise SettingError(
            f"context {context} is more than the {positions} tokens the model sees",
            f"give --context {positions}, or less",
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
            module.activation_checkpointing = recipe.train.gradient_checkpointing


def describe(
    recipe: Recipe, vocabulary: int, target_vocabulary: int | None = None, **changes: Any
) -> spec.Model:
    """The spec of the recipe's model: its file, or a preset with the recipe's changes.

    `changes` are those that the objective makes.
    """
    if recipe.model.spec is not None:
        return _with_vocabulary(read_file(Path(recipe.model.spec)), vocabulary, target_vocabulary)
    settings = recipe.model.model_dump(include=set(_CHANGES), exclude_none=True)
    if target_vocabulary is not None:
        changes["target_vocabulary"] = target_vocabulary
        # One vocabulary for both sides allows one embedding matrix for all three (Section 3.4).
        joint = recipe.tokens.joint and recipe.tokens.target_tokenizer is None
        settings.setdefault("tie_embeddings", "all" if joint else "target")
    context = _context(recipe)
    return presets.preset(recipe.preset_name, vocabulary, context, **settings, **changes)


def _context(recipe: Recipe) -> int | None:
    """The longest input: pairs have the length of sentences, texts that of the context.

    None leaves the preset's: the texts next to images are short (CLIP's have 77 tokens).
    """
    data = recipe.data
    match recipe.objective_settings.data:
        case "pairs":
            return data.max_length
        case "images" if recipe.objective == "draw":  # words, and behind them an image
            return data.context + parse_image_tokens(recipe.tokens.image_tokens).length
        case "trajectories":  # whose context is that of an episode
            return None
        case "images" | "series" | "graph" if "context" not in data.model_fields_set:
            return None
        case _:
            return data.context


def describe_masked_images(recipe: Recipe) -> spec.Encoder:
    """The spec of the recipe's masked autoencoder; any other encoder of images becomes SimMIM's."""
    # There are no classes: the number is one that every preset takes.
    description: Any = describe(recipe, vocabulary=2)
    if description.pixels is None:
        description = spec.masked_image_model(description)
    return with_hidden_patches(description, recipe.train.mask_ratio)


def with_hidden_patches(description: spec.Encoder, share: float | None) -> spec.Encoder:
    """A model with a decoder of pixels that hides this share of the patches, or its own."""
    patches = description.patches
    share = share or patches.masked_share
    head = description.pixels
    if isinstance(head, spec.PixelShuffleHead) and head.stride != spec.image_stride(description):
        raise ModelError(
            f"squares of {head.stride} pixels do not make an image of {patches.size}",
            "give a PixelShuffleHead whose stride is the image's side by positions along it",
        )
    if int(patches.maskable * (1 - share)) == 0:
        raise ModelError(
            f"with {share:.0%} of the patches masked, none is left to see",
            "give smaller patches (--patch), or a smaller share (--mask-ratio)",
        )
    return replace(description, input=replace(patches, masked_share=share))


def describe_with_head(
    recipe: Recipe, vocabulary: int, task: spec.HeadTask, count: int
) -> spec.Model:
    """The spec of the recipe's model with a head for a task."""
    return with_task_head(describe(recipe, vocabulary), recipe.model_name, task, count)


def with_task_head(
    description: spec.Model, model_type: str, task: spec.HeadTask, count: int
) -> spec.Model:
    """A model of text with a head for a task in place of its other heads."""
    # transformers' default names; those of the data go into config.json later.
    labels = [f"LABEL_{i}" for i in range(count)]
    try:
        # As transformers has it, if the family is known there.
        config = folders.describe(description, model_type=model_type)
        return folders.with_classifier(config, task, labels)[0]
    except ModelError:
        return spec.with_label_head(description, task, count)


def electra_specs(recipe: Recipe, vocabulary: int) -> tuple[spec.Encoder, spec.Encoder]:
    """The discriminator and the generator."""
    settings = recipe.model.model_dump(include=set(_CHANGES), exclude_none=True)
    return electra.preset(recipe.preset, vocabulary, recipe.data.context, **settings)


# --- specs from files -----------------------------------------------------------------------------


def read_file(path: Path) -> spec.Model:
    """The spec in a file: our own as JSON or TOML, or a config.json of Hugging Face's."""
    if path.is_dir():
        raise SettingError(f"{path} is a folder, not a spec", "give a JSON or TOML file in it")
    if path.name == "config.json":
        return folders.peek(path.parent).spec
    read = disk.read_toml if path.suffix == ".toml" else disk.read_json_object
    model = spec.from_dict(read(path, SettingError))
    if not isinstance(model, spec.Model):
        raise ModelError(
            f"{path} describes a {type(model).__name__}, which is not a model by itself",
            "describe an Encoder, a Decoder, an EncoderDecoder, …",
        )
    return model


def _with_vocabulary(
    description: spec.Model, vocabulary: int, target_vocabulary: int | None
) -> spec.Model:
    """The spec with one embedding for each token of its tokenizer."""
    sizes = dict.fromkeys(description.embeddings, vocabulary)
    if target_vocabulary is not None and "target" in sizes:
        sizes["target"] = target_vocabulary
    changed: dict[str, Any] = {
        name: replace(tokens, vocabulary=sizes[name])
        for name, tokens in description.embeddings.items()
    }
    return replace(description, **changed)


# --- initial weights ------------------------------------------------------------------------------


@torch.no_grad()
def initialize(model: nn.Module, choice: Initialization) -> None:
    """Draws every matrix and table from torch's default generator; biases stay 0 and norms 1."""
    if choice.deviation is None:
        return  # the modules were initialized by Xavier when they were built
    for module in model.modules():
        # A shared table is visited once: modules() yields each module once.
        tables: Sequence[Tensor] = ()
        if isinstance(module, Linear | Table):
            tables = (module.weight,)
        elif isinstance(module, LearnedPosition | T5Bias):
            tables = (module.table,)
        elif isinstance(module, ConvFeedForward):
            tables = (module.inner.weight, module.outer.weight)
        elif isinstance(module, AxialPosition):
            tables = tuple(module.tables)
        for table in tables:
            table.normal_(std=choice.deviation)
    if choice.scales_residuals:
        _scale_residual_projections(model)


def _scale_residual_projections(model: nn.Module) -> None:
    """GPT-2, Section 2.3: weights of residual layers are divided by √N, their number."""
    # Each adds its output to the residual stream, whose variance would grow with their number.
    projections: list[Linear | DilatedConvolution] = []
    for module in model.modules():
        if isinstance(module, Attention):
            projections.append(module.output)
        elif isinstance(module, FeedForward | GatedFeedForward | ConvFeedForward):
            projections.append(module.outer)
    for projection in projections:
        projection.weight.div_(math.sqrt(len(projections)))
