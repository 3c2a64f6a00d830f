"""Jobs that learn from plain text: from a recipe to a model, its run folder and its objective."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import nn

from regard import disk, spec
from regard.builder import build
from regard.core.stack import Stack
from regard.errors import SettingError
from regard.families import (
    bart,
    bert,
    electra,
    gpt2,
    palm,
    recurrent,
    t5,
)
from regard.families import folder as folders
from regard.metrics.perplexity import NegativeLogLikelihood
from regard.metrics.scores import AnyScore
from regard.models import LanguageModel, choose_device
from regard.text.tokenizer import Role, Tokenizer
from regard.training import own_model
from regard.training.data.plain_text import TextCorpora, text_corpora
from regard.training.engine.initialization import initialize
from regard.training.engine.progress_bar import ProgressBar
from regard.training.job import Job, pad_to_multiple_of
from regard.training.objectives.classifier_from_scratch import classifier_job
from regard.training.objectives.denoising import Denoising
from regard.training.objectives.distillation import language_model_teacher
from regard.training.objectives.masked_lm import MaskedLM
from regard.training.objectives.memory_network import memory_network_job
from regard.training.objectives.objective import Objective
from regard.training.objectives.replaced_token_detection import ReplacedTokenDetection
from regard.training.objectives.segment_lm import language_modelling
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder

_DECODER_FAMILIES = {"gpt": gpt2, "palm": palm}
# Settings that change a preset.
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
# Settings of translators that no family here has.
_TRANSLATOR_ONLY = (
    "decoder_attention",
    "position",
    "residual",
    "share",
    "vectors",
    "freeze_embeddings",
)


def language_job(
    run_folder: RunFolder,
    recipe: Recipe,
    progress_bar: ProgressBar,
    own: spec.Decoder | None = None,
) -> Job:
    """The job of every objective but translation; `own` replaces the recipe's language model."""
    objective = recipe.train.objective
    if objective == "classify":
        return classifier_job(run_folder, recipe, progress_bar, preset_changes(recipe))
    if objective == "stories":
        return memory_network_job(run_folder, recipe, progress_bar, preset_changes(recipe))
    data = text_corpora(run_folder, recipe, progress_bar.say)
    if objective == "causal":
        return _causal_job(run_folder, recipe, data, progress_bar, own)
    makers = {
        "masked": _masked_job,
        "replaced": _replaced_token_job,
        "span": _denoising_job,
        "denoise": _denoising_job,
    }
    return makers[objective](run_folder, recipe, data, progress_bar)


def preset_changes(recipe: Recipe) -> dict[str, Any]:
    """The settings that change the family's preset; those of translators are refused."""
    for key in _TRANSLATOR_ONLY:
        if getattr(recipe.model, key) not in (None, False):
            raise SettingError(
                f"{key} is a setting of translators", f"leave it out for {recipe.train.objective}"
            )
    changes = {key: getattr(recipe.model, key) for key in _CHANGES}
    return {key: value for key, value in changes.items() if value is not None}


# --- one job per objective ------------------------------------------------------------------------


def _causal_job(
    run_folder: RunFolder,
    recipe: Recipe,
    data: TextCorpora,
    progress_bar: ProgressBar,
    own: spec.Decoder | None,
) -> Job:
    family = recipe.model.model or "gpt"
    vocabulary = len(data.tokenizer)
    changes = preset_changes(recipe)
    description: spec.Decoder | spec.RecurrentDecoder
    if own is not None:
        own_model.check_vocabulary("vocabulary", own.tokens, vocabulary)
        description = own
    elif recipe.is_baseline:
        cell = cast(recurrent.Cell, family)
        description = recurrent.language_model(cell, recipe.preset, vocabulary, **changes)
    else:
        presets = _DECODER_FAMILIES[family]
        description = presets.preset(recipe.preset, vocabulary, recipe.data.context, **changes)
    model = build_model(description, recipe)
    config = folders.describe(description) | _special_token_ids(data.tokenizer)
    write_config_files(run_folder, config, data.tokenizer, recipe)
    language_model = LanguageModel(model, description, data.tokenizer, config)
    teacher = language_model_teacher(recipe, language_model)
    objective = language_modelling(language_model, data, recipe, teacher)
    return _job(run_folder, objective, model, description, progress_bar)


def _masked_job(
    run_folder: RunFolder, recipe: Recipe, data: TextCorpora, progress_bar: ProgressBar
) -> Job:
    description = bert.preset(
        recipe.preset,
        len(data.tokenizer),
        recipe.data.context,
        next_sentence=recipe.train.next_sentence,
        **preset_changes(recipe),
    )
    model = build_model(description, recipe)
    config = folders.describe(description) | _special_token_ids(data.tokenizer)
    write_config_files(run_folder, config, data.tokenizer, recipe)
    objective = MaskedLM(model, data, recipe, *_device_and_multiple(recipe))
    return _job(run_folder, objective, model, description, progress_bar)


