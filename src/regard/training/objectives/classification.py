"""Text classification: the class of a text, or of a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from regard.data.labelled import Classed
from regard.metrics.classification import ClassificationScore, classification_score
from regard.training.objectives.head_objective import HeadObjective, Row, label_id


class Classification(HeadObjective[Classed]):
    """One class per row, from the pooled first token."""

    def rows(self, examples: Sequence[Classed]) -> list[Row]:
        ids = self.label_ids()
        texts = [example.whole for example in examples]
        encoded = self.encoder.tokenizer.encode_with_template(texts, self.max_length)
        return [
            Row(encoding.ids, encoding.type_ids, [label_id(example.label, ids)])
            for encoding, example in zip(encoded, examples, strict=True)
        ]

    def logits_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        labels = tensors["labels"][:, 0]  # [B, 1] → [B]
        return self.class_loss(logits, labels, tensors)

    def score(
        self, examples: Sequence[Classed], autocast: AbstractContextManager[Any]
    ) -> ClassificationScore:
        rows = self.rows(examples)
        predicted = [labels[0] for labels in self.predict(rows, autocast)]
        return classification_score(predicted, [row.labels[0] for row in rows])
