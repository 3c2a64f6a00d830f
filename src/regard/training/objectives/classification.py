"""Text classification: the class of a text, or of a pair of texts.

Without a file, the texts are generated ListOps expressions (Long Range Arena, Tay et al. 2021).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from regard.data import labelled, listops
from regard.data.labelled import LabelledText
from regard.metrics.classification import (
    ClassificationAgainstMajority,
    ClassificationScore,
    classification_score,
)
from regard.metrics.scores import AnyScore
from regard.training.data.labelled_text import Generator
from regard.training.data.stored_rows import Row
from regard.training.objectives.head_objective import HeadObjective, class_names, label_id
from regard.training.setup import Setup


class Classification(HeadObjective[LabelledText]):
    """One class per row, from the pooled first token."""

    name = "classify"
    head_task = "classify"
    head_fields = "labels=ClassifierHead(CLASSES), and pool=Pool()"

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str) -> Iterable[LabelledText]:
        return labelled.labelled_texts(path)

    @classmethod
    def generator(cls, setup: Setup) -> Generator | None:
        recipe = setup.recipe
        is_named = recipe.data.text is not None or recipe.tune.files or setup.source is not None
        if is_named or recipe.generated_task is not None:
            return None
        # As Long Range Arena's generator has them: 500 to 2,000 tokens.
        longest = min(2000, recipe.data.context - 1)  # one position is the start token's
        shape = listops.Shape(min(500, longest // 4), longest)
        setup.say(f"data: ListOps expressions of {shape.least} to {shape.most} tokens")
        return lambda split: listops.expressions(split, shape=shape)

    @classmethod
    def texts(cls, example: LabelledText) -> list[str]:
        return [text for text in (example.text, example.text2) if text is not None]

    @classmethod
    def label_names(cls, examples: Iterable[LabelledText]) -> list[str]:
        return class_names(example.label for example in examples)

    # --- training ---------------------------------------------------------------------------------

    def rows(self, examples: Sequence[LabelledText]) -> list[Row]:
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

    # --- evaluation -------------------------------------------------------------------------------

    def score(
        self, examples: Sequence[LabelledText], autocast: AbstractContextManager[Any]
    ) -> ClassificationScore:
        rows = self.rows(examples)
        predicted = [labels[0] for labels in self.predict(rows, autocast)]
        return classification_score(predicted, [row.labels[0] for row in rows])

    def scores(self) -> dict[str, AnyScore]:
        """Scores next to those of always answering the most frequent class."""
        results: dict[str, AnyScore] = {}
        for name, examples in self.data.sets.items():
            score = self.score(examples, torch.no_grad())
            result = against_majority(score, self.data.train, examples)
            results[name] = result
            self.setup.say(
                f"{name}: accuracy {result.accuracy:.2f}  f1 {result.f1:.2f}  "
                f"(majority class {result.majority:.2f}, {result.examples:,} examples)"
            )
        return results


def against_majority(
    score: ClassificationScore, train: Iterable[LabelledText], examples: Sequence[LabelledText]
) -> ClassificationAgainstMajority:
    """A score with the majority baseline: always the most frequent class of training."""
    return ClassificationAgainstMajority(**vars(score), majority=majority(train, examples))


def majority(train: Iterable[LabelledText], examples: Sequence[LabelledText]) -> float:
    """The percentage of examples with the most frequent class of training."""
    # Of the training split: a baseline may not look at the labels that it is scored by.
    most_frequent = Counter(example.label for example in train).most_common(1)[0][0]
    hits = sum(example.label == most_frequent for example in examples)
    return 100.0 * hits / max(1, len(examples))
