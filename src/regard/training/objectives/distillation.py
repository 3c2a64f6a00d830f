"""Knowledge distillation: a student learns a teacher's distributions besides the labels.

The teacher is not part of the objective's model: it is never trained, saved or counted, and draws
no random numbers. Its folder is named in the recipe, so that a resumed run finds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.data.padding import IGNORED
from regard.models import LanguageModel, Translator, choose_device
from regard.models.loading import M, load
from regard.models.text_encoder import TextEncoder
from regard.system.errors import ModelError, SettingError
from regard.training.objectives.losses import cross_entropy
from regard.training.parallel.ranks import rank_device
from regard.training.recipe.schema import Recipe


@dataclass(frozen=True)
class Teacher:
    """`logits` computes the teacher's logits of a batch; `weight` is their share in the loss."""

    logits: Callable[[Mapping[str, Tensor]], Tensor]
    weight: float  # 0 to 1
    temperature: float  # τ

    def loss(
        self, logits: Tensor, labels: Tensor, tensors: Mapping[str, Tensor], smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The loss of the student's logits and −log p, summed over the labels that count.

        (1 − weight) · cross-entropy + weight · distillation.
        """
        with torch.no_grad():
            teacher_logits = self.logits(tensors)
        # Hinton et al. 2015, Section 2: the weighted sum of both cross-entropies.
        hard_loss, nll = cross_entropy(logits, labels, smoothing)
        soft_loss = distillation_loss(teacher_logits, logits, labels, self.temperature)
        return (1 - self.weight) * hard_loss + self.weight * soft_loss, nll


# --- the teacher of each kind of student ----------------------------------------------------------


def translation_teacher(recipe: Recipe, student: Translator) -> Teacher | None:
    teacher = _load_teacher(recipe, student)
    if teacher is None:
        return None
    same_source = teacher.source_tokenizer.same_vocabulary(student.source_tokenizer)
    same_target = teacher.target_tokenizer.same_vocabulary(student.target_tokenizer)
    _check_vocabulary(recipe, same_source and same_target)
    # Distributions are compared position by position, so both must start and end alike.
    teacher_frame = (teacher.start, teacher.target_tokenizer.special_token_id("eos"))
    student_frame = (student.start, student.target_tokenizer.special_token_id("eos"))
    if teacher_frame != student_frame:
        raise ModelError(
            f"the teacher frames its targets by the tokens {teacher_frame}, not {student_frame}",
            "take another teacher",
        )
    max_length = recipe.data.max_length
    for side in ("source", "target"):
        teacher_tokens = getattr(teacher.spec, side)
        student_tokens = getattr(student.spec, side)
        _check_positions(teacher_tokens, student_tokens, max_length, "--max-length")
    model = teacher.model

    # The same inputs as the student: teacher forcing on the same targets.
    def logits(tensors: Mapping[str, Tensor]) -> Tensor:
        hidden, _ = model(tensors["source"], tensors["target"], tensors.get("padding_mask"))
        return model.head(hidden)

    return Teacher(logits, recipe.distillation_weight, recipe.temperature)


def language_model_teacher(recipe: Recipe, student: LanguageModel) -> Teacher | None:
    teacher = _load_teacher(recipe, student)
    if teacher is None:
        return None
    _check_vocabulary(recipe, teacher.tokenizer.same_vocabulary(student.tokenizer))
    _check_positions(teacher.spec.tokens, student.spec.tokens, recipe.data.context, "--context")
    model = teacher.model

    def logits(tensors: Mapping[str, Tensor]) -> Tensor:
        hidden, _ = model(tensors["tokens"])
        return model.head(hidden)

    return Teacher(logits, recipe.distillation_weight, recipe.temperature)


def classification_teacher(recipe: Recipe, student: TextEncoder) -> Teacher | None:
    """The teacher of a classifier, of texts or of tokens."""
    teacher = _load_teacher(recipe, student)
    if teacher is None:
        return None
    if teacher.spec.labels is None:
        raise ModelError(
            f"the teacher {recipe.train.teacher} has no labels", "fine-tune the teacher first"
        )
    _check_vocabulary(recipe, teacher.tokenizer.same_vocabulary(student.tokenizer))
    labels = teacher.require_labels()
    if labels != student.require_labels():
        raise ModelError(
            f"the teacher knows the labels {', '.join(labels)}, "
            f"the student {', '.join(student.require_labels())}",
            "fine-tune the teacher on data with the same labels first",
        )
    max_length = recipe.data.max_length
    _check_positions(teacher.spec.tokens, student.spec.tokens, max_length, "--max-length")
    model = teacher.model
    # A student with segment embeddings may learn from a teacher without.
    # RoBERTa and DistilBERT have none.
    takes_segments = teacher.spec.tokens.segments > 1

    def logits(tensors: Mapping[str, Tensor]) -> Tensor:
        segments = {}
        if takes_segments and "segments" in tensors:
            segments = {"segments": tensors["segments"]}
        tokens = tensors["tokens"]
        more = segments | teacher.side_tokens(tokens)
        hidden, _ = model(tokens, padding_mask=tensors["padding_mask"], **more)
        return model.classes(hidden, tensors["padding_mask"], tensors["tokens"])

    return Teacher(logits, recipe.distillation_weight, recipe.temperature)


# --- loading and checking -------------------------------------------------------------------------


def teacher_folder(recipe: Recipe) -> Path:
    """The folder of a recipe's teacher."""
    folder = Path(str(recipe.train.teacher))
    if not folder.is_dir():
        raise SettingError(
            f"there is no teacher at {folder}",
            "put its folder back there, or begin anew with --teacher DIR",
        )
    return folder


def _load_teacher(recipe: Recipe, student: M) -> M | None:
    """The frozen teacher, of the student's kind, on the run's device; None if its distributions are
    not asked for."""
    if not recipe.distillation_weight:
        return None
    # Not the student's: a sharded one is on no device yet.
    device = rank_device(choose_device(recipe.train.device))
    teacher = load(teacher_folder(recipe), type(student), device=str(device))
    teacher.prepare_for_inference()
    teacher.model.requires_grad_(False)  # no graph is built for it
    return teacher


def _check_vocabulary(recipe: Recipe, same: bool) -> None:
    if same:
        return
    repair = (
        "leave --tokenizer out to take the teacher's, or only its translations: "
        "--teacher-translates --distillation-weight 0"
    )
    if recipe.is_finetuning:  # the student has its tokenizer already
        repair = "take a teacher that was fine-tuned from the same model, or leave --teacher out"
    raise ModelError(
        f"the teacher {recipe.train.teacher} has other tokens than the student, "
        "so their outputs cannot be compared",
        repair,
    )


def _check_positions(
    teacher: spec.Tokens, student: spec.Tokens, max_length: int, flag: str
) -> None:
    """Whether the teacher has a position for every token that the student reads."""
    available = _positions(teacher, max_length)
    needed = _positions(student, max_length)
    if available < needed:
        raise SettingError(
            f"the teacher has positions for {available} tokens, but {needed} may be needed",
            f"use {flag} {available}",
        )


def _positions(tokens: spec.Tokens, max_length: int) -> int:
    """How many positions of `max_length` there are."""
    if isinstance(tokens.position, spec.LearnedPosition | spec.FixedPosition):
        return min(max_length, tokens.position.length)
    return max_length


# --- the loss -------------------------------------------------------------------------------------


class _Distillation(torch.autograd.Function):
    """τ² KL(teacher‖student). Its gradient is computed with it: one tensor is kept, not two."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, teacher_logits: Tensor, is_token: Tensor, temperature: float
    ) -> Tensor:
        log_p = functional.log_softmax(teacher_logits.float() / temperature, dim=-1)  # [N, V]
        log_q = functional.log_softmax(logits.float() / temperature, dim=-1)
        p = log_p.exp()
        divergence = (log_p.sub_(log_q).mul_(p)).sum(dim=-1)  # [N]
        # d/dlogits of τ² KL = τ (q − p); in place, for [N, V] is the largest tensor of training.
        gradient = log_q.exp_().sub_(p).mul_((temperature * is_token)[:, None])
        ctx.save_for_backward(gradient.to(logits.dtype))
        return temperature**2 * torch.where(is_token, divergence, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None


def distillation_loss(
    teacher_logits: Tensor, logits: Tensor, labels: Tensor, temperature: float = 1.0
) -> Tensor:
    """Knowledge distillation (Hinton et al. 2015): τ² KL(teacher‖student), logits [..., V].

    Both distributions are softened by the temperature τ; τ² keeps the gradients at their size.
    Summed over the labels that count; no gradient goes to the teacher.
    """
    vocabulary = logits.shape[-1]
    loss: Tensor = _Distillation.apply(
        logits.reshape(-1, vocabulary),
        teacher_logits.reshape(-1, vocabulary),
        labels.reshape(-1) != IGNORED,
        temperature,
    )
    return loss
