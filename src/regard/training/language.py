"""The objectives that learn from plain text: from a recipe to a model, its run folder and its task."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from regard import disk, spec
from regard.build import build
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
from regard.metrics.scores import AnyScore, NegativeLogLikelihood
from regard.models import LanguageModel, choose_device
from regard.text.tokenizer import Role, Tokenizer
from regard.training.data.plain_text import Texts, texts
from regard.training.engine.initialization import draw
from regard.training.engine.logging import ProgressLog
from regard.training.job import Job, multiple
from regard.training.objectives.denoising import Denoising
from regard.training.objectives.distillation import of_writer
from regard.training.objectives.masked_lm import MaskedLM
from regard.training.objectives.memory_network import asked
from regard.training.objectives.objective import Objective
from regard.training.objectives.replaced_token_detection import ReplacedTokenDetection
from regard.training.objectives.segment_lm import next_token
from regard.training.objectives.text_classification import classes
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder

_LANGUAGE_MODELS = {"gpt": gpt2, "palm": palm}
_CHANGES = (
    "d_model", "d_ff", "heads", "layers", "decoder_layers", "dropout", "attention_dropout", "feedforward_dropout",
    "activation", "attention", "memory", "compressed",
)  # fmt: skip
# Settings of the translator that no family here has.
_FOREIGN = ("decoder_attention", "position", "residual", "share", "vectors", "freeze_embeddings")


def language(place: RunFolder, recipe: Recipe, talk: ProgressLog) -> Job:
    if recipe.train.objective == "classify":
        return classes(place, recipe, talk, changes(recipe))
    if recipe.train.objective == "stories":
        return asked(place, recipe, talk, changes(recipe))
    data = texts(place, recipe, talk.say)
    makers = {
        "causal": _causal,
        "masked": _masked,
        "replaced": _replaced,
        "span": _restored,
        "denoise": _restored,
    }
    return makers[recipe.train.objective](place, recipe, data, talk)


def changes(recipe: Recipe) -> dict[str, Any]:
    """What the recipe changes in its family's preset; what only a translator has is refused."""
    choice = recipe.model
    foreign = next((key for key in _FOREIGN if getattr(choice, key) not in (None, False)), None)
    if foreign is not None:
        raise SettingError(
            f"{foreign} is a setting of translators", f"leave it out for {recipe.train.objective}"
        )
    return {key: value for key in _CHANGES if (value := getattr(choice, key)) is not None}


def _causal(place: RunFolder, recipe: Recipe, data: Texts, talk: ProgressLog) -> Job:
    kind, words = recipe.model.model or "gpt", len(data.tokenizer)
    description: spec.Decoder | spec.RecurrentDecoder
    if recipe.came_before:
        description = recurrent.language_model(kind, recipe.preset, words, **changes(recipe))  # type: ignore[arg-type]
    else:
        description = _LANGUAGE_MODELS[kind].preset(
            recipe.preset, words, recipe.data.context, **changes(recipe)
        )
    model = build_anew(description, recipe)
    if isinstance(model.stack, Stack):
        model.stack.activation_checkpointing = recipe.train.recompute
    config = folders.describe(description) | _ids(data.tokenizer)
    describe_folder(place, config, data.tokenizer, recipe)
    writer = LanguageModel(model, description, data.tokenizer, config)
    task = next_token(writer, data, recipe, of_writer(recipe, writer))
    return Job(
        task,
        description.d_model,
        lambda: folders.write_weights(place.weights, model, description),
        lambda: final(task, talk),
    )


def _masked(place: RunFolder, recipe: Recipe, data: Texts, talk: ProgressLog) -> Job:
    description = bert.preset(
        recipe.preset,
        len(data.tokenizer),
        recipe.data.context,
        next_sentence=recipe.train.next_sentence,
        **changes(recipe),
    )
    model = build_anew(description, recipe)
    model.stack.activation_checkpointing = recipe.train.recompute
    describe_folder(
        place, folders.describe(description) | _ids(data.tokenizer), data.tokenizer, recipe
    )
    task = MaskedLM(model, data, recipe, *_where(recipe))
    return Job(
        task,
        description.d_model,
        lambda: folders.write_weights(place.weights, model, description),
        lambda: final(task, talk),
    )


