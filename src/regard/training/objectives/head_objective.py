"""Base of the fine-tuning objectives: an encoder with a task head on top, and labelled examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.data.batching import Batch, Order, Rows, plan
from regard.data.padding import pad_rows, round_up
from regard.errors import DataError
from regard.metrics.classification import ClassificationScore
from regard.metrics.perplexity import corpus_nll
from regard.metrics.question_answering import AnswerScore
from regard.model import Encoder
from regard.models.text_encoder import TextEncoder
from regard.training.objectives.distillation import Teacher
from regard.training.objectives.loss import add_auxiliary_losses, cross_entropy
from regard.training.recipe.sections import Train

Example = TypeVar("Example")

# A validation batch has no gradients and may be this much larger than a training batch.
EVALUATION_BATCH_FACTOR = 4


@dataclass(frozen=True)
class Row:
    """A tokenized text with its special tokens, and its labels.

    The labels are one class, a class for each token (IGNORED for some), or the first and the last
    token of an answer.
    """

    ids: list[int]
    segments: list[int]
    labels: list[int]


class HeadObjective(ABC, Generic[Example]):
    """Batches of rows of similar lengths; a subclass says what the labels and the loss are.

    Lengths are rounded up to `pad_to_multiple_of`, but not beyond `max_length`.
    """

    unit = "examples"

    def __init__(
        self,
        encoder: TextEncoder,
        train: Sequence[Example],
        valid: Sequence[Example],
        settings: Train,
        pad_to_multiple_of: int,
        max_length: int,
        teacher: Teacher | None = None,
    ) -> None:
        self.encoder = encoder
        self.settings = settings
        self.pad_to_multiple_of = pad_to_multiple_of
        self.max_length = max_length
        self.teacher = teacher
        self.train_rows = self.rows(train)
        self.validation_rows = self.rows(valid)
        self.validation_examples = valid

    @property
    def model(self) -> Encoder:
        return self.encoder.model

    # --- what a subclass defines ------------------------------------------------------------------

    @abstractmethod
    def rows(self, examples: Sequence[Example]) -> list[Row]:
        """The rows of examples; a long example may make several."""

    @abstractmethod
    def logits_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss of the head's logits, and −log p of the labels, both sums."""

    @abstractmethod
    def score(
        self, examples: Sequence[Example], autocast: AbstractContextManager[Any]
    ) -> ClassificationScore | AnswerScore:
        """How good the predictions are, from 0 to 100."""

    def label_tensor(self, rows: Sequence[Row], width: int) -> Tensor:
        return torch.tensor([row.labels for row in rows])

    def label_count(self, labels: Tensor) -> int | Tensor:
        """How many labels the loss is a mean over, on the device of the labels."""
        return len(labels)

    # --- batches ----------------------------------------------------------------------------------

    def order(self) -> Order:
        return Order(
            _lengths(self.train_rows),
            self.settings.batch_tokens,
            seed=self.settings.seed,
            multiple=self.pad_to_multiple_of,
        )

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, indices in self.order().iterate(epoch, index):
            yield (now, i + 1), self.collate(self.train_rows, indices)

    def collate(self, rows: Sequence[Row], indices: Rows) -> Batch:
        """`tokens`, `padding_mask` [B, T]; `labels` [B, T] or [B, n]; perhaps `segments` [B, T]."""
        selected = [rows[i] for i in indices]
        longest = max(len(row.ids) for row in selected)
        width = min(round_up(longest, self.pad_to_multiple_of), self.max_length)
        pad_id = self.encoder.tokenizer.special_token_id("pad") or 0
        tokens, padding_mask = pad_rows([row.ids for row in selected], pad_id, min_width=width)
        labels = self.label_tensor(selected, tokens.shape[1])
        tensors = {"tokens": tokens, "padding_mask": padding_mask, "labels": labels}
        if self.encoder.spec.tokens.segments > 1:
            segments, _ = pad_rows([row.segments for row in selected], 0, min_width=width)
            tensors["segments"] = segments
        # The loss is a mean over labels, not over tokens.
        return Batch(tensors, int(self.label_count(labels)), np.asarray(indices))

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        decode = self.encoder.tokenizer.decode
        return [{"row": row, "text": decode(self.train_rows[row].ids)} for row in rows]

    # --- loss -------------------------------------------------------------------------------------

    def logits(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The head's logits, and the auxiliary losses."""
        segments = {"segments": tensors["segments"]} if "segments" in tensors else {}
        padding_mask = tensors["padding_mask"]
        hidden, auxiliary = self.model(tensors["tokens"], padding_mask, **segments)  # [B, T, D]
        return self.model.classes(hidden, padding_mask, tensors["tokens"]), auxiliary

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits, auxiliary = self.logits(tensors)
        loss, nll = self.logits_loss(logits, tensors)
        count = self.label_count(tensors["labels"])
        return add_auxiliary_losses(loss, auxiliary, count), nll

    def class_loss(
        self, logits: Tensor, labels: Tensor, tensors: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of classes; while training, with the teacher's distributions if any."""
        smoothing = self.settings.label_smoothing
        if self.teacher is None or not self.model.training:
            return cross_entropy(logits, labels, smoothing)
        return self.teacher.loss(logits, labels, tensors, smoothing)

    # --- validation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if not self.validation_rows:
            return None
        nll, count = corpus_nll(self._batch_nlls(autocast))
        score = self.score(self.validation_examples, autocast)
        return {"loss": nll / max(1.0, count), **vars(score)}

    def _batch_nlls(self, autocast: AbstractContextManager[Any]) -> Iterator[tuple[Tensor, int]]:
        for batch in self.evaluation_batches(self.validation_rows):
            with torch.inference_mode(), autocast:
                _, nll = self.loss(batch.tensors)
            yield nll, batch.tokens

    def evaluation_batches(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """Once over the rows, on the device, with the model in eval mode."""
        self.model.eval()
        budget = EVALUATION_BATCH_FACTOR * self.settings.batch_tokens
        for indices in plan(_lengths(rows), budget, seed=0, epoch=0, shuffle=False):
            yield self.collate(rows, indices).to(self.encoder.device)

    def predict(
        self, rows: Sequence[Row], autocast: AbstractContextManager[Any]
    ) -> list[list[int]]:
        """The likeliest label of each row, or of each of its tokens."""
        predictions: list[list[int]] = [[] for _ in rows]
        for batch in self.evaluation_batches(rows):
            with torch.inference_mode(), autocast:
                logits, _ = self.logits(batch.tensors)
            best = logits.argmax(dim=-1).reshape(len(batch.rows), -1).tolist()  # [B, 1] or [B, T]
            for row, labels in zip(batch.rows, best, strict=True):
                predictions[row] = labels
        return predictions

    def label_ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.encoder.labels)}


def label_id(label: str, ids: Mapping[str, int]) -> int:
    """The id of a label, which must be one of the training data."""
    if label not in ids:
        raise DataError(
            f"the label {label!r} is not in the training data",
            f"correct it, or train with it; known: {', '.join(ids)}",
        )
    return ids[label]


def _lengths(rows: Sequence[Row]) -> Any:
    """[rows, 1]"""
    return np.array([[len(row.ids)] for row in rows])
