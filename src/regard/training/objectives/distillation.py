"""Knowledge distillation: a student learns a teacher's distributions besides the labels.

The teacher is not part of the objective's model: it is never trained, saved or counted, and draws
no random numbers. Its folder is named in the recipe, so that a resumed run finds it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.data.padding import IGNORED
from regard.models import Model, choose_device, load
from regard.system.errors import ModelError, SettingError
from regard.training.objectives.losses import LossSums, Tensors, cross_entropy
from regard.training.parallel.ranks import rank_device
from regard.training.recipe.schema import Recipe


@dataclass(frozen=True)
class Teacher:
    """`logits` computes the teacher's logits of a batch; `weight` is their share in the loss."""

    logits: Callable[[Tensors], Tensor]
    weight: float  # 0 to 1
    temperature: float  # τ

    def loss(
        self, logits: Tensor, labels: Tensor, tensors: Tensors, smoothing: float = 0.0
    ) -> LossSums:
        """The loss of the student's logits and −log p, summed over the labels that count.

        (1 − weight) · cross-entropy + weight · distillation.
        """
        with torch.no_grad():
            teacher_logits = self.logits(tensors)
        # Hinton et al. 2015, Section 2: the weighted sum of both cross-entropies.
        hard_loss, nll = cross_entropy(logits, labels, smoothing)
        soft_loss = distillation_loss(teacher_logits, logits, labels, self.temperature)
        return (1 - self.weight) * hard_loss + self.weight * soft_loss, nll


Logits = Callable[[Any, Tensors], Tensor]  # of a model as users hold it, for a batch


def load_teacher(recipe: Recipe, student: Model, logits: Logits) -> Teacher | None:
    """The frozen teacher of a recipe, of the student's kind, on the run's device.

    None if its distributions are not asked for.
    """
    if not recipe.distillation_weight:
        return None
    # Not the student's: a sharded one is on no device yet.
    device = rank_device(choose_device(recipe.train.device))
    teacher = load(teacher_folder(recipe), type(student), device=str(device))
    _check_vocabularies(recipe, teacher, student)
    if teacher.labels != student.labels:
        raise ModelError(
            f"the teacher knows the labels {teacher.labels}, the student {student.labels}",
            "fine-tune the teacher on data with the same labels first",
        )
    # Distributions are compared position by position, so both must start and end alike.
    frame = _frame(teacher)
    if frame != _frame(student):
        raise ModelError(
            f"the teacher frames its targets by the tokens {frame}, not {_frame(student)}",
            "take another teacher",
        )
    _check_positions(recipe, teacher, student)
    teacher.prepare_for_inference()
    teacher.model.requires_grad_(False)  # no graph is built for it
    return Teacher(partial(logits, teacher), recipe.distillation_weight, recipe.temperature)


def teacher_folder(recipe: Recipe) -> Path:
    """The folder of a recipe's teacher."""
    folder = Path(str(recipe.train.teacher))
    if not folder.is_dir():
        raise SettingError(
            f"there is no teacher at {folder}",
            "put its folder back there, or begin anew with --teacher DIR",
        )
    return folder


def _check_vocabularies(recipe: Recipe, teacher: Model, student: Model) -> None:
    same_inputs = teacher.input_tokenizer.same_vocabulary(student.input_tokenizer)
    if same_inputs and teacher.output_tokenizer.same_vocabulary(student.output_tokenizer):
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


def _frame(model: Model) -> tuple[Any, int] | None:
    """The tokens that targets start and end with; a language model continues its prompt."""
    special = model.special_tokens
    if special is None or special.start is None:
        return None
    return special.start, special.end


def _check_positions(recipe: Recipe, teacher: Model, student: Model) -> None:
    """Whether the teacher has a position for every token that the student reads."""
    key = "context" if recipe.objective_settings.data == "text" else "max_length"
    limit = getattr(recipe.data, key)
    available = min(limit, teacher.spec.max_length or limit)
    needed = min(limit, student.spec.max_length or limit)
    if available < needed:
        raise SettingError(
            f"the teacher has positions for {available} tokens, but {needed} may be needed",
            f"use --{key.replace('_', '-')} {available}",
        )


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
    return _Distillation.apply(  # type: ignore[no-any-return]
        logits.reshape(-1, vocabulary),
        teacher_logits.reshape(-1, vocabulary),
        labels.reshape(-1) != IGNORED,
        temperature,
    )