def _replaced(place: RunFolder, recipe: Recipe, data: Texts, talk: ProgressLog) -> Job:
    """The run folder is the discriminator's, which is what is fine-tuned later; the generator's is inside it."""
    parts = electra.preset(
        recipe.preset, len(data.tokenizer), recipe.data.context, **changes(recipe)
    )
    models = discriminator, generator = [build_anew(part, recipe) for part in parts]
    inside = RunFolder(place.folder / "generator")
    inside.folder.mkdir(exist_ok=True)
    for where, part in zip((place, inside), parts, strict=True):
        config = folders.describe(part, model_type="electra") | _ids(data.tokenizer)
        describe_folder(where, config, data.tokenizer, recipe)
    disk.write_file(inside.folder / "tokenizer.json", data.tokenizer.to_json())
    for model in models:
        model.stack.activation_checkpointing = recipe.train.recompute
    task = ReplacedTokenDetection(discriminator, generator, data, recipe, *_where(recipe))

    def export() -> None:
        for where, model, part in zip((place, inside), models, parts, strict=True):
            folders.write_weights(where.weights, model, part, model_type="electra")

    return Job(task, parts[0].d_model, export, lambda: final(task, talk))


def _restored(place: RunFolder, recipe: Recipe, data: Texts, talk: ProgressLog) -> Job:
    family = t5 if recipe.train.objective == "span" else bart
    description = family.preset(
        recipe.preset, len(data.tokenizer), recipe.data.context, **changes(recipe)
    )
    model = build_anew(description, recipe)
    model.encoder.activation_checkpointing = model.decoder.activation_checkpointing = (
        recipe.train.recompute
    )
    task = Denoising(model, data, recipe, *_where(recipe))
    ids = folders.SpecialTokenIds(
        task.pad, task.start, task.end, data.tokenizer.special_token_id("unk"), opening=task.opening
    )
    describe_folder(place, folders.describe(description, ids), data.tokenizer, recipe)
    disk.write_json(place.folder / "generation_config.json", folders.generation_config(ids))
    return Job(
        task,
        description.d_model,
        lambda: folders.write_weights(place.weights, model, description),
        lambda: final(task, talk),
    )


def _where(recipe: Recipe) -> tuple[torch.device, int]:
    device = choose_device(recipe.train.device)
    return device, multiple(recipe, device)


def build_anew(description: Any, recipe: Recipe) -> Any:
    """A new model with its first weights, on its device."""
    torch.manual_seed(recipe.train.seed)
    model: nn.Module = build(description)
    draw(model, recipe.first_weights)
    return model.to(choose_device(recipe.train.device))


def describe_folder(
    place: RunFolder, config: dict[str, Any], words: Tokenizer, recipe: Recipe
) -> None:
    """What makes the run folder a Hugging Face repository, besides weights, tokenizer and card."""
    roles: tuple[Role, ...] = ("pad", "bos", "eos", "unk", "mask")
    named = {role: words.special_tokens[role] for role in roles if role in words.special_tokens}
    for name, content in {
        "config.json": config,
        "generation_config.json": {
            key: value for key, value in config.items() if key in _ids(words)
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{role}_token": token for role, token in named.items()},
            "model_max_length": recipe.data.context,
            "clean_up_tokenization_spaces": False,
        },
    }.items():
        disk.write_json(place.folder / name, content)


def _ids(words: Tokenizer) -> dict[str, int | None]:
    # Always said: transformers would otherwise take GPT-2's own, which no small vocabulary has.
    roles: tuple[Role, ...] = ("pad", "bos", "eos")
    return {f"{role}_token_id": words.special_token_id(role) for role in roles}


def final(task: Objective, talk: ProgressLog) -> dict[str, AnyScore]:
    """The kept weights on the held-out text."""
    found = task.validate(nullcontext())
    assert found is not None
    result = NegativeLogLikelihood(found["loss"], found["perplexity"], found["tokens"])
    talk.say(
        f"validation: loss {result.loss:.4f}  perplexity {result.perplexity:.3f}  ({result.tokens:,} tokens)"
    )
    return {"validation": result}
