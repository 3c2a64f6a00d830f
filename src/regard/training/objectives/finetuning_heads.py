"""The tasks of an encoder with labels on top: the class of a text, the tag of each word, where an answer stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor
from torch.nn import functional

from regard.data.batching import IGNORED, Batch, Order, Rows, plan
from regard.data.labelled import Classed, Question, Words
from regard.errors import DataError
from regard.metrics.classification import ClassificationScore, classification_score
from regard.metrics.entity_f1 import tagging_score
from regard.metrics.question_answering import AnswerScore, answer_score
from regard.model import Encoder
from regard.models.text_encoder import TextEncoder
from regard.text.tokenizer import Tokenizer
from regard.training.objectives.distillation import Teacher
from regard.training.objectives.loss import beside, cross_entropy
from regard.training.recipe.schema import Train

Example = TypeVar("Example")


@dataclass(frozen=True)
class Row:
    """A framed text and what is to be said of it: one class, a class for each token (IGNORED for some), or the first and the
    last token of the answer."""

    ids: list[int]
    segments: list[int]
    labels: list[int]


class HeadObjective(ABC, Generic[Example]):
    """Batches of rows of like lengths; each task says how its scores are judged."""

    unit = "examples"

    def __init__(
        self,
        reader: TextEncoder,
        train: Sequence[Example],
        valid: Sequence[Example],
        settings: Train,
        multiple: int,
        most: int,
        teacher: Teacher | None = None,
    ) -> None:
        self.teacher = teacher
        self.reader, self.settings, self.multiple, self.most = reader, settings, multiple, most
        self.train, self.held_out = self.rows(train), self.rows(valid)
        self.valid = valid

    @property
    def model(self) -> Encoder:
        return self.reader.model

    @abstractmethod
    def rows(self, examples: Sequence[Example]) -> list[Row]:
        """The rows of examples, which may be more or fewer than these."""

    @abstractmethod
    def judged(self, scores: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss of these scores, and −log p of the labels, both sums."""

    def classes(
        self, scores: Tensor, labels: Tensor, tensors: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The loss of classes; while it trains, a teacher has a say in it."""
        if self.teacher is None or not self.model.training:
            return cross_entropy(scores, labels, self.settings.label_smoothing)
        return self.teacher.loss(scores, labels, tensors, self.settings.label_smoothing)

    @abstractmethod
    def score(
        self, examples: Sequence[Example], precision: AbstractContextManager[Any]
    ) -> ClassificationScore | AnswerScore:
        """How good the answers are, from 0 to 100."""

    def order(self) -> Order:
        lengths = np.array([[len(row.ids)] for row in self.train])
        return Order(
            lengths, self.settings.batch_tokens, seed=self.settings.seed, multiple=self.multiple
        )

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, rows in self.order().iterate(epoch, index):
            yield (now, i + 1), self.collate(self.train, rows)

    def collate(self, rows: Sequence[Row], chosen: Rows) -> Batch:
        """`tokens`, `real` [B, T], perhaps `segments`, and `labels` [B, T], or [B, n] where a row has n."""
        taken = [rows[i] for i in chosen]
        longest = max(len(row.ids) for row in taken)
        width = max(longest, min(-(-longest // self.multiple) * self.multiple, self.most))
        tensors = {
            "tokens": _padded(
                [row.ids for row in taken], width, self.reader.text.special_token_id("pad") or 0
            ),
            "padding_mask": torch.arange(width)
            < torch.tensor([len(row.ids) for row in taken])[:, None],
            "labels": self.labels(taken, width),
        }
        if self.reader.spec.tokens.segments > 1:
            tensors["segments"] = _padded([row.segments for row in taken], width, 0)
        return Batch(tensors, self.counted(taken), np.asarray(chosen))

    def labels(self, rows: Sequence[Row], width: int) -> Tensor:
        return torch.tensor([row.labels for row in rows])

    def counted(self, rows: Sequence[Row]) -> int:
        """What the loss is a mean over."""
        return len(rows)

    def weight(self, labels: Tensor) -> int | Tensor:
        """The same of a batch, on its device."""
        return len(labels)

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        scores, others = self.scores(tensors)
        loss, nll = self.judged(scores, tensors)
        return beside(loss, others, self.weight(tensors["labels"])), nll

    def scores(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Those of the labels, and the losses beside."""
        segments = {"segments": tensors["segments"]} if "segments" in tensors else {}
        hidden, others = self.model(tensors["tokens"], tensors["padding_mask"], **segments)
        return self.model.classes(hidden, tensors["padding_mask"], tensors["tokens"]), others

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [{"row": row, "text": self.reader.text.decode(self.train[row].ids)} for row in rows]

    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if not self.held_out:
            return None
        total = count = 0.0
        for batch in self.in_order(self.held_out):
            with torch.inference_mode(), precision:
                total += self.loss(batch.tensors)[1].item()
            count += batch.tokens
        return {"loss": total / max(1.0, count), **vars(self.score(self.valid, precision))}

    def in_order(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """Once over rows, on the device, with nothing dropped."""
        self.model.eval()
        lengths = np.array([[len(row.ids)] for row in rows])
        for chosen in plan(lengths, 4 * self.settings.batch_tokens, seed=0, epoch=0, shuffle=False):
            yield self.collate(rows, chosen).to(self.reader.device)

    def best(self, rows: Sequence[Row], precision: AbstractContextManager[Any]) -> list[list[int]]:
        """The likeliest label of each row, or of each of its places."""
        found: list[list[int]] = [[] for _ in rows]
        for batch in self.in_order(rows):
            with torch.inference_mode(), precision:
                scores, _ = self.scores(batch.tensors)
            chosen = scores.argmax(dim=-1).reshape(len(batch.rows), -1).tolist()
            for row, labels in zip(batch.rows, chosen, strict=True):
                found[row] = labels
        return found


class Classification(HeadObjective[Classed]):
    def rows(self, examples: Sequence[Classed]) -> list[Row]:
        known = {name: i for i, name in enumerate(self.reader.labels)}
        encoded = self.reader.text.encode_with_template(
            [example.whole for example in examples], self.most
        )
        return [
            Row(row.ids, row.type_ids, [_known(example.label, known)])
            for row, example in zip(encoded, examples, strict=True)
        ]

    def judged(self, scores: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.classes(scores, tensors["labels"][:, 0], tensors)

    def score(
        self, examples: Sequence[Classed], precision: AbstractContextManager[Any]
    ) -> ClassificationScore:
        rows = self.rows(examples)
        return classification_score(
            [labels[0] for labels in self.best(rows, precision)], [row.labels[0] for row in rows]
        )


class TokenClassification(HeadObjective[Words]):
    unit = "words"

    def rows(self, examples: Sequence[Words]) -> list[Row]:
        known = {name: i for i, name in enumerate(self.reader.labels)}
        return [
            Row(
                row.ids,
                row.type_ids,
                [IGNORED if tag is None else _known(tag, known) for tag in tags],
            )
            for row, tags in aligned(self.reader.text, examples, self.most)
        ]

    def labels(self, rows: Sequence[Row], width: int) -> Tensor:
        return _padded([row.labels for row in rows], width, IGNORED)

    def counted(self, rows: Sequence[Row]) -> int:
        return max(1, sum(label != IGNORED for row in rows for label in row.labels))

    def weight(self, labels: Tensor) -> int | Tensor:
        return (labels != IGNORED).sum().clamp_min(1)

    def judged(self, scores: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.classes(scores, tensors["labels"], tensors)

    def score(
        self, examples: Sequence[Words], precision: AbstractContextManager[Any]
    ) -> ClassificationScore:
        names, rows = self.reader.labels, self.rows(examples)
        kept = [
            [(names[a], names[b]) for a, b in zip(best, row.labels, strict=False) if b != IGNORED]
            for best, row in zip(self.best(rows, precision), rows, strict=True)
        ]
        return tagging_score(
            [[a for a, _ in pairs] for pairs in kept], [[b for _, b in pairs] for pairs in kept]
        )


def aligned(
    text: Tokenizer, examples: Sequence[Words], most: int | None = None
) -> list[tuple[Encoding, list[str | None]]]:
    """For each sentence, its tokens and their tags: the first token of a word has the word's, all others none."""
    encoded = text.encode_with_template([" ".join(example.tokens) for example in examples], most)
    found = []
    for row, example in zip(encoded, examples, strict=True):
        starts = [0, *accumulate(len(word) + 1 for word in example.tokens)][:-1]
        tags: list[str | None] = []
        last = -1
        for (_, end), sequence in zip(row.offsets, row.sequence_ids, strict=True):
            # The end decides: some tokenizers count the space before a word to it.
            word = last if sequence is None or end == 0 else bisect_right(starts, end - 1) - 1
            tags.append(example.tags[word] if word > last else None)
            last = max(last, word)
        found.append((row, tags))
    return found


class QuestionAnswering(HeadObjective[Question]):
    unit = "windows"  # of contexts, which may be long

    def rows(self, examples: Sequence[Question]) -> list[Row]:
        return [
            Row(row.ids, row.type_ids, list(span))
            for example in examples
            for row, span in windowed(self.reader.text, example, self.most)
        ]

    def judged(self, scores: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The mean of −log p of the first and of the last token, each among the real ones."""
        scores = scores.float().masked_fill(~tensors["padding_mask"][..., None], float("-inf"))
        loss = functional.cross_entropy(scores, tensors["labels"], reduction="sum") / 2
        return loss, loss.detach()

    def score(
        self, examples: Sequence[Question], precision: AbstractContextManager[Any]
    ) -> AnswerScore:
        with precision:
            answers = self.reader.answer(
                [e.question for e in examples], [e.context for e in examples]
            )
        texts = [answer.text if answer.probability >= answer.none else "" for answer in answers]
        return answer_score(texts, [example.text for example in examples])


def windowed(
    text: Tokenizer, example: Question, most: int
) -> list[tuple[Encoding, tuple[int, int]]]:
    """The context in overlapping windows, each with the places of the answer's first and last token; where the answer is not
    wholly inside, both are 0, the first token, which says that there is none."""
    found = []
    start, end = example.answer_start, example.answer_start + len(example.text)
    for row in text.windows(example.question, example.context, most, most // 4):
        places = [
            i
            for i, s in enumerate(row.sequence_ids)
            if s == 1 and row.offsets[i][0] < end and row.offsets[i][1] > start
        ]
        here = [row.offsets[i] for i in places]
        whole = bool(here) and here[0][0] <= start and here[-1][1] >= end and bool(example.text)
        found.append((row, (places[0], places[-1]) if whole else (0, 0)))
    return found


def _padded(rows: Sequence[Sequence[int]], width: int, value: int) -> Tensor:
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])


def _known(label: str, known: Mapping[str, int]) -> int:
    if label not in known:
        raise DataError(
            f"the label {label!r} is not in the training data",
            f"correct it, or train with it; known: {', '.join(known)}",
        )
    return known[label]
