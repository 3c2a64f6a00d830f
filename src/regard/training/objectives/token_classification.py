"""Token classification: a tag for each word (named entities, parts of speech)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from regard.data import labelled
from regard.data.labelled import TaggedWords
from regard.data.padding import IGNORED, pad_rows
from regard.data.tag_alignment import align_tags, align_words, word_tags
from regard.metrics.classification import ClassificationScore
from regard.metrics.entity_f1 import tagging_score
from regard.training.data.stored_rows import Row
from regard.training.objectives.head_objective import HeadObjective, class_names, label_id


class TokenClassification(HeadObjective[TaggedWords]):
    """One class per word, at its first token; the other tokens are ignored (BERT, Section 5.3)."""

    name = "tag"
    unit = "words"
    head_task = "tag"
    head_fields = "labels=ClassifierHead(CLASSES, 'tag')"

    @classmethod
    def read(cls, path: str) -> Iterable[TaggedWords]:
        return labelled.tagged_words(path)

    @classmethod
    def texts(cls, example: TaggedWords) -> list[str]:
        # Words that are split already: the tokenizer only ever sees them between spaces.
        return [" ".join(example.tokens)]

    @classmethod
    def label_names(cls, examples: Iterable[TaggedWords]) -> list[str]:
        return class_names(tag for example in examples for tag in example.tags)

    def rows(self, examples: Sequence[TaggedWords]) -> list[Row]:
        ids = self.label_ids()
        rows = []
        for encoding, tags in align_tags(self.encoder.tokenizer, examples, self.max_length):
            labels = [IGNORED if tag is None else label_id(tag, ids) for tag in tags]
            rows.append(Row(encoding.ids, encoding.type_ids, labels))
        return rows

    def label_tensor(self, rows: Sequence[Row], width: int) -> Tensor:
        # As wide as the tokens, which may be rounded up beyond the longest row: [B, T].
        labels, _ = pad_rows([row.labels for row in rows], IGNORED, min_width=width)
        return labels

    def label_count(self, labels: Tensor) -> int | Tensor:
        return (labels != IGNORED).sum().clamp_min(1)  # a batch may be cut before its first word

    def logits_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.class_loss(logits, tensors["labels"], tensors)

    def score(
        self, examples: Sequence[TaggedWords], autocast: AbstractContextManager[Any]
    ) -> ClassificationScore:
        names = self.encoder.labels
        rows = self.rows(examples)
        predicted_tags = []
        true_tags = []
        aligned = align_words(self.encoder.tokenizer, examples, self.max_length)
        predicted = self.predict(rows, autocast)
        for (_, words), labels, example in zip(aligned, predicted, examples, strict=True):
            # Of words only: continuation and special tokens have no tag to be right or wrong.
            tags = [names[label] for label in labels]
            predicted_tags.append(word_tags(words, tags, len(example.tags)))
            true_tags.append(example.tags)
        return tagging_score(predicted_tags, true_tags)
