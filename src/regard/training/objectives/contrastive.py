"""Contrastive learning of sentence vectors: pairs of texts, and the other pairs of a batch.

The loss is InfoNCE (van den Oord et al. 2018) over cosines, with in-batch negatives, as in
sentence-transformers' multiple-negatives ranking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.builder import build
from regard.data import labelled
from regard.data.batching import Batch, BatchSampler, Rows, batch_indices
from regard.data.labelled import TextPair
from regard.data.padding import pad_rows
from regard.data.training_coverage import InputStatistics, row_statistics
from regard.encoder import Encoder
from regard.families import folder as folders
from regard.metrics.classification import ClassificationScore
from regard.metrics.scores import AnyScore
from regard.models import Model, TextEncoder
from regard.models.saving import config_json
from regard.training import model_spec
from regard.training.data.labelled_text import Sets, encoder_tokenizer, labelled_splits
from regard.training.objectives.contrastive_loss import info_nce
from regard.training.objectives.head_objective import LabelledData, copy_weights
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup

TEMPERATURE = 0.05  # cosines are divided by it (SimCSE, Gao et al. 2021)


class ContrastivePairs(Objective):
    """The vectors of a pair are to be nearer than those of any other pair of the batch."""

    name = "contrastive"
    unit = "pairs"
    model_classes = (TextEncoder,)
    base_advice = "give a text encoder, such as BERT"
    spec_classes = (spec.Encoder,)
    convertible_classes = (spec.Decoder,)
    trained_model: TextEncoder
    data: LabelledData

    def __init__(self, model: TextEncoder, data: LabelledData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.encoder = model
        self.max_length = model_spec.max_length(model, setup.recipe)
        self.train_pairs = list(data.train)
        self.train_rows = self._rows(self.train_pairs)
        self.validation_rows = self._rows(data.sets.get("valid", []))
        setup.say(
            f"data: {len(self.train_rows):,} pairs to train on, "
            f"{len(self.validation_rows):,} to validate"
        )

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> LabelledData:
        sets: Sets = labelled_splits(setup, labelled.text_pairs).lists()
        train = sets.pop("train")
        if base is not None:
            return LabelledData(train, sets, [], base.input_tokenizer)
        tokenizer = encoder_tokenizer(
            setup,
            lambda: (text for pair in train for text in (pair.text, pair.text2)),
            default="bpe",
        )
        return LabelledData(train, sets, [], tokenizer)

    @classmethod
    def describe(cls, setup: Setup, data: LabelledData) -> spec.Model:
        return model_spec.without_heads(model_spec.describe(setup.recipe, len(data.tokenizer)))

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: LabelledData, setup: Setup
    ) -> TextEncoder:
        model_spec.check_vocabulary("vocabulary", description.input, len(data.tokenizer))
        config = folders.describe(description, model_type=setup.recipe.model_name)
        return TextEncoder(model, description, data.tokenizer, config)

    @classmethod
    def adapt(cls, base: Model, data: LabelledData, setup: Setup) -> TextEncoder:
        """The encoder without its heads, which the loss does not reach."""
        assert isinstance(base, TextEncoder), "checked before"
        bare = model_spec.without_heads(base.spec)
        if bare == base.spec:
            return base
        model = build(bare)
        copy_weights(base, model)
        encoder = TextEncoder(model, bare, data.tokenizer, config_json(bare, base.config))
        encoder.folder = base.folder
        encoder.say = base.say
        return encoder

    # --- training ---------------------------------------------------------------------------------

    def input_statistics(self) -> InputStatistics:
        texts = (text for pair in self.train_rows for text in pair)
        return row_statistics(texts, len(self.data.tokenizer))

    @property
    def model(self) -> Encoder:
        return self.encoder.model

    def _rows(self, pairs: Sequence[TextPair]) -> list[tuple[list[int], list[int]]]:
        encode = self.encoder.tokenizer.encode_with_template
        first = encode([pair.text for pair in pairs], self.max_length)
        second = encode([pair.text2 for pair in pairs], self.max_length)
        return [(a.ids, b.ids) for a, b in zip(first, second, strict=True)]

    def _sampler(self) -> BatchSampler:
        return BatchSampler(
            _lengths(self.train_rows),
            self.settings.batch_tokens,
            seed=self.settings.seed,
            multiple=self.pad_to_multiple_of,
        )

    def batches_per_epoch(self) -> int:
        return len(self._sampler().batches(0))

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, rows in self._sampler().iterate(epoch, index):
            yield (now, i + 1), self._collate(self.train_rows, rows)

    def _collate(self, rows: Sequence[tuple[list[int], list[int]]], indices: Rows) -> Batch:
        """`tokens`, `padding_mask` [B, 2, T]: the two texts of each pair."""
        pairs = [rows[i] for i in indices]
        texts = [text for pair in pairs for text in pair]
        pad_id = self.encoder.tokenizer.special_token_id("pad") or 0
        tokens, padding_mask = pad_rows(texts, pad_id, pad_to_multiple_of=self.pad_to_multiple_of)
        tensors = {
            "tokens": tokens.unflatten(0, (-1, 2)),
            "padding_mask": padding_mask.unflatten(0, (-1, 2)),
        }
        return Batch(tensors, len(pairs), np.asarray(indices))

    def vectors(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Sentence vectors of length 1 of the first and the second texts, [B, D] each."""
        # All first texts, then all second ones: [2 B, T]
        tokens = tensors["tokens"].transpose(0, 1).flatten(0, 1)
        padding_mask = tensors["padding_mask"].transpose(0, 1).flatten(0, 1)
        hidden, _ = self.model(tokens, padding_mask)  # [2 B, T, D]
        pooled = self.encoder.sentence(hidden.float(), padding_mask)  # [2 B, D]
        # Of length 1, so that a dot product is a cosine.
        first, second = functional.normalize(pooled, dim=-1).chunk(2)
        return first, second

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The mean of both directions: which second text belongs to a first one, and back."""
        first, second = self.vectors(tensors)
        ranks = self.setup.ranks
        # Row i, column j: first text of pair i, second of pair j. Off the diagonal: negatives,
        # those of other ranks too.
        logits = first @ ranks.gather(second).T / TEMPERATURE  # [B, pairs of all ranks]
        transposed = logits.T
        if ranks.shares_batch:
            transposed = second @ ranks.gather(first).T / TEMPERATURE
        loss = info_nce(logits, transposed, ranks.first_row)
        return loss, loss.detach()

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        pairs = self.train_pairs
        return [{"row": row, "text": pairs[row].text, "text2": pairs[row].text2} for row in rows]

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """The loss within batches, and the accuracy of retrieval among all validation pairs."""
        if not self.validation_rows:
            return None
        total = 0.0
        for batch in self._evaluation_batches(self.validation_rows):
            with torch.inference_mode(), autocast:
                total += self.loss(batch.tensors)[0].item()
        score = self._retrieval(self.validation_rows, autocast)
        return {"loss": total / len(self.validation_rows), "accuracy": score.accuracy}

    def scores(self) -> dict[str, AnyScore]:
        results: dict[str, AnyScore] = {}
        for name, pairs in self.data.sets.items():
            if name == "train":
                continue
            score = self._retrieval(self._rows(pairs), torch.no_grad())
            results[name] = score
            self.setup.say(
                f"{name}: {score.accuracy:.2f} % of the first texts have their own pair as the "
                f"nearest of {score.examples:,}"
            )
        return results

    def _retrieval(
        self, rows: Sequence[tuple[list[int], list[int]]], autocast: AbstractContextManager[Any]
    ) -> ClassificationScore:
        """How often the nearest of all second texts is that of the pair."""
        first: list[Tensor] = []
        second: list[Tensor] = []
        for batch in self._evaluation_batches(rows):
            with torch.inference_mode(), autocast:
                a, b = self.vectors(batch.tensors)
            first.append(a)
            second.append(b)
        # Harder than the loss: all pairs are candidates, not those of one batch.
        similarity = torch.cat(first) @ torch.cat(second).T  # [N, N], rows in the same order
        correct = similarity.argmax(dim=1) == torch.arange(
            len(similarity), device=similarity.device
        )
        accuracy = 100.0 * correct.float().mean().item()
        return ClassificationScore(accuracy, accuracy, len(similarity))

    def _evaluation_batches(self, rows: Sequence[tuple[list[int], list[int]]]) -> Iterator[Batch]:
        self.model.eval()
        budget = self.settings.batch_tokens
        for indices in batch_indices(_lengths(rows), budget, seed=0, epoch=0, shuffle=False):
            yield self._collate(rows, indices).to(self.encoder.device)


def _lengths(rows: Sequence[tuple[list[int], list[int]]]) -> Any:
    """[rows, 1]: tokens of the pair, both padded to the longer text."""
    return np.array([[2 * max(len(first), len(second))] for first, second in rows])
