"""Denoising: an encoder–decoder restores corrupted text (text infilling, BART)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.data.batching import Batch, Rows
from regard.data.corruption import Ids, RandomStream, corrupt_spans, denoise
from regard.data.padding import IGNORED
from regard.data.text.tokenizer import Tokenizer
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.evaluation.metrics.perplexity import perplexity
from regard.families import folder as folders
from regard.models import Model, Translator
from regard.system.errors import DataError
from regard.training import model_spec
from regard.training.data.plain_text import TextCorpora
from regard.training.data.source import Position
from regard.training.objectives.corrupted_text import CorruptedText
from regard.training.objectives.sequence_to_sequence import teacher_forced_loss
from regard.training.setup import Setup

SENTINELS = 100  # T5 has <extra_id_0> to <extra_id_99>


class Denoising(CorruptedText):
    """The objective of BART: text infilling and sentence permutation.

    Spans are masked and sentences permuted; the target is the whole text.
    """

    name = "denoise"
    default_share = 0.3
    base_tasks = ("translate",)
    base_advice = "give an encoder–decoder over text, such as BART or T5"
    spec_classes = (spec.EncoderDecoder, spec.SequenceToSequence)
    trained_model: Translator
    widens_targets = True  # to the context, where few shapes are wanted

    def __init__(self, model: Translator, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.frame = self.special_token_ids(data.tokenizer)

    @classmethod
    def describe(cls, setup: Setup, data: TextCorpora) -> spec.Model:
        return model_spec.describe(setup.recipe, len(data.tokenizer))

    @classmethod
    def special_token_ids(cls, tokenizer: Tokenizer) -> folders.SpecialTokenIds:
        """BART's decoder starts from the end token, and then writes the start token."""
        end = tokenizer.required_token_id("eos")
        return folders.SpecialTokenIds(
            tokenizer.required_token_id("pad"),
            end,
            end,
            tokenizer.special_token_id("unk"),
            forced_bos=tokenizer.required_token_id("bos"),
        )

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: TextCorpora, setup: Setup
    ) -> Translator:
        tokenizer = data.tokenizer
        model_spec.check_vocabulary("source", description.source, len(tokenizer))
        model_spec.check_vocabulary("target", description.target, len(tokenizer))
        ids = cls.special_token_ids(tokenizer)
        config = folders.describe(description, ids, model_type=setup.recipe.model_name)
        return Translator(
            model, description, tokenizer, tokenizer, ids.start, config, forced_bos=ids.forced_bos
        )

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        ids = cls.special_token_ids(model.input_tokenizer)
        # A decoder needs its start token too.
        return super().files(model, setup) | {
            "generation_config.json": folders.generation_config(ids)
        }

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        """`source`, `padding_mask` [B, S]; `target`, `labels` [B, T]."""
        pairs = [self._corrupt(split, int(row), position[0]) for row in rows]
        sources = [source for source, _ in pairs]
        targets = [target for _, target in pairs]
        # [B, S] and [B, T]: the target is the whole text (BART), or the spans alone (T5).
        source, padding_mask = self.pad(sources, self.frame.pad, min_width=self.min_width)
        target_width = self.min_width if self.widens_targets else 0
        labels, _ = self.pad(targets, IGNORED, min_width=target_width)
        # Teacher forcing: the decoder reads the labels shifted right, after the start token.
        target = torch.where(labels < 0, self.frame.pad, labels)[:, :-1]
        tensors = {
            "source": source,
            "padding_mask": padding_mask,
            "target": functional.pad(target, (1, 0), value=self.frame.start),
            "labels": labels,
        }
        return Batch(tensors, int((labels >= 0).sum()), np.asarray(rows))

    def _corrupt(self, split: str, row: int, epoch: int) -> tuple[list[int], list[int]]:
        """Source and target of a row, with their special tokens."""
        source, target = self._corrupted_row(split, row, self.random_numbers(epoch, row))
        prefix = [] if self.frame.forced_bos is None else [self.frame.forced_bos]
        return (
            [*prefix, *source.tolist(), self.frame.end],
            [*prefix, *target.tolist(), self.frame.end],
        )

    def _corrupted_row(self, split: str, row: int, random_numbers: RandomStream) -> tuple[Ids, Ids]:
        """Source and target of a row, without special tokens."""
        source, target, _ = denoise(
            self.source.row(split, row),
            self.source.sentence_starts(split, row),
            random_numbers,
            share=self.corrupted_share,
            mean=self.setup.recipe.span_length,
            token=self.tokenizer.required_token_id("mask"),
        )
        return source, target

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.total(teacher_forced_loss(self.model, tensors["source"], tensors))

    @torch.inference_mode()
    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any]:
        """Loss per target token, perplexity, and some restored texts."""
        self.model.eval()
        nll, tokens = self.nll("valid", autocast)
        samples = range(min(self.settings.samples, len(self.source.splits["valid"])))
        return {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
            "tokens": tokens,
            "samples": [self._sample(row) for row in samples],
        }

    def _sample(self, row: int) -> dict[str, Any]:
        """A validation row and what greedy decoding restores of it."""
        # Always epoch 0: samples of different validations show the same holes.
        source, _ = self._corrupt("valid", row, 0)
        frame = self.frame
        special = SpecialTokens(frame.pad, frame.start, frame.end, forced_bos=frame.forced_bos)
        # At most the context: BART restores the whole text, T5 the spans alone.
        settings = DecodingSettings(Greedy(), Limit.fixed(self.context))
        hypotheses = decode(self.model, [source], special, settings)
        best = hypotheses[0][0]
        return {
            "text": self.decode_visibly(source),
            "restored": self.decode_visibly(best.tokens),
        }


class SpanCorruption(Denoising):
    """The objective of T5: spans are replaced by sentinels, and the target is the spans."""

    name = "span"
    default_share = 0.15
    widens_targets = False  # they are short

    @classmethod
    def special_token_ids(cls, tokenizer: Tokenizer) -> folders.SpecialTokenIds:
        """T5's decoder starts from padding, and no token stands before a text."""
        pad = tokenizer.required_token_id("pad")
        return folders.SpecialTokenIds(
            pad, pad, tokenizer.required_token_id("eos"), tokenizer.special_token_id("unk")
        )

    def __init__(self, model: Translator, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.sentinels = _sentinels(data.tokenizer)

    def _corrupted_row(self, split: str, row: int, random_numbers: RandomStream) -> tuple[Ids, Ids]:
        return corrupt_spans(
            self.source.row(split, row),
            random_numbers,
            share=self.corrupted_share,
            mean=self.setup.recipe.span_length,
            sentinels=self.sentinels,
        )


def _sentinels(tokenizer: Tokenizer) -> list[int]:
    # Raffel et al. 2020, Section 3.1.4; T5's vocabulary has 100 of them.
    candidates = [tokenizer.token_to_id(f"<extra_id_{i}>") for i in range(SENTINELS)]
    sentinels = [token for token in candidates if token is not None]
    if not sentinels:
        raise DataError("the tokenizer has no sentinels (<extra_id_0> …)", "use T5's, or learn one")
    return sentinels
