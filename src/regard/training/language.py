"""The objectives that learn from plain text: from a recipe to a model, its run folder and its task."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from regard import disk
from regard.api import LanguageModel, choose_device
from regard.build import build
from regard.errors import SettingError
from regard.family import gpt, palm
from regard.interop import folder as folders
from regard.text.exact import Exact
from regard.text.score import Score, Surprise
from regard.training.causal import Causal
from regard.training.initial import draw
from regard.training.job import Job
from regard.training.place import Place
from regard.training.recipe import Recipe
from regard.training.report import Talk
from regard.training.task import Task
from regard.training.texts import Texts, texts

_LANGUAGE_MODELS = {"gpt": gpt, "palm": palm}
_CHANGES = (
    "d_model", "d_ff", "heads", "layers", "decoder_layers", "dropout", "attention_dropout", "feedforward_dropout",
    "activation",
)  # fmt: skip
_FOREIGN = ("position", "residual", "share", "vectors")  # settings of the translator that no family here has


def language(place: Place, recipe: Recipe, talk: Talk) -> Job:
    data = texts(place, recipe, talk.say)
    return _causal(place, recipe, data, talk)


def changes(recipe: Recipe) -> dict[str, Any]:
    """What the recipe changes in its family's preset; what only a translator has is refused."""
    choice = recipe.model
    foreign = next((key for key in _FOREIGN if getattr(choice, key) is not None), None)
    if foreign is not None:
        raise SettingError(f"{foreign} is a setting of translators", f"leave it out for {recipe.train.objective}")
    return {key: value for key in _CHANGES if (value := getattr(choice, key)) is not None}


def _causal(place: Place, recipe: Recipe, data: Texts, talk: Talk) -> Job:
    family = _LANGUAGE_MODELS[recipe.model.family or "gpt"]
    description = family.preset(recipe.model.preset, len(data.tokenizer), recipe.data.context, **changes(recipe))
    model = build_anew(description, recipe)
    model.stack.recompute = recipe.train.recompute
    config = folders.describe(description) | _ids(data.tokenizer)
    describe_folder(place, config, data.tokenizer, recipe)
    writer = LanguageModel(model, description, data.tokenizer, config)
    task = Causal(writer, data, recipe)
    return Job(
        task,
        (description,),
        lambda: folders.write_weights(place.weights, model, description),
        lambda: final(task, talk),
    )


def build_anew(description: Any, recipe: Recipe) -> Any:
    """A new model with its first weights, on its device."""
    torch.manual_seed(recipe.train.seed)
    model: nn.Module = build(description)
    draw(model, recipe.first_weights)
    return model.to(choose_device(recipe.train.device))


def describe_folder(place: Place, config: dict[str, Any], words: Exact, recipe: Recipe) -> None:
    """What makes the run folder a Hugging Face repository, besides weights, tokenizer and card."""
    named = {"pad_token": words.pad, "bos_token": words.start, "eos_token": words.end, "unk_token": words.unk,
             "mask_token": words.mask}  # fmt: skip
    for name, content in {
        "config.json": config,
        "generation_config.json": {key: value for key, value in config.items() if key in _ids(words)},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{key: words.token(token) for key, token in named.items() if token is not None},
            "model_max_length": recipe.data.context,
            "clean_up_tokenization_spaces": False,
        },
    }.items():
        disk.write_json(place.folder / name, content)


def _ids(words: Exact) -> dict[str, int | None]:
    # Always said: transformers would otherwise take GPT-2's own, which no small vocabulary has.
    return {"pad_token_id": words.pad, "bos_token_id": words.start, "eos_token_id": words.end}


def final(task: Task, talk: Talk) -> dict[str, Score | Surprise]:
    """The kept weights on the held-out text."""
    found = task.validate(nullcontext())
    assert found is not None
    result = Surprise(found["loss"], found["perplexity"], found["tokens"])
    talk.say(f"validation: loss {result.loss:.4f}  perplexity {result.perplexity:.3f}  ({result.tokens:,} tokens)")
    return {"validation": result}
