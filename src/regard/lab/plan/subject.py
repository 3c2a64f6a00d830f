"""The subject of a plan: a model, its objective, the batch, and the settings of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import spec as specs
from regard.core.frontends.trajectories import TOKENS
from regard.families import folder as folders
from regard.families import presets
from regard.families.encoders import electra
from regard.lab.plan.workload import Sizes, StepSettings, Workload, workload
from regard.lab.show.resolve import closest
from regard.system.errors import ModelError, SettingError
from regard.training import model_spec
from regard.training.objectives.classification import sound_classifier
from regard.training.objectives.speech import contrastive_encoder
from regard.training.recipe import loading
from regard.training.recipe.objectives import objective_of
from regard.training.recipe.schema import Recipe
from regard.training.recipe.sections import STEPS_READ

DEFAULT_ROWS = 8
LARGE = 10**9  # parameters from which one row is planned
MAX_DEFAULT_LENGTH = 2048
SENTENCE = 64  # tokens of a long sentence, where a recipe of pairs only has an upper limit
SPEECH_FRAMES = 1500  # positions of 30 seconds, for encoders without a limit
SPEECH_SAMPLES = 10 * 16_000  # ten seconds, for models that read samples
# Of a micro-batch: its token ids are real tensors, and no device holds the activations of more.
MOST_POSITIONS = 2**25
# Nodes of a graph: papers of Cora, and the atoms of a molecule.
NODES = {"nodes": 2708, "graphs": 25}
SPEC_FILES = (".json", ".toml")
NO_OBJECTIVE = "no objective is known: the squared norm of the outputs stands for a loss"
LABELS = 2  # classes, where the data would say how many
# What is learnt from the arguments that a call of the model needs.
_BY_INPUTS = {
    "input_ids": "masked",
    "input_ids decoder_input_ids": "translate",
    "input_ids pixel_values": "image_text",
    "input_features decoder_input_ids": "transcribe",
    "pixel_values": "images",
    "clips": "clips",
    "pixel_values decoder_input_ids": "caption",
    "text_images decoder_input_ids": "caption",
    "story question": "stories",
    "input_values": "sounds",
    "input_features": "sounds",
    "past_values": "forecast",
    "node_features": "nodes",
    "states timesteps": "act",
}
_HEAD_TASKS: dict[str, specs.HeadTask] = {
    "classify": "classify",
    "tag": "tag",
    "answer": "answer",
    "regress": "classify",
}


@dataclass(frozen=True)
class Request:
    """What the user changes: None leaves the choice to the recipe or to the model."""

    batch: int | None = None  # rows
    length: int | None = None
    precision: str | None = None
    accumulate: int | None = None
    recompute: bool | None = None
    vocabulary: int | None = None
    tokens: float | None = None  # of the whole training


@dataclass(frozen=True)
class Subject:
    """A model with all that decides the cost of its training step."""

    name: str
    description: specs.Model
    objective: str
    sizes: Sizes
    settings: StepSettings
    generator: specs.Model | None = None  # ELECTRA's, which is trained along
    tokens: float | None = None  # of the whole training, in positions
    notes: tuple[str, ...] = ()  # what had to be assumed

    @property
    def workload(self) -> Workload:
        return workload(self.objective, self.description, self.sizes)

    @property
    def positions_per_step(self) -> int:
        return self.sizes.positions * self.settings.accumulate


def resolve(target: str, request: Request) -> Subject:
    """The subject that a user names: a recipe, a preset, a config.json, a spec, or a folder."""
    path = Path(target)
    # A recipe first: the names of recipes and presets do not overlap.
    if target in loading.packaged() or path.suffix == ".toml":
        return _of_recipe(target, request)
    if path.is_dir() or path.is_file():
        return _of_file(path, request)
    if target not in presets.names():
        raise ModelError(
            f"{target!r} is not a recipe, preset, config.json or model folder",
            closest(target, [*presets.names(), *loading.packaged()]),
        )
    return _of_preset(target, request)


# --- presets, folders and files -------------------------------------------------------------------


def _of_preset(name: str, request: Request) -> Subject:
    about = presets.about(name)
    family = about.name.partition(":")[0]
    description = presets.preset(name, request.vocabulary, _context(about, request))
    objective = objective_of(family, about.kind, has_text=False)
    # A recurrent language model; the cell's bare name is a translator.
    if family.endswith("-lm"):
        objective = "causal"
    generator = None
    if objective == "replaced":
        size = about.name.partition(":")[2]
        description, generator = electra.preset(
            size, request.vocabulary or about.vocabulary, about.context
        )
    objective = _of_heads(objective, description)
    _require_effect(request, about.name, objective, description, has_vocabulary=False)
    return _subject(about.name, description, objective, request, about.context, generator)


def _context(about: presets.Preset, request: Request) -> int | None:
    """A longer input than the preset has positions for needs more of them."""
    text = about.kind in ("encoder-decoder", "decoder", "encoder")
    if text and request.length is not None and request.length > about.context:
        return request.length
    return None


def _of_heads(objective: str, description: Any) -> str:
    """The objective of a model's heads, where what it reads leaves several."""
    each = description.labels is not None and description.labels.each
    if objective == "masked" and description.part(specs.SpectrogramHead) is not None:
        return "speak"
    if objective == "masked" and description.part(specs.HifiGan) is not None:
        return "outputs"
    if objective == "masked" and description.head is None:
        # An encoder without a head over the vocabulary learns vectors, or its labels.
        objective = "tag" if each else "classify"
        return objective if description.labels is not None else "contrastive"
    if description.task == "segment":
        return "segment"
    has_pixels = description.part(specs.PixelDecoder, specs.PixelShuffleHead)
    if objective in ("images", "clips") and has_pixels:
        return f"masked_{objective}"
    if objective == "sounds" and description.part(specs.ContrastiveHead):
        return "speech_contrastive"
    if objective == "sounds" and each:
        return "ctc"
    if objective == "nodes" and description.task == "classify":
        return "graphs"
    return objective


