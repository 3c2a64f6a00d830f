"""Sequence-to-sequence training: the target given the source, by teacher forcing (the paper's)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.core.context import Context
from regard.data.batching import corpus_sampler
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch, Greedy
from regard.evaluation.metrics.texts import Bleu, Chrf
from regard.evaluation.scores import Score, scored
from regard.models import Translator
from regard.system.errors import SettingError
from regard.training import model_spec
from regard.training.data.parallel_text import Pairs, ParallelCorpora
from regard.training.engine.attention_entropy import ROWS, attention_entropy
from regard.training.objectives.losses import (
    LossSums,
    LossTerms,
    Tensors,
    TokenLoss,
    linear_cross_entropy,
)
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup
from regard.wirings.encoder_decoder import EncoderDecoder

UPDATES_PER_EPOCH = 50  # 1,500 in the 30 epochs of a run that names no steps
SMALLEST_BATCH = 512  # positions


class SequenceToSequence(Objective):
    """Trains a translator on pairs of token sequences.

    With a `teacher`, its distributions are learnt besides the targets (knowledge distillation).
    """

    name = "translate"
    source_class = Pairs
    base_tasks = ("translate",)
    base_advice = "give an encoder–decoder over text, such as Marian or T5"
    spec_classes = (spec.EncoderDecoder, spec.SequenceToSequence)
    trained_model: Translator
    data: ParallelCorpora

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def describe(cls, setup: Setup, data: ParallelCorpora) -> spec.Model:
        source = len(data.source_tokenizer)
        return model_spec.describe(setup.recipe, source, len(data.target_tokenizer))

    @classmethod
    def fitting_batch_tokens(cls, model: Any, data: ParallelCorpora, setup: Setup) -> int:
        """Small enough for many updates in an epoch."""
        train = setup.recipe.train
        size = train.batch_tokens
        order = corpus_sampler(data.train, size, seed=train.seed, multiple=setup.pad_to_multiple_of)
        batches = order.batches_per_epoch()
        while batches < UPDATES_PER_EPOCH and size > SMALLEST_BATCH:
            size //= 2
            batches *= 2  # about: half the tokens a batch are twice the batches
        return size

    # --- training ---------------------------------------------------------------------------------

    def loss(self, tensors: Tensors) -> LossSums:
        r_drop = self.settings.r_drop if self.model.training else 0.0
        passes = 1
        if r_drop:
            # R-Drop: the batch twice in one forward, with other dropout masks.
            passes = 2
            tensors = {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}
        token_loss = self.token_loss(tensors, self.settings.label_smoothing, r_drop)
        terms = teacher_forced_loss(self.model, tensors["source"], tensors, token_loss)
        # Two passes count their tokens once: the loss is the mean of both.
        return self.total(replace(terms, count=torch.as_tensor(terms.count) / passes))

    @staticmethod
    def teacher_logits(teacher: Translator, tensors: Tensors) -> Tensor:
        """By teacher forcing on the same targets as the student, which it must frame alike."""
        hidden, _ = teacher.model(tensors["source"], tensors["target"], tensors.get("padding_mask"))
        return teacher.model.head(hidden)

    # --- validation -------------------------------------------------------------------------------

    def measures(self) -> dict[str, Any]:
        # Entropy that collapses announces unstable training (Zhai et al. 2023).
        return self._attention_entropy() | self.text_measures(
            "translate",
            self._translations,
            self.data.valid_pairs,
            ("source", "translation", "reference"),
        )

    def _translations(self, count: int) -> list[str]:
        # Greedy: fast, and good enough to compare checkpoints; the final score uses the beam.
        pairs = self.data.valid_pairs[:count]
        return translate(self.trained_model, pairs, DecodingSettings(Greedy()))

    def _attention_entropy(self) -> dict[str, Any]:
        """Attention entropy on the first few validation pairs."""
        rows = np.arange(min(ROWS, len(self.source.splits["valid"])))
        # source [B, S], target and labels [B, T]
        tensors = self.collate("valid", rows).to(self.setup.device).tensors
        source = tensors["source"]
        target = tensors["target"]
        source_mask = tensors.get("padding_mask")
        return attention_entropy(
            lambda probe: self.model(source, target, source_mask, Context(probe=probe)),
            padding_masks={"encoder": source_mask, "decoder": tensors["labels"] >= 0},
        )

    def scores(self) -> dict[str, Score]:
        """Scores on the test sets, by the recipe's beam search."""
        scores: dict[str, Score] = {}
        decode = self.setup.recipe.decode
        penalty = self.setup.recipe.length_penalty
        # Beam 4 and α = 0.6 by default (Section 6.1 of the paper).
        settings = DecodingSettings(BeamSearch(decode.beam, penalty))
        for name, pairs in self.data.test_sets.items():
            started = time.perf_counter()
            texts = translate(self.trained_model, pairs, settings)
            result = self._scored(texts, [target for _, target in pairs])
            scores[name] = result
            signature = ""
            if "bleu" in vars(result):
                # Without its signature, a BLEU score cannot be compared (Post 2018).
                signature = result.signature = Bleu(decode.tokenize).signature()
                result.chrf_signature = Chrf().signature()
            self.setup.say(
                f"{name}: {result}  "
                f"({len(pairs):,} sentences in {time.perf_counter() - started:.1f} s)  "
                f"{signature}"
            )
        return scores

    def _scored(self, texts: Sequence[str], references: Sequence[Any]) -> Score:
        """The scores of the task; of summaries without ROUGE, where its package is missing."""
        task = self.setup.recipe.task
        tokenize = self.setup.recipe.decode.tokenize
        try:
            return scored(task, texts, references, tokenize=tokenize)
        except SettingError as error:
            if task != "summarize":
                raise
            self.setup.say(f"no ROUGE: {error}")
            return scored(self.name, texts, references, tokenize=tokenize)


def teacher_forced_loss(
    model: Any,
    source: Tensor,
    tensors: Tensors,
    token_loss: TokenLoss = linear_cross_entropy,
) -> LossTerms:
    """The loss of labels [B, T], which are the target one token later, given the source."""
    labels = tensors["labels"]
    context = target_context(model, labels)
    padding_mask = tensors.get("padding_mask")  # of the source
    hidden, auxiliary = model(source, tensors["target"], padding_mask, context)  # [B, T, D]
    loss, nll = token_loss(model.head, hidden, labels)
    return LossTerms(loss, nll, auxiliary, (labels >= 0).sum())


def target_context(model: EncoderDecoder, labels: Tensor) -> Context:
    """The padding mask of the targets of labels [B, T], which are negative where ignored.

    Attention needs no padding mask of the targets, because a causal mask hides what is on the
    right. BatchNorm and experts do: they would count padding as tokens.
    """
    if not model.decoder.meets_padding:
        return Context()
    # Up to the last label: a prompt at the start has ignored labels, and is no padding.
    labels_from_here = (labels >= 0).flip(1).cumsum(1).flip(1)  # [B, T]
    return Context(target_padding_mask=labels_from_here > 0)


def translate(
    translator: Translator, pairs: Sequence[tuple[str, str]], settings: DecodingSettings
) -> list[str]:
    """The best translation of each source; an empty text where the search found none."""
    hypotheses = translator.hypotheses([source for source, _ in pairs], settings)
    return [translator.text(best[0]) if best else "" for best in hypotheses]
