"""Distillation: a finished model says how likely each answer is, and a smaller one learns that besides the labels.

The teacher is no part of the task's model: it is never trained, saved or counted, and draws no chance. Its folder is named in
the recipe, so that a resumed run finds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard import spec as kinds
from regard.errors import ModelError, SettingError
from regard.models import LanguageModel, Translator, load
from regard.models.base import Model
from regard.models.text_encoder import TextEncoder
from regard.training.objectives.loss import cross_entropy, divergence
from regard.training.recipe.schema import Recipe


@dataclass(frozen=True)
class Teacher:
    """`ask` gives the teacher's scores of a batch; `share` is how much of the loss they make up."""

    ask: Callable[[Mapping[str, Tensor]], Tensor]
    share: float
    temperature: float

    def loss(
        self, logits: Tensor, labels: Tensor, tensors: Mapping[str, Tensor], smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """What training minimises, and −log p of the labels, summed over the real ones."""
        with torch.no_grad():
            lesson = self.ask(tensors)
        loss, nll = cross_entropy(logits, labels, smoothing)
        return (1 - self.share) * loss + self.share * divergence(
            lesson, logits, labels, self.temperature
        ), nll


def of_translator(recipe: Recipe, student: Translator) -> Teacher | None:
    held = _opened(recipe, student)
    if held is None:
        return None
    if not isinstance(held, Translator):
        raise _other(recipe, "translates")
    sides = (
        (held.source_tokenizer, student.source_tokenizer),
        (held.target_tokenizer, student.target_tokenizer),
    )
    _understood(recipe, all(theirs.same_vocabulary(ours) for theirs, ours in sides))
    ends = [(each.start, each.target_tokenizer.special_token_id("eos")) for each in (held, student)]
    if ends[0] != ends[1]:
        raise ModelError(
            f"the teacher frames its targets by the tokens {ends[0]}, not {ends[1]}",
            "take another teacher",
        )
    for side in ("source", "target"):
        _long_enough(
            getattr(held.spec, side),
            getattr(student.spec, side),
            recipe.data.max_length,
            "--max-length",
        )
    model = held.model

    def ask(tensors: Mapping[str, Tensor]) -> Tensor:
        return model.head(
            model(tensors["source"], tensors["target"], tensors.get("padding_mask"))[0]
        )

    return Teacher(ask, recipe.teaching, recipe.temperature)


def of_writer(recipe: Recipe, student: LanguageModel) -> Teacher | None:
    held = _opened(recipe, student)
    if held is None:
        return None
    if not isinstance(held, LanguageModel):
        raise _other(recipe, "writes")
    _understood(recipe, held.words.same_vocabulary(student.words))
    _long_enough(held.spec.tokens, student.spec.tokens, recipe.data.context, "--context")
    model = held.model
    return Teacher(
        lambda tensors: model.head(model(tensors["tokens"])[0]), recipe.teaching, recipe.temperature
    )


def of_reader(recipe: Recipe, student: TextEncoder) -> Teacher | None:
    """Of classes, of whole texts or of tokens."""
    held = _opened(recipe, student)
    if held is None:
        return None
    if not isinstance(held, TextEncoder) or held.model.labels is None:
        raise _other(recipe, "has labels")
    _understood(recipe, held.text.same_vocabulary(student.text))
    if list(held.labels) != list(student.labels):
        raise ModelError(
            f"the teacher knows the labels {', '.join(held.labels)}, the student {', '.join(student.labels)}",
            "fine-tune the teacher on data with the same labels first",
        )
    _long_enough(held.spec.tokens, student.spec.tokens, recipe.data.max_length, "--max-length")
    model, segments = held.model, held.spec.tokens.segments > 1

    def ask(tensors: Mapping[str, Tensor]) -> Tensor:
        beside = {"segments": tensors["segments"]} if segments and "segments" in tensors else {}
        hidden, _ = model(tensors["tokens"], tensors["padding_mask"], **beside)
        return model.classes(hidden, tensors["padding_mask"], tensors["tokens"])

    return Teacher(ask, recipe.teaching, recipe.temperature)


def found(recipe: Recipe) -> Path:
    """The folder of a recipe's teacher."""
    folder = Path(str(recipe.train.teacher))
    if not folder.is_dir():
        raise SettingError(
            f"there is no teacher at {folder}",
            "put its folder back there, or begin anew with --teacher DIR",
        )
    return folder


def _opened(recipe: Recipe, student: Model) -> Model | None:
    """The teacher, if its distributions are asked for; it is on the student's device and only answers."""
    if not recipe.teaching:
        return None
    held = load(found(recipe), device=str(student.device)).freeze()
    held.model.requires_grad_(False)
    return held


def _other(recipe: Recipe, does: str) -> ModelError:
    return ModelError(
        f"the teacher {recipe.train.teacher} is no model that {does}",
        "take one of the student's kind",
    )


def _understood(recipe: Recipe, alike: bool) -> None:
    if not alike:
        raise ModelError(
            f"the teacher {recipe.train.teacher} has other tokens than the student, so their scores are of different things",
            "leave --tokenizer out to take the teacher's, or only its translations: --teacher-translates --teaching 0",
        )


def _long_enough(theirs: kinds.Tokens, ours: kinds.Tokens, most: int, flag: str) -> None:
    """Whether the teacher has a position for all that the student reads."""
    room, needed = (min(most, _positions(part, most)) for part in (theirs, ours))
    if room < needed:
        raise SettingError(
            f"the teacher has positions for {room} tokens, and {needed} may come",
            f"say {flag} {room}",
        )


def _positions(part: kinds.Tokens, most: int) -> int:
    return (
        part.position.length
        if isinstance(part.position, kinds.LearnedPosition | kinds.FixedPosition)
        else most
    )