def _of_file(path: Path, request: Request) -> Subject:
    if path.is_dir():
        description = folders.peek(path).spec
        name = path.name or str(path)
    elif path.suffix in SPEC_FILES:
        description = model_spec.read_file(path)
        name = path.parent.name if path.name == "config.json" else path.stem
    else:
        raise ModelError(
            f"{path} is not a recipe, config.json or spec",
            "pass a .json or .toml file, or a model folder",
        )
    objective = _objective(description)
    _require_effect(request, str(path), objective, description, has_vocabulary=True)
    return _subject(name, description, objective, request, description.max_length or SENTENCE)


def _objective(description: Any) -> str:
    """What a model of unknown family learns, by what it reads and writes."""
    inputs = [one for one in description.inputs if one.required and one.kind != "more"]
    needed = [one.content or one.name for one in inputs]
    if needed == ["input_ids"] and description.kv_cache_size is not None:
        return "causal"
    if description.reads == "input_ids pixel_values":  # in one stream
        return "vqa" if description.labels else "outputs"
    return _of_heads(_BY_INPUTS.get(" ".join(needed), "outputs"), description)


def _subject(
    name: str,
    description: specs.Model,
    objective: str,
    request: Request,
    context: int,
    generator: specs.Model | None = None,
) -> Subject:
    from regard.builder.parameter_count import parameter_count

    rows = request.batch
    if rows is None:
        # One row of a large model says enough, and is traced in seconds.
        is_large = objective == "nodes" or parameter_count(description) >= LARGE
        rows = 1 if is_large else DEFAULT_ROWS
    # A policy's is that of an episode, of which it reads some steps.
    context = STEPS_READ if objective == "act" else min(context, MAX_DEFAULT_LENGTH)
    length = request.length or _default_length(objective, description, context)
    settings = StepSettings(
        precision=request.precision or "float32",
        accumulate=request.accumulate or 1,
        recompute=bool(request.recompute),
    )
    sizes = _sizes(objective, description, rows, length)
    notes = (NO_OBJECTIVE,) if objective == "outputs" else ()
    return Subject(
        name, description, objective, sizes, settings, generator, tokens=request.tokens, notes=notes
    )


def _default_length(objective: str, description: Any, context: int) -> int:
    if description.main_input_name == "input_values":
        return SPEECH_SAMPLES
    if objective in NODES:
        return NODES[objective]
    if objective == "act":
        return TOKENS * context
    return min(context, SENTENCE) if objective == "translate" else context


def _sizes(objective: str, description: Any, rows: int, length: int) -> Sizes:
    if rows < 1 or length < 1:
        raise SettingError(
            f"a batch of {rows} rows of {length} positions is empty",
            "set --batch and --length to 1 or more",
        )
    if rows * length > MOST_POSITIONS:
        raise SettingError(
            f"{rows:,} rows of {length:,} positions do not fit on any device",
            "reduce --batch or --length, and use --accumulate N for larger updates",
        )
    fixed = _fixed_length(objective, description)
    if fixed is not None:
        return Sizes(rows, fixed, fixed)
    limit = description.max_length
    if objective not in ("ctc", "stories") and limit is not None and length > limit:
        raise SettingError(
            f"--length {length} exceeds the {limit} positions of this model",
            f"use --length {limit} or less",
        )
    source = length
    if objective == "transcribe":
        source = _speech_positions(description)
    elif objective == "caption":
        source = int(description.image_positions)
    return Sizes(rows, length, source)


def _fixed_length(objective: str, description: Any) -> int | None:
    """The positions of a row whose size the model decides: an image, a window of a series, or a
    spectrogram."""
    if description.main_input_name == "pixel_values" and objective != "caption":
        return int(description.image_positions)
    if objective == "draw":
        return int(description.max_length)
    if objective == "sounds" and description.main_input_name == "input_features":
        return _speech_positions(description)
    if objective != "forecast":
        return None
    window = description.series_window
    if description.is_encoder_decoder:
        return int(description.input.length + window.horizon)
    if not description.stacks:
        return int(window.channels)
    return int(window.channels * description.windows.positions)


