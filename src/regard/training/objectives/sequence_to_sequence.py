"""Sequence-to-sequence training: the target given the source, by teacher forcing (the paper's)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.core.context import Context
from regard.data.batching import (
    Batch,
    BatchSampler,
    BlockSampler,
    batch_indices,
    collate,
    corpus_sampler,
)
from regard.data.corpus import Corpus
from regard.data.text.tokenizer import Tokenizer
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch, GNMTPenalty, Greedy
from regard.evaluation.metrics.perplexity import corpus_nll, perplexity
from regard.evaluation.metrics.texts import Bleu, Chrf
from regard.evaluation.scores import Score, scored
from regard.families import folder as folders
from regard.models import Translator
from regard.training import model_spec
from regard.training.data.parallel_text import ParallelCorpora, parallel_corpora
from regard.training.engine.attention_entropy import ROWS, attention_entropy
from regard.training.objectives.distillation import translation_teacher
from regard.training.objectives.losses import (
    LossTerms,
    TokenLoss,
    cross_entropy,
    linear_cross_entropy,
)
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup
from regard.wirings.encoder_decoder import EncoderDecoder

UPDATES_PER_EPOCH = 50  # 1,500 in the 30 epochs of a run that names no steps
SMALLEST_BATCH = 512  # positions


class SequenceToSequence(Objective):
    """Trains a translator on pairs of token sequences.

    Lengths are rounded up to `pad_to_multiple_of`; above 1, batches are also filled up with empty
    rows, so that few shapes occur (on a GPU each shape is captured once). With a `teacher`, its
    distributions are learnt besides the targets (knowledge distillation).
    """

    name = "translate"
    base_tasks = ("translate",)
    base_advice = "give an encoder–decoder over text, such as Marian or T5"
    spec_classes = (spec.EncoderDecoder, spec.SequenceToSequence)
    trained_model: Translator
    data: ParallelCorpora

    def __init__(self, model: Translator, data: ParallelCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.translator = model
        self.teacher = translation_teacher(setup.recipe, model)
        self.train_corpus = data.train
        self.validation_corpus = data.valid
        self.validation_pairs = data.valid_pairs
        self.device = setup.device

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> ParallelCorpora:
        return parallel_corpora(setup, base)

    @classmethod
    def describe(cls, setup: Setup, data: ParallelCorpora) -> spec.Model:
        source = len(data.source_tokenizer)
        return model_spec.describe(setup.recipe, source, len(data.target_tokenizer))

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: ParallelCorpora, setup: Setup
    ) -> Translator:
        source = data.source_tokenizer
        target = data.target_tokenizer
        model_spec.check_vocabulary("source", description.source, len(source))
        model_spec.check_vocabulary("target", description.target, len(target))
        # Marian starts from padding and BART from the end; a model of our own has a start token.
        start = target.required_token_id("bos")
        ids = _special_token_ids(target, start)
        config = folders.describe(description, ids, model_type=setup.recipe.model_name)
        return Translator(model, description, source, target, start, config)

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        recipe = setup.recipe
        penalty = recipe.length_penalty
        kind = "gnmt" if isinstance(penalty, GNMTPenalty) else "power"
        ids = _special_token_ids(model.target_tokenizer, model.start)
        tokens = model.source_tokenizer.special_tokens
        return {
            "config.json": model.config,
            "generation_config.json": folders.generation_config(
                ids,
                beam=recipe.decode.beam,
                length_penalty=penalty.alpha,
                search={kind: penalty.alpha},
            ),
            "tokenizer_config.json": folders.tokenizer_config(
                tokens["pad"], tokens["bos"], tokens["eos"], tokens.get("unk")
            ),
        }

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

    def input_statistics(self) -> InputStatistics:
        return corpus_statistics(self.train_corpus, "source", len(self.translator.source_tokenizer))

    @property
    def model(self) -> EncoderDecoder:
        return self.translator.model

    def _order(self) -> BatchSampler | BlockSampler:
        return corpus_sampler(
            self.train_corpus,
            self.settings.batch_tokens,
            seed=self.settings.seed,
            multiple=self.pad_to_multiple_of,
        )

    def batches_per_epoch(self) -> int:
        return self._order().batches_per_epoch()

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        fill_up_to = self.settings.batch_tokens if self.pad_to_multiple_of > 1 else 0
        for now, i, rows in self._order().iterate(epoch, index):
            # The position of the next batch comes with each: a checkpoint stores that.
            yield (now, i + 1), self.collate(self.train_corpus, rows, fill_up_to)

    def collate(self, corpus: Corpus, rows: Any, budget: int = 0) -> Batch:
        return collate(
            corpus,
            rows,
            source_pad=self.translator.special_tokens.pad,
            target_pad=self.translator.target_tokenizer.required_token_id("pad"),
            start=self.translator.start,
            multiple=self.pad_to_multiple_of,
            budget=budget,
        )

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        r_drop_weight = self.settings.r_drop
        passes = 1
        if r_drop_weight:
            # R-Drop: the batch twice in one forward, with other dropout masks.
            passes = 2
            tensors = {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}
        smoothing = self.settings.label_smoothing
        teacher = self.teacher

        def token_loss(head: Any, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            if teacher is None:
                return linear_cross_entropy(head, hidden, labels, smoothing, r_drop_weight)
            return teacher.loss(head(hidden), labels, tensors, smoothing)

        terms = teacher_forced_loss(self.model, tensors["source"], tensors, token_loss)
        # Two passes count their tokens once: the loss is the mean of both.
        return self.total(replace(terms, count=torch.as_tensor(terms.count) / passes))

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        source = self.translator.source_tokenizer
        target = self.translator.target_tokenizer
        return [
            {
                "row": row,
                "source": _token_text(source, self.train_corpus.source(row).tolist()),
                "target": _token_text(target, self.train_corpus.target(row).tolist()),
            }
            for row in rows
        ]

    # --- validation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """Unsmoothed loss per token, perplexity and attention entropy; samples; BLEU if watched."""
        if self.validation_corpus is None:
            return None
        nll, tokens = self._nll(self.validation_corpus, autocast)
        metrics: dict[str, Any] = {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
        }
        # Entropy that collapses announces unstable training (Zhai et al. 2023).
        metrics |= self._attention_entropy(self.validation_corpus)
        return metrics | self._translation_metrics()

    def _translation_metrics(self) -> dict[str, Any]:
        """Scores by greedy decoding, if the recipe's metric is one; and some samples."""
        samples = self.settings.samples
        is_scored = self.settings.metric != "loss"
        # Decoding takes longer than the loss: without need, only the samples are translated.
        pairs = self.validation_pairs if is_scored else self.validation_pairs[:samples]
        if not pairs:
            return {}
        metrics: dict[str, Any] = {}
        # Greedy: fast, and good enough to compare checkpoints; the final score uses the beam.
        texts = translate(self.translator, pairs, DecodingSettings(Greedy()))
        if is_scored:
            result = scored("translate", texts, [target for _, target in pairs])
            metrics |= {
                "bleu": result.bleu,
                "chrf": result.chrf,
                "exact_match": result.exact_match,
            }
        metrics["samples"] = [
            {"source": source, "translation": text, "reference": target}
            for (source, target), text in zip(pairs[:samples], texts, strict=False)
        ]
        return metrics

    @torch.inference_mode()
    def _nll(self, corpus: Corpus, autocast: AbstractContextManager[Any]) -> tuple[float, int]:
        self.model.eval()

        def logits_loss(head: Any, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            return cross_entropy(head(hidden), labels)

        def batch_nll(rows: Any) -> tuple[Tensor, int]:
            batch = self.collate(corpus, rows).to(self.device)
            with autocast:
                tensors = batch.tensors
                terms = teacher_forced_loss(self.model, tensors["source"], tensors, logits_loss)
            return terms.nll, batch.tokens

        budget = self.settings.batch_tokens
        # Not shuffled: batches of similar lengths, the same at every validation.
        batches = batch_indices(corpus.lengths, budget, seed=0, epoch=0, shuffle=False)
        return corpus_nll(batch_nll(rows) for rows in batches)

    def _attention_entropy(self, corpus: Corpus) -> dict[str, Any]:
        """Attention entropy on the first few validation pairs."""
        rows = np.arange(min(ROWS, len(corpus)))
        # source [B, S], target and labels [B, T]
        tensors = self.collate(corpus, rows).to(self.device).tensors
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
            texts = translate(self.translator, pairs, settings)
            result = scored(
                "translate", texts, [target for _, target in pairs], tokenize=decode.tokenize
            )
            # Without its signature, a BLEU score cannot be compared (Post 2018).
            result.signature = Bleu(decode.tokenize).signature()
            result.chrf_signature = Chrf().signature()
            scores[name] = result
            self.setup.say(
                f"{name}: {result}  "
                f"({len(pairs):,} sentences in {time.perf_counter() - started:.1f} s)  "
                f"{result.signature}"
            )
        return scores


def teacher_forced_loss(
    model: Any,
    source: Tensor,
    tensors: Mapping[str, Tensor],
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


def _special_token_ids(target: Tokenizer, start: int) -> folders.SpecialTokenIds:
    """The ids are those of the decoder, which starts and ends by them."""
    return folders.SpecialTokenIds(
        target.required_token_id("pad"),
        start,
        target.required_token_id("eos"),
        target.special_token_id("unk"),
    )


def _token_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of a row with its unknown tokens visible, without its end token."""
    return "".join(tokenizer.tokens(ids[:-1])).replace("▁", " ").strip()


def translate(
    translator: Translator, pairs: Sequence[tuple[str, str]], settings: DecodingSettings
) -> list[str]:
    """The best translation of each source; an empty text where the search found none."""
    hypotheses = translator.hypotheses([source for source, _ in pairs], settings)
    return [translator.text(best[0]) if best else "" for best in hypotheses]
