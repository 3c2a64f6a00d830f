"""Text regression: a number for a text, or for a pair of texts (ratings, similarity)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from regard.data import labelled
from regard.data.labelled import RatedText
from regard.metrics.regression import RegressionScore, regression_score
from regard.models import Model, TextEncoder
from regard.training.data.stored_rows import Row
from regard.training.objectives.head_objective import HeadObjective, LabelledData
from regard.training.setup import Setup


class Regression(HeadObjective[RatedText]):
    """One number per row, from the pooled vector, by the squared error."""

    name = "regress"
    head_task = "classify"  # transformers has one head for classes and for numbers
    head_fields = "labels=ClassifierHead(1), and pool=Pool()"

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str) -> Iterable[RatedText]:
        return labelled.rated_texts(path)

    @classmethod
    def texts(cls, example: RatedText) -> list[str]:
        return [text for text in (example.text, example.text2) if text is not None]

    @classmethod
    def label_names(cls, examples: Iterable[RatedText]) -> list[str]:
        # transformers' name for the one output of a regression head.
        return ["LABEL_0"]

    @classmethod
    def label_config(cls, config: dict[str, Any], data: LabelledData) -> dict[str, Any]:
        return super().label_config(config, data) | {"problem_type": "regression"}

    @classmethod
    def adapt(cls, base: Model, data: LabelledData, setup: Setup) -> TextEncoder:
        encoder = super().adapt(base, data, setup)
        encoder.config["problem_type"] = "regression"
        return encoder

    # --- training ---------------------------------------------------------------------------------

    def rows(self, examples: Sequence[RatedText]) -> list[Row]:
        texts = [example.whole for example in examples]
        encoded = self.encoder.tokenizer.encode_with_template(texts, self.max_length)
        return [
            Row(encoding.ids, encoding.type_ids, [example.score])
            for encoding, example in zip(encoded, examples, strict=True)
        ]

    def label_tensor(self, rows: Sequence[Row], width: int) -> Tensor:
        return torch.tensor([row.labels for row in rows], dtype=torch.float32)  # [B, 1]

    def logits_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The squared error; there is no −log p, so that it stands for both."""
        loss = (logits.float() - tensors["labels"]).square().sum()
        return loss, loss.detach()

    # --- evaluation -------------------------------------------------------------------------------

    def score(
        self, examples: Sequence[RatedText], autocast: AbstractContextManager[Any]
    ) -> RegressionScore:
        rows = self.rows(examples)
        predictions = [0.0] * len(rows)
        for batch in self.evaluation_batches(rows):
            with torch.inference_mode(), autocast:
                logits, _ = self.logits(batch.tensors)
            # Batches are sorted by length: each prediction goes back to its row.
            for row, value in zip(batch.rows, logits[:, 0].float().tolist(), strict=True):
                predictions[row] = value
        return regression_score(predictions, [example.score for example in examples])
