"""An encoder–decoder that classifies texts (BartForSequenceClassification)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.padding import pad_rows
from regard.data.text.tokenizer import Text
from regard.decode.batch_decoding import batch_by_length
from regard.models.base import TokenizerModel, no_targets
from regard.models.hf_call import shift_right
from regard.models.inputs.input_warnings import warn_of_inputs
from regard.models.inputs.token_batches import (
    SPLIT_OR_TRUNCATE,
    padded_inputs,
    smaller_limit,
    template_encodings,
    texts_and_pairs,
)
from regard.models.labels import Scores, label_names, label_scores
from regard.models.tasks import one_or_many
from regard.wirings.encoder_decoder import EncoderDecoder


class SequenceClassifier(TokenizerModel):
    """An encoder–decoder whose decoder reads the source once more, and scores labels at its end."""

    model: EncoderDecoder
    spec: kinds.EncoderDecoder
    budget = 8192  # positions of a batch
    evaluations = ("classify",)
    truncates = frozenset({"classify"})

    def __init__(
        self,
        model: EncoderDecoder,
        spec: kinds.EncoderDecoder,
        start: int,
        config: dict[str, Any] | None = None,
    ) -> None:
        """`start` is the first token that the decoder reads."""
        super().__init__(model, spec, None, config)
        self.start = start

    def tokens(
        self,
        texts: Text | Sequence[Text],
        max_length: int | None = None,
        *,
        truncation: bool = False,
        targets: str | Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        if targets is not None:
            raise no_targets()
        several = texts_and_pairs(texts)
        limit = smaller_limit(max_length, self.spec.source.max_length)
        encodings = template_encodings(self.tokenizer, several, limit, truncation, self.say)
        pad_token_id = self.tokenizer.required_token_id("pad")
        batch = padded_inputs([encoding.ids for encoding in encodings], pad_token_id)
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the logits."""
        assert self.spec.labels is not None
        return label_names(self.config, self.spec.labels.count)

    @one_or_many
    def classify(self, texts: list[Text], *, truncation: bool = False) -> list[Scores]:
        """Label → probability, likeliest first, of a text, a pair (a tuple), or each of a list."""
        names = self.labels
        problem_type = self.config.get("problem_type")
        logits = self.logits(texts, truncation=truncation)
        return [label_scores(row, names, problem_type) for row in logits]

    def logits(
        self, texts: Sequence[Text], *, truncation: bool = False, max_length: int | None = None
    ) -> list[Tensor]:
        """The logits [labels] of each text; too long a text is an error unless `truncation`."""
        several = texts_and_pairs(texts)
        limit = smaller_limit(max_length, self.spec.source.max_length)
        encodings = template_encodings(
            self.tokenizer, several, limit, truncation, self.say, SPLIT_OR_TRUNCATE
        )
        rows = [encoding.ids for encoding in encodings]
        warn_of_inputs(self.tokenizer, several, rows, self.coverage)
        return self._logits(rows)

    @torch.inference_mode()
    def _logits(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """The logits [labels] of each row of token ids, on the CPU, in float32."""
        pad_id = self.tokenizer.required_token_id("pad")
        results: list[Tensor] = [torch.empty(0)] * len(rows)
        self.model.eval()
        for batch in batch_by_length([len(row) for row in rows], self.budget):
            ids, padding_mask = pad_rows([rows[i] for i in batch], pad_id)  # [B, T]
            ids = ids.to(self.device)
            # BART (Lewis et al. 2020, Section 3.1): the decoder reads the same text as the encoder.
            target = shift_right(ids, self.start)
            # The decoder needs no mask: labels are read at the end token, before all padding.
            hidden, _ = self.model(ids, target, padding_mask.to(self.device))  # [B, T, D]
            logits = require_finite(self.model.classes(hidden, inputs=ids), self.model)
            for i, row in zip(batch, logits.float().cpu(), strict=True):
                results[i] = row
        return results