def _replaced_token_job(
    run_folder: RunFolder, recipe: Recipe, data: TextCorpora, progress_bar: ProgressBar
) -> Job:
    """The run folder is the discriminator's, to be fine-tuned later; the generator's is in it."""
    descriptions = electra.preset(
        recipe.preset, len(data.tokenizer), recipe.data.context, **preset_changes(recipe)
    )
    discriminator, generator = (build_model(part, recipe) for part in descriptions)
    generator_folder = RunFolder(run_folder.folder / "generator")
    generator_folder.folder.mkdir(exist_ok=True)  # a resumed run finds it
    run_folders = (run_folder, generator_folder)
    for part_folder, description in zip(run_folders, descriptions, strict=True):
        config = folders.describe(description, model_type="electra")
        config |= _special_token_ids(data.tokenizer)
        write_config_files(part_folder, config, data.tokenizer, recipe)
    disk.write_file(generator_folder.folder / "tokenizer.json", data.tokenizer.to_json())
    objective = ReplacedTokenDetection(
        discriminator, generator, data, recipe, *_device_and_multiple(recipe)
    )

    def export() -> None:
        models = (discriminator, generator)
        for folder, model, description in zip(run_folders, models, descriptions, strict=True):
            folders.write_weights(folder.weights, model, description, model_type="electra")

    return Job(
        objective,
        descriptions[0].d_model,
        export,
        lambda: validation_score(objective, progress_bar),
    )


def _denoising_job(
    run_folder: RunFolder, recipe: Recipe, data: TextCorpora, progress_bar: ProgressBar
) -> Job:
    # T5 has relative position biases, BART learned positions.
    presets = t5 if recipe.train.objective == "span" else bart
    description = presets.preset(
        recipe.preset, len(data.tokenizer), recipe.data.context, **preset_changes(recipe)
    )
    model = build_model(description, recipe)
    objective = Denoising(model, data, recipe, *_device_and_multiple(recipe))
    ids = folders.SpecialTokenIds(
        objective.pad_id,
        objective.start_id,
        objective.end_id,
        data.tokenizer.special_token_id("unk"),
        opening=objective.opening_id,
    )
    config = folders.describe(description, ids)
    write_config_files(run_folder, config, data.tokenizer, recipe)
    generation_config = folders.generation_config(ids)
    # Written over: a decoder needs its start token too.
    disk.write_json(run_folder.folder / "generation_config.json", generation_config)
    return _job(run_folder, objective, model, description, progress_bar)


# --- what they share ------------------------------------------------------------------------------


def _job(
    run_folder: RunFolder,
    objective: Objective,
    model: Any,
    description: Any,
    progress_bar: ProgressBar,
) -> Job:
    return Job(
        objective,
        description.d_model,
        lambda: folders.write_weights(run_folder.weights, model, description),
        lambda: validation_score(objective, progress_bar),
    )


def _device_and_multiple(recipe: Recipe) -> tuple[torch.device, int]:
    device = choose_device(recipe.train.device)
    return device, pad_to_multiple_of(recipe, device)


def build_model(description: Any, recipe: Recipe) -> Any:
    """A new model with its initial weights, on its device."""
    # Weights are drawn on the CPU: the same on every device.
    torch.manual_seed(recipe.train.seed)
    model: nn.Module = build(description)
    initialize(model, recipe.initialization)
    for module in model.modules():
        if isinstance(module, Stack):
            module.activation_checkpointing = recipe.train.recompute
    return model.to(choose_device(recipe.train.device))


def write_config_files(
    run_folder: RunFolder, config: dict[str, Any], tokenizer: Tokenizer, recipe: Recipe
) -> None:
    """Writes what makes the run folder a Hugging Face repository, besides weights and tokenizer."""
    roles: tuple[Role, ...] = ("pad", "bos", "eos", "unk", "mask")
    special_tokens = {
        f"{role}_token": tokenizer.special_tokens[role]
        for role in roles
        if role in tokenizer.special_tokens
    }
    generation_keys = _special_token_ids(tokenizer).keys()
    files = {
        "config.json": config,
        "generation_config.json": {k: v for k, v in config.items() if k in generation_keys},
        # Any tokenizer.json is read by this class of transformers.
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **special_tokens,
            "model_max_length": recipe.data.context,
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in files.items():
        disk.write_json(run_folder.folder / name, content)


def _special_token_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    # Written even if None: transformers would otherwise take GPT-2's ids, which small vocabularies
    # do not have.
    roles: tuple[Role, ...] = ("pad", "bos", "eos")
    return {f"{role}_token_id": tokenizer.special_token_id(role) for role in roles}


def validation_score(objective: Objective, progress_bar: ProgressBar) -> dict[str, AnyScore]:
    """The score of the exported weights on the validation text."""
    # In float32, whatever precision the training had.
    metrics = objective.validate(nullcontext())
    assert metrics is not None
    result = NegativeLogLikelihood(metrics["loss"], metrics["perplexity"], metrics["tokens"])
    progress_bar.say(
        f"validation: loss {result.loss:.4f}  perplexity {result.perplexity:.3f}  "
        f"({result.tokens:,} tokens)"
    )
    return {"validation": result}