def _speech_positions(description: Any) -> int:
    """Positions of a recording in the encoder, which is padded to all that the model has."""
    positions: int | None = getattr(description.spectrogram.position, "length", None)
    return positions or SPEECH_FRAMES


def _require_effect(
    request: Request, name: str, objective: str, description: Any, has_vocabulary: bool
) -> None:
    """Refuses options that have no effect on this model."""
    if request.vocabulary is not None and has_vocabulary:
        raise SettingError(
            f"--vocabulary has no effect: {name} has a fixed vocabulary", "remove --vocabulary"
        )
    if request.length is not None and _fixed_length(objective, description) is not None:
        raise SettingError(
            f"--length has no effect: the size of what {name} reads is fixed", "remove --length"
        )


# --- recipes --------------------------------------------------------------------------------------


def _of_recipe(target: str, request: Request) -> Subject:
    changes: dict[str, Any] = {
        key: value
        for key, value in (
            ("precision", request.precision),
            ("accumulate", request.accumulate),
            ("gradient_checkpointing", request.recompute),
            ("vocabulary", request.vocabulary),
        )
        if value is not None
    }
    # No file is read, so it does not matter where they are.
    recipe, name = loading.choose(target, changes, data_root=".")
    return of_recipe(recipe, name, request)


def of_recipe(recipe: Recipe, name: str, request: Request) -> Subject:
    """The training of a recipe, as far as it is known without the data."""
    description, generator, notes = _describe(recipe)
    _require_effect(request, name, recipe.objective, description, recipe.is_finetuning)
    limit = description.max_length or math.inf
    context = recipe.data.max_length
    if recipe.objective != "translate":
        context = int(min(recipe.steps_read or recipe.data.context, limit))
    length = request.length or _default_length(recipe.objective, description, context)
    train = recipe.train
    rows = request.batch
    if rows is None:
        row = _sizes(recipe.objective, description, 1, length).positions
        rows = 1 if recipe.objective == "nodes" else max(1, train.batch_tokens // row)
    sizes = _sizes(recipe.objective, description, rows, length)
    settings = StepSettings(train.precision, train.accumulate, train.gradient_checkpointing)
    tokens = request.tokens or float(train.steps * train.accumulate * sizes.positions)
    # Epochs of data that nobody has counted yet, or minutes of a machine.
    if recipe.tune.epochs is not None or recipe.tune.minutes is not None:
        tokens = request.tokens or 0.0
    return Subject(
        name,
        description,
        recipe.objective,
        sizes,
        settings,
        generator,
        tokens=tokens or None,
        notes=notes,
    )


def _describe(recipe: Recipe) -> tuple[Any, specs.Model | None, tuple[str, ...]]:
    """The spec of a recipe's model without its data, its generator, and what was assumed."""
    vocabulary = recipe.tokens.vocabulary
    assumed = f"{vocabulary:,} tokens; the tokenizer may learn fewer"
    if recipe.is_finetuning:
        return folders.peek(Path(str(recipe.tune.base))).spec, None, ()
    if recipe.objective == "replaced":
        return *model_spec.electra_specs(recipe, vocabulary), (assumed,)
    # How many labels there are is known to the data; the head is small beside the model.
    if recipe.objective in _HEAD_TASKS:
        task = _HEAD_TASKS[recipe.objective]
        described = model_spec.describe_with_head(recipe, vocabulary, task, LABELS)
        return described, None, (assumed, f"{LABELS} labels")
    count = presets.about(recipe.preset_name).vocabulary  # of classes, or of channels
    notes: tuple[str, ...] = ()
    match recipe.objective:
        case "translate":
            description = model_spec.describe(recipe, vocabulary, vocabulary)
            notes = (assumed,)
        case "masked_images" | "masked_clips":
            description = model_spec.describe_masked_images(recipe)
        case "speech_contrastive":
            description = contrastive_encoder(model_spec.describe(recipe, 1))
        case "sounds":
            description = sound_classifier(model_spec.describe(recipe, count), LABELS)
            notes = (f"{LABELS} labels",)
        case "images" | "clips" | "detect" | "segment" | "ctc" | "forecast":
            description = model_spec.describe(recipe, count)
            units = dict.fromkeys(("images", "clips", "detect", "segment"), f"{count:,} classes")
            units["forecast"] = f"{count} channels"
            notes = tuple(units[name] for name in units if name == recipe.objective)
        case "nodes" | "graphs" as level:
            task = "tag" if level == "nodes" else "classify"
            description = model_spec.describe(recipe, count, task=task)
            notes = (f"{count} classes", f"graphs of {NODES[level]:,} nodes")
        case "act":
            description = model_spec.describe(recipe, count)
            notes = (f"actions of {count} numbers",)
        case _:
            description = model_spec.describe(recipe, vocabulary)
            notes = (assumed,)
    return description, None, notes


def with_batch(subject: Subject, rows: int, accumulate: int) -> Subject:
    """The same update in smaller micro-batches."""
    sizes = replace(subject.sizes, rows=rows)
    return replace(subject, sizes=sizes, settings=replace(subject.settings, accumulate=accumulate))
