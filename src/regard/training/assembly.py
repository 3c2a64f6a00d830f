"""Assembly of a run: model × data × objective, each chosen by itself.

There is one way for all: new models and fine-tuned ones, every wiring, every kind of data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import spec
from regard.builder import edit
from regard.core.frontends.embedding import Embedding
from regard.core.meta_parameters import parameters_on_meta
from regard.data import training_coverage
from regard.data.word_vectors import read_vectors
from regard.models import Model, Translator, load
from regard.models.saving import (
    PROCESSOR_FILES,
    TEXT_FILES,
    Files,
    config_json,
    copy_companion_files,
)
from regard.system import disk
from regard.system.errors import SettingError
from regard.training import model_spec
from regard.training.engine.optimizer import freeze
from regard.training.engine.step_time import seconds_of_update
from regard.training.objectives.objective import Objective
from regard.training.parallel.strategy import move_buffers
from regard.training.recipe.consistency import STARTING_POINT
from regard.training.recipe.schema import Recipe
from regard.training.setup import Setup

UNKNOWN_SHARE = 0.1  # of the tokens of text to fine-tune on, from which on a warning is due
# Parameters of a new head, which LoRA does not freeze.
_NEW_HEADS = ("labels.", "pool.")


def assemble(
    setup: Setup, *, again: bool = False, description: spec.Model | None = None
) -> Objective:
    """The objective of a run: its data prepared, its model made, its folder described.

    `again` is for a run that was assembled before, with the weights it began with. Nothing is
    written then: the run may be going on in another process. `description` is another model to
    learn the same, which begins with weights of its own.
    """
    objective: type[Objective] = setup.objective
    if setup.parts.model is not None and not again:
        setup.parts.model.save(setup.run_folder.base)  # what a resumed run starts from
    base = _open_base(setup) if setup.recipe.is_finetuning else None
    data = objective.source_class.prepare(setup, base)
    if base is None:
        if description is None and not again:
            setup = _with_fitting_size(setup, data)
        model = new_model(setup, data, description)
    else:
        model = _adapted(base, data, setup)
    if again:
        return objective.create(model, data, setup)
    if base is not None:
        _write_base_files(setup, model, base.changed_files)
    else:
        for name, content in objective.source_class.files(model, setup).items():
            disk.write_json(setup.run_folder.folder / name, content)
    created = resolve(setup, model, data)
    _note_coverage(created)
    return created


# --- new models -----------------------------------------------------------------------------------


def new_model(setup: Setup, data: Any, description: spec.Model | None = None) -> Model:
    """A new model with its initial weights and its tokenizer, on its device."""
    objective: type[Objective] = setup.objective
    description = description or model_spec.read(setup.run_folder, setup.parts.kinds)
    if description is None:
        description = objective.describe(setup, data)
        # Stored: the presets of a later version, or a file, may say something else.
        disk.write_json(setup.run_folder.model, spec.to_dict(description))
    # Of a sharded model only the main rank draws the weights; the others receive their parts.
    receives = setup.shards_model and not setup.ranks.is_main
    with parameters_on_meta() if receives else nullcontext():
        core = model_spec.build_initialized(description, setup.recipe)
    model = objective.with_tokenizer(core, description, data, setup)
    _set_embeddings(model, setup)
    _move(core, setup)
    return model


def _move(core: nn.Module, setup: Setup) -> None:
    """To the device; parameters of a sharded model stay on the host until they are cut."""
    if setup.shards_model:
        move_buffers(core, setup.device)
    else:
        core.to(setup.device)


def _set_embeddings(model: Model, setup: Setup) -> None:
    """Word vectors to start from, and frozen embeddings, if the recipe asks for them."""
    settings = setup.recipe.model
    tables: list[nn.Module] = []
    for name, embedding in model.model.named_children():
        if not isinstance(embedding, Embedding):
            continue
        table = embedding.table
        tokenizer = model.output_tokenizer if name == "target" else model.input_tokenizer
        # With a shared vocabulary both sides are one tensor.
        is_first = not any(table is other for other in tables)
        if settings.pretrained_embeddings and is_first and not table.weight.is_meta:
            read_vectors(
                Path(settings.pretrained_embeddings), tokenizer, table.weight.data, setup.say
            )
        if settings.freeze_embeddings:
            table.weight.requires_grad_(False)
        tables.append(table)
    if not tables and (settings.pretrained_embeddings or settings.freeze_embeddings):
        raise SettingError("this model has no token embeddings", "leave out the word vectors")


# --- models to fine-tune --------------------------------------------------------------------------


def _open_base(setup: Setup) -> Model:
    # In float32 whatever the file has: updates of 1e-5 vanish in a bfloat16 of 8 bits.
    parts = setup.parts
    if parts.model is not None and not setup.shards_model:
        base = parts.model.to("cpu", "float32")
    else:
        options: Any = {"device": "cpu", "dtype": "float32", "say": setup.say, "kinds": parts.kinds}
        base = load(setup.base, **options)
        if base.spec.is_encoder_decoder and not setup.objective.can_tune(base):
            # A base model (BartModel), whose head is tied.
            base = load(setup.base, Translator, **options)
    setup.objective.check_base(base, setup)
    size = setup.recipe.model.image_size
    return base if size is None else base.with_image_size(size)


def _adapted(base: Model, data: Any, setup: Setup) -> Model:
    """The base with the head that the objective needs, and what is trained of it.

    That is everything, what is above the frozen blocks, or LoRA and new heads.
    """
    model: Model = setup.objective.adapt(base, data, setup)
    classes = _classes(model)
    replaced = set(_classes(base)).difference(classes)
    if classes and replaced:
        setup.say(
            f"warning: the model's classes {', '.join(sorted(replaced))} are not among those of "
            f"the data, {', '.join(classes)}: its head is replaced by a new one\n"
            "  → name the labels of the data as the model does, if they mean the same"
        )
    model.coverage = base.coverage  # a new head stands on a stack that was trained before
    tune = setup.recipe.tune
    if tune.lora:
        torch.manual_seed(setup.recipe.train.seed)
        modules = tune.lora_in.split(",")
        # Freezes the model and adds trainable low-rank factors.
        edit.lora(model.model, tune.lora, tune.lora_alpha, tune.lora_dropout, modules)
        for name, parameter in model.model.named_parameters():
            if name.startswith(_NEW_HEADS):
                parameter.requires_grad_(True)
    if tune.freeze is not None:
        freeze(model.model, tune.freeze)
    model_spec.set_activation_checkpointing(model.model, setup.recipe)
    _move(model.model, setup)
    return model


def _classes(model: Any) -> list[str]:
    """The names of the classes that a model has a head for."""
    if getattr(model.spec, "labels", None) is None:
        return []
    return list(model.labels or ())


# --- files ----------------------------------------------------------------------------------------


def _write_base_files(setup: Setup, model: Model, changed: Files) -> None:
    """The run folder holds the complete model in the layout it came in."""
    folder = setup.run_folder.folder
    # Tokenizer and processor files, as they came.
    copy_companion_files(setup.base, folder, (*TEXT_FILES, *PROCESSOR_FILES))
    for name, content in changed.items():
        disk.write_json(folder / name, content)
    disk.write_json(folder / "config.json", config_json(model.spec, model.config))
    for name, content in model.files().items():
        if name == "tokenizer.json" and not (folder / name).exists():
            disk.write_file(folder / name, str(content))


def _note_coverage(objective: Objective) -> None:
    """What of its inputs the model will have seen, for its warnings of all others.

    Of a model that is fine-tuned, says how much of the new text it does not know.
    """
    setup = objective.setup
    folder = setup.run_folder.folder
    model = objective.trained_model
    if (folder / training_coverage.FILE).exists():
        model.coverage = training_coverage.read_coverage(folder)
        return
    statistics = objective.input_statistics()
    if statistics is None:
        return
    coverage = statistics.coverage
    if setup.recipe.is_finetuning:
        # A memory network has a tokenizer, although its positions are sentences.
        tokenizer = model.tokenizer
        unknown = model.coverage.unseen_tokens - tokenizer.special_ids
        if (unk := tokenizer.special_token_id("unk")) is not None:
            unknown |= {unk}
        share = statistics.share_of(unknown, tokenizer.special_ids)
        # It learns nothing from words that it has no token for, and little from unseen ones.
        if share > UNKNOWN_SHARE:
            setup.say(
                f"warning: {share:.0%} of the tokens are unknown to the model being fine-tuned\n"
                "  → use a model trained on this kind of text"
            )
        coverage = training_coverage.merged(model.coverage, coverage)
    coverage.write(folder)
    model.coverage = coverage


EPOCHS = 30  # of a run that names neither steps nor epochs
FEWEST_STEPS = 300
MOST_STEPS = 20_000
SMALLEST = "tiny"
ENOUGH_STEPS = 4000  # for a model of the usual size to learn something
VALIDATION_SHARE = 0.1  # of a run of so many minutes, at most
PLANNED_SHARE = 0.9  # of these; the rest is for logging and saving, which are not measured
PAPER_WARMUP = 4000  # Section 5.3


def resolve(setup: Setup, model: Model, data: Any) -> Objective:
    """The objective of a run, with the final recipe as its setup's; nothing changes that later.

    It is stored in the run folder: a run is resumed with the same numbers.
    """
    objective: type[Objective] = setup.objective
    unset = setup.run_folder.unset_settings()
    if not unset:
        return objective.create(model, data, setup)
    created = _created(setup, model, data)
    setup = created.setup
    updates = math.ceil(created.batches_per_epoch() / setup.recipe.train.accumulate)
    if "steps" in unset and setup.recipe.tune.minutes is not None:
        timed = _steps_in_time(created, setup.recipe.tune.minutes, unset)
        setup = _with_settings(setup, timed)
        unset = [key for key in unset if key not in timed]
    created.setup = _with_settings(setup, _schedule(setup.recipe, unset, updates, created.d_model))
    setup.run_folder.store(created.setup.recipe)
    return created


def _created(setup: Setup, model: Model, data: Any) -> Objective:
    """The objective of a run, with batches that fit its data unless their size was given."""
    objective: type[Objective] = setup.objective
    if "batch_tokens" in setup.run_folder.unset_settings():
        batch_tokens = objective.fitting_batch_tokens(model, data, setup)
        setup = _with_settings(setup, {"batch_tokens": batch_tokens})
    return objective.create(model, data, setup)


def _with_fitting_size(setup: Setup, data: Any) -> Setup:
    """The smallest preset, where nobody named a size and the usual one learns little in time."""
    recipe = setup.recipe
    minutes = recipe.tune.minutes
    unset = setup.run_folder.unset_settings()
    is_named = recipe.model.model_dump(exclude=set(STARTING_POINT), exclude_defaults=True)
    if minutes is None or "steps" not in unset or is_named or recipe.preset == SMALLEST:
        return setup
    if model_spec.read(setup.run_folder, setup.parts.kinds) is not None:
        return setup  # of a model given in Python, or of a run that began before
    model = new_model(setup, data, setup.objective.describe(setup, data))
    steps = 60 * minutes / seconds_of_update(_created(setup, model, data))
    if steps >= ENOUGH_STEPS:
        return setup
    setup.say(f"preset {SMALLEST}: {recipe.preset} could take only {steps:,.0f} steps in this time")
    settings = recipe.model.model_copy(update={"preset": SMALLEST})
    setup = replace(setup, recipe=recipe.model_copy(update={"model": settings}))
    setup.run_folder.store(setup.recipe, unset)
    return setup


def _steps_in_time(objective: Objective, minutes: float, unset: Collection[str]) -> dict[str, int]:
    """As many steps as end in time, with validations that take at most a tenth of it."""
    setup = objective.setup
    if setup.ranks.several:
        raise SettingError("minutes are measured in one process", "set steps instead")
    begun = time.perf_counter()
    objective.model.eval()
    objective.validate()
    validation = time.perf_counter() - begun
    seconds = seconds_of_update(objective)
    interval = setup.recipe.train.validate_every
    if "validate_every" in unset:
        interval = math.ceil((1 / VALIDATION_SHARE - 1) * validation / seconds)
    # The last validation gives the scores.
    rest = 60 * minutes - (time.perf_counter() - setup.started) - validation
    steps = int(PLANNED_SHARE * rest / (seconds + validation / interval))
    if steps < 1:
        raise SettingError(
            f"{minutes:g} minutes were over before the first step", "give more, or a smaller model"
        )
    setup.say(f"{minutes:g} minutes: {steps:,} steps of {seconds:.2g} s, with validation")
    if "validate_every" in unset:
        interval = max(interval, min(setup.recipe.train.validate_every, steps // 10))
    return {"steps": steps, "validate_every": interval}


def _with_settings(setup: Setup, changes: Mapping[str, Any]) -> Setup:
    train = setup.recipe.train.model_copy(update=changes)
    return replace(setup, recipe=setup.recipe.model_copy(update={"train": train}))


def _schedule(recipe: Recipe, unset: Collection[str], updates: int, d_model: int) -> dict[str, Any]:
    """The unset ones of the settings that follow from the number of updates in an epoch."""
    train = recipe.train
    epochs = recipe.tune.epochs
    steps = train.steps
    if epochs is not None:
        steps = max(1, math.ceil(epochs * updates))
    elif "steps" in unset:
        steps = min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * updates))
    values = {
        "steps": steps,
        "warmup_steps": max(1, int(recipe.tune.warmup_ratio * steps)),
        "log_every": min(train.log_every, updates),
    }
    if epochs is not None:
        values |= dict.fromkeys(("validate_every", "save_every"), min(updates, steps))
    else:
        values["warmup_steps"] = min(PAPER_WARMUP, values["warmup_steps"])
        values["validate_every"] = max(1, min(train.validate_every, steps // 10))
        values["save_every"] = max(1, min(train.save_every, steps // 10))
    changes: dict[str, Any] = {key: value for key, value in values.items() if key in unset}
    by_equation = train.schedule == "paper" and train.learning_rate is None
    if "warmup_steps" in changes and by_equation:
        # Equation 3 has a higher peak for a shorter warm-up: that of the paper's own stays.
        changes["learning_rate"] = (d_model * PAPER_WARMUP) ** -0.5
    return changes
