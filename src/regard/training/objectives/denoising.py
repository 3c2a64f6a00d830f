"""Denoising: an encoder–decoder restores corrupted text (span corruption, text infilling)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.batching import Batch, Rows
from regard.data.corpus import Corpus
from regard.data.padding import IGNORED
from regard.data.text_corruption import denoise, spans
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.errors import DataError
from regard.metrics.perplexity import corpus_nll, perplexity
from regard.model import EncoderDecoder
from regard.training.data.plain_text import TextCorpora
from regard.training.objectives.corrupted_text import CorruptedText
from regard.training.objectives.loss import add_auxiliary_losses, linear_cross_entropy
from regard.training.recipe.schema import Recipe

SENTINELS = 100  # T5 has <extra_id_0> to <extra_id_99>


class Denoising(CorruptedText):
    """The objective `span` (T5) or `denoise` (BART).

    T5 replaces spans by sentinels, and its target is the spans. BART masks spans and permutes
    sentences, and its target is the whole text.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        data: TextCorpora,
        recipe: Recipe,
        device: torch.device,
        pad_to_multiple_of: int,
    ) -> None:
        super().__init__(data, recipe, device, pad_to_multiple_of)
        self.model = model
        self.pad_id = self.tokenizer.required_token_id("pad")
        self.end_id = self.tokenizer.required_token_id("eos")
        self.span_corruption = recipe.train.objective == "span"
        if self.span_corruption:
            self.sentinels = self._find_sentinels()
            self.opening_id = None  # T5 puts no token before a text
            self.mask_id = -1  # sentinels take its place
            self.start_id = self.pad_id  # T5's decoder starts from padding,
        else:
            self.sentinels = []
            self.opening_id = self.tokenizer.required_token_id("bos")
            self.mask_id = self.tokenizer.required_token_id("mask")
            self.start_id = self.end_id  # BART's from the end token.

    def _find_sentinels(self) -> list[int]:
        candidates = [self.tokenizer.token_to_id(f"<extra_id_{i}>") for i in range(SENTINELS)]
        sentinels = [token for token in candidates if token is not None]
        if not sentinels:
            raise DataError(
                "the tokenizer has no sentinels (<extra_id_0> …)", "use T5's, or learn one"
            )
        return sentinels

    def collate(self, corpus: Corpus, rows: Rows, epoch: int) -> Batch:
        """`source`, `padding_mask` [B, S]; `target`, `labels` [B, T]."""
        pairs = [self._corrupt(corpus, int(row), epoch) for row in rows]
        sources = [source for source, _ in pairs]
        targets = [target for _, target in pairs]
        source, padding_mask = self.pad(sources, self.pad_id, min_width=self.min_width)
        # T5's targets are short: they are not widened to the context.
        target_width = 0 if self.span_corruption else self.min_width
        labels, _ = self.pad(targets, IGNORED, min_width=target_width)
        # Teacher forcing: the decoder reads the labels shifted right, after the start token.
        target = torch.where(labels < 0, self.pad_id, labels)[:, :-1]
        tensors = {
            "source": source,
            "padding_mask": padding_mask,
            "target": functional.pad(target, (1, 0), value=self.start_id),
            "labels": labels,
        }
        return Batch(tensors, int((labels >= 0).sum()), np.asarray(rows))

    def _corrupt(self, corpus: Corpus, row: int, epoch: int) -> tuple[list[int], list[int]]:
        """Source and target of a row, with their special tokens."""
        ids = self.row(corpus, row)
        random_numbers = self.random_numbers(epoch, row)
        share = self.corrupted_share
        mean = self.settings.span_length
        if self.span_corruption:
            source, target = spans(
                ids, random_numbers, share=share, mean=mean, sentinels=self.sentinels
            )
        else:
            starts = self.sentence_starts(corpus, row)
            source, target, _ = denoise(
                ids, starts, random_numbers, share=share, mean=mean, token=self.mask_id
            )
        opening = [] if self.opening_id is None else [self.opening_id]
        return (
            [*opening, *source.tolist(), self.end_id],
            [*opening, *target.tolist(), self.end_id],
        )

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        # [B, T, D]
        hidden, auxiliary = self.model(
            tensors["source"], tensors["target"], tensors["padding_mask"]
        )
        labels = tensors["labels"]
        loss, nll = linear_cross_entropy(self.model.head, hidden, labels)
        return add_auxiliary_losses(loss, auxiliary, (labels >= 0).sum()), nll

    @torch.inference_mode()
    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any]:
        """Loss per target token, perplexity, and some restored texts."""
        self.model.eval()
        nll, tokens = corpus_nll(self._batch_nlls(autocast))
        samples = range(min(self.settings.samples, len(self.validation_corpus)))
        return {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
            "tokens": tokens,
            "samples": [self._sample(row) for row in samples],
        }

    def _batch_nlls(self, autocast: AbstractContextManager[Any]) -> Iterator[tuple[Tensor, int]]:
        for batch in self.validation_batches():
            with autocast:
                _, nll = self.loss(batch.tensors)
            yield nll, batch.tokens

    def _sample(self, row: int) -> dict[str, Any]:
        """A validation row and what greedy decoding restores of it."""
        source, _ = self._corrupt(self.validation_corpus, row, 0)
        special = SpecialTokens(self.pad_id, self.start_id, self.end_id, forced_bos=self.opening_id)
        settings = DecodingSettings(Greedy(), Limit(0.0, self.context))
        hypotheses = decode(self.model, [source], special, settings)
        best = hypotheses[0][0]
        return {
            "text": self.decode_visibly(source),
            "restored": self.decode_visibly(best.tokens),
        }
