"""Masked language modelling, and next-sentence prediction (BERT)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.heads.head import LMHead
from regard.core.probe import NO_PROBE, NullProbe
from regard.data.batching import Batch, Rows
from regard.data.corruption import MaskingRates, mask_tokens, sentence_pair
from regard.data.padding import IGNORED
from regard.evaluation.metrics.perplexity import perplexity
from regard.models import Model, TextEncoder
from regard.system.errors import SettingError
from regard.training import model_spec
from regard.training.data.plain_text import TextCorpora, max_row_tokens
from regard.training.data.source import Position
from regard.training.engine.attention_entropy import ROWS, attention_entropy
from regard.training.objectives.corrupted_text import CorruptedText
from regard.training.objectives.losses import (
    LossTerms,
    TokenLoss,
    cross_entropy,
    linear_cross_entropy,
)
from regard.training.setup import Setup


@dataclass(frozen=True)
class MaskedRow:
    """A framed row with masked tokens; its labels are IGNORED except at those."""

    tokens: list[int]
    labels: list[int]
    segments: list[int]  # 0 in the first sentence, 1 in the second
    is_random: int  # 1 if the second sentence is a random one, not the next


class MaskedText(CorruptedText):
    """Rows framed by the start and the end token, with some of their tokens masked."""

    rates = MaskingRates()  # BERT: 80 % masked, 10 % replaced, 10 % kept

    spec_classes = (spec.Encoder,)

    def __init__(self, model: Model, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.pad_id = self.tokenizer.required_token_id("pad")
        self.start_id = self.tokenizer.required_token_id("bos")
        self.end_id = self.tokenizer.required_token_id("eos")
        self.mask_id = self.tokenizer.required_token_id("mask")
        special = self.tokenizer.special_ids
        ordinary = [token for token in range(len(self.tokenizer)) if token not in special]
        self.ordinary_ids = np.array(ordinary, dtype=np.int64)  # a replacement is one of these
        self.max_row_tokens = max_row_tokens(setup.recipe)

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        """`tokens`, `labels`, `padding_mask` [B, T].

        With next-sentence prediction, also `segments` [B, T] and `next_sentence_labels` [B], 1 for
        a second sentence that is not the next one.
        """
        masked = [self._mask(split, int(row), position[0]) for row in rows]
        width = self.min_width
        tokens, padding_mask = self.pad(
            [row.tokens for row in masked], self.pad_id, min_width=width
        )
        labels, _ = self.pad([row.labels for row in masked], IGNORED, min_width=width)
        tensors = {"tokens": tokens, "labels": labels, "padding_mask": padding_mask}
        if self.settings.next_sentence:
            segments, _ = self.pad([row.segments for row in masked], 0, min_width=width)
            tensors["segments"] = segments
            tensors["next_sentence_labels"] = torch.tensor([row.is_random for row in masked])
        return Batch(tensors, int((labels >= 0).sum()), np.asarray(rows))

    def _mask(self, split: str, row: int, epoch: int) -> MaskedRow:
        random_numbers = self.random_numbers(epoch, row)
        ids = self.source.row(split, row)
        is_random = 0
        parts = [slice(None)]
        if self.settings.next_sentence:
            # The row that the second sentence comes from, if it is to be a random one.
            other = int(random_numbers.below(len(self.source.splits[split]), 1)[0])
            first, second, is_random = sentence_pair(
                ids,
                self.source.sentence_starts(split, row),
                self.source.row(split, other),
                self.source.sentence_starts(split, other),
                random_numbers,
                room=self.max_row_tokens,
            )
            ids = np.concatenate([first, second])
            parts = [slice(0, len(first)), slice(len(first), None)]
        visible, masked_labels = mask_tokens(
            ids,
            random_numbers,
            share=self.corrupted_share,
            token=self.mask_id,
            ordinary=self.ordinary_ids,
            rates=self.rates,
        )
        # [CLS] A [SEP], or [CLS] A [SEP] B [SEP]
        tokens = [self.start_id]
        labels = [IGNORED]
        segments = [0]
        for segment, part in enumerate(parts):
            tokens += [*visible[part].tolist(), self.end_id]
            labels += [*masked_labels[part].tolist(), IGNORED]
            # As many as the tokens that this part has added, its end token too.
            segments += [segment] * (len(tokens) - len(segments))
        return MaskedRow(tokens, labels, segments, is_random)


class MaskedLM(MaskedText):
    """The objective of BERT."""

    name = "masked"
    base_tasks = ("fill",)
    base_advice = "give an encoder with a head for masked tokens, such as BertForMaskedLM"
    head_fields = "heads=(LMHead(),)"
    trained_model: TextEncoder

    @classmethod
    def has_head(cls, description: spec.Encoder) -> bool:
        return description.head is not None

    @classmethod
    def describe(cls, setup: Setup, data: TextCorpora) -> spec.Model:
        changes = {"next_sentence": True} if setup.recipe.train.next_sentence else {}
        return model_spec.describe(setup.recipe, len(data.tokenizer), **changes)

    @classmethod
    def with_tokenizer(cls, model: Any, description: Any, data: TextCorpora, setup: Setup) -> Model:
        if description.head is None:
            raise SettingError(
                f"{setup.recipe.model_name} has no head for masked tokens",
                "choose another --model or --objective",
            )
        if setup.recipe.train.next_sentence and description.task != "next":
            raise SettingError(
                "the model has no head for the next sentence",
                "give its spec the heads Pool() and ClassifierHead(2, 'next'), "
                "or leave --next-sentence out",
            )
        return super().with_tokenizer(model, description, data, setup)

    @property
    def _head(self) -> LMHead:
        assert isinstance(self.model.head, LMHead), "checked before"
        return self.model.head

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.total(masked_loss(self.model, tensors))

    @torch.inference_mode()
    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any]:
        """Loss, perplexity and accuracy of masked tokens, accuracy of pairs, attention entropy."""
        self.model.eval()
        nll = 0.0
        tokens = 0
        correct = 0
        pairs = 0
        correct_pairs = 0
        samples: list[dict[str, Any]] = []
        for batch in self.evaluation_batches("valid"):
            with autocast:
                hidden, next_sentence, _ = _forward(self.model, batch.tensors)
                logits = self._head(hidden)  # [B, T, V]
            labels = batch.tensors["labels"]
            predicted = logits.argmax(dim=-1)  # [B, T]
            nll += cross_entropy(logits, labels)[1].item()
            tokens += batch.tokens
            correct += int((predicted == labels).sum())  # IGNORED equals no token
            if next_sentence is not None:
                pairs += len(next_sentence)
                right = next_sentence.argmax(dim=-1) == batch.tensors["next_sentence_labels"]
                correct_pairs += int(right.sum())
            if len(samples) < self.settings.samples:
                samples.append(self._sample(batch, predicted[0]))
        metrics: dict[str, Any] = {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
            "accuracy": 100.0 * correct / tokens,
        }
        if pairs:
            metrics["next_accuracy"] = 100.0 * correct_pairs / pairs
        return {**metrics, **self._attention_entropy(), "tokens": tokens, "samples": samples}

    def _sample(self, batch: Batch, predicted: Tensor) -> dict[str, Any]:
        """The first row of a batch, masked and filled in."""
        padding_mask = batch.tensors["padding_mask"][0]  # [T]
        tokens = batch.tensors["tokens"][0]
        filled = torch.where(batch.tensors["labels"][0] >= 0, predicted, tokens)
        return {
            "text": self.decode_visibly(tokens[padding_mask].tolist()),
            "guess": self.decode_visibly(filled[padding_mask].tolist()),
        }

    def _attention_entropy(self) -> dict[str, Any]:
        """Attention entropy on the first validation rows."""
        # One batch: it is to show how attention develops, which needs no precision.
        batch = next(self.evaluation_batches("valid"))
        tensors = {name: tensor[:ROWS] for name, tensor in batch.tensors.items()}
        return attention_entropy(
            lambda probe: _forward(self.model, tensors, probe),
            padding_masks={"encoder": tensors["padding_mask"]},
        )


def masked_loss(
    model: Any, tensors: Mapping[str, Tensor], token_loss: TokenLoss = linear_cross_entropy
) -> LossTerms:
    """The mean over masked tokens plus the mean over pairs, times the number of tokens."""
    hidden, next_sentence, auxiliary = _forward(model, tensors)
    # Labels are IGNORED but at masked tokens: the mean is over these (BERT, Appendix A.2).
    loss, nll = token_loss(model.head, hidden, tensors["labels"])
    if next_sentence is not None:
        pairs = functional.cross_entropy(next_sentence.float(), tensors["next_sentence_labels"])
        # A mean over pairs, which `add_auxiliary_losses` scales up to the sum over tokens.
        auxiliary = {**auxiliary, "pairs": pairs}
    return LossTerms(loss, nll, auxiliary, (tensors["labels"] >= 0).sum())


def _forward(
    model: Any, tensors: Mapping[str, Tensor], probe: NullProbe = NO_PROBE
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Hidden states [B, T, D], logits of the next sentence [B, 2] or None, auxiliary losses."""
    segments = {"segments": tensors["segments"]} if "segments" in tensors else {}
    padding_mask = tensors["padding_mask"]
    hidden, auxiliary = model(tensors["tokens"], padding_mask, Context(probe=probe), **segments)
    next_sentence = None
    if "next_sentence_labels" in tensors:
        next_sentence = model.classes(hidden, padding_mask)
    return hidden, next_sentence, auxiliary
