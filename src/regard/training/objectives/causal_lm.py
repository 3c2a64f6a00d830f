"""Causal language modelling: the next token, at every position of a text (GPT)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.core.context import Context
from regard.core.seeding import philox
from regard.data.batching import Batch
from regard.data.corpus import Corpus
from regard.data.epoch_order import RowOrder
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.decode.strategy import Greedy, Sampling
from regard.evaluation.metrics.perplexity import corpus_nll, perplexity
from regard.evaluation.scores import Score, scored
from regard.families import folder as folders
from regard.models import LanguageModel, Model
from regard.system.errors import DataError
from regard.training import model_spec
from regard.training.data.generated_examples import LINE_END
from regard.training.data.plain_text import TextCorpora, text_corpora
from regard.training.data.source import special_token_ids, text_model_files
from regard.training.engine.attention_entropy import ROWS, attention_entropy
from regard.training.objectives.distillation import language_model_teacher
from regard.training.objectives.losses import (
    LossTerms,
    TokenLoss,
    linear_cross_entropy,
)
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup
from regard.wirings.decoder import Decoder

SAMPLE_TOKENS = 200  # generated for each sample of a validation
# Limits of a validation batch: without gradients, few activations have to be stored.
MAX_POSITIONS = 1 << 14
MAX_LOGITS = 1 << 24  # positions × vocabulary: 64 MiB in float32
BATCHES_PER_RELEASE = 8  # batches after which pages that were read are released


class CausalLM(Objective):
    """Windows of `context` tokens at random positions of the text, as in nanoGPT: no epochs.

    Which windows make up batch i is a function of the seed and i. With a `teacher`, its
    distributions are learnt besides the tokens (knowledge distillation).
    """

    name = "causal"
    fills_context = True
    base_tasks = ("generate",)
    base_advice = "give a language model, such as GPT-2"
    spec_classes = (spec.Decoder, spec.RecurrentDecoder)
    trained_model: LanguageModel
    data: TextCorpora

    def __init__(self, model: LanguageModel, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.language_model = model
        self.teacher = language_model_teacher(setup.recipe, model)
        self.context = setup.recipe.data.context
        self.train_tokens = token_stream(data.train)
        self.validation_tokens = token_stream(data.valid)
        self.rows = max(1, self.settings.batch_tokens // self.context)  # B

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> TextCorpora:
        return text_corpora(setup, base)

    @classmethod
    def describe(cls, setup: Setup, data: TextCorpora) -> spec.Model:
        return model_spec.describe(setup.recipe, len(data.tokenizer))

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: TextCorpora, setup: Setup
    ) -> LanguageModel:
        model_spec.check_vocabulary("vocabulary", description.tokens, len(data.tokenizer))
        config = folders.describe(description, model_type=setup.recipe.model_name)
        config |= special_token_ids(data.tokenizer)
        return LanguageModel(model, description, data.tokenizer, config)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        return text_model_files(model, setup)

    # --- training ---------------------------------------------------------------------------------

    def input_statistics(self) -> InputStatistics:
        statistics = corpus_statistics(self.data.train, "text", len(self.data.tokenizer))
        return replace(statistics, longest=self.context)

    @property
    def model(self) -> Decoder:
        return self.language_model.model

    def batches_per_epoch(self) -> int:
        return max(1, round(len(self.train_tokens) / self.settings.batch_tokens))

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        mixture = RowOrder(self.data.train.spans, self.settings.seed)
        ranges = token_ranges(self.data.train, self.context)
        while True:
            # How many windows of each corpus this batch has.
            before = mixture.draws(index * self.rows)
            after = mixture.draws((index + 1) * self.rows)
            counts = np.subtract(after, before)
            first = np.repeat([first for first, _ in ranges], counts)
            possible = np.repeat([count for _, count in ranges], counts)  # starts of a window
            # Modulo is not exactly uniform, but 64 bits make the bias negligible.
            bits = philox(self.settings.seed, index).random_raw(self.rows)
            starts = first + (bits % possible.astype(np.uint64)).astype(np.int64)
            index += 1
            yield (epoch, index), windows(self.train_tokens, starts, self.context)
            if index % BATCHES_PER_RELEASE == 0:
                self.data.train.release_pages()

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        teacher = self.teacher
        # Validation measures the labels alone, without the teacher.
        if teacher is None or not self.model.training:
            return self.total(next_token_loss(self.model, tensors))

        def taught(head: Any, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            return teacher.loss(head(hidden), labels, tensors)

        return self.total(next_token_loss(self.model, tensors, token_loss=taught))

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        examples = []
        for row in rows:
            ids = self.train_tokens[row : row + self.context].tolist()
            examples.append({"row": row, "text": self.language_model.tokenizer.decode(ids)})
        return examples

    # --- validation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any]:
        """Loss per token and perplexity of the validation text, attention entropy, and samples."""
        nll, tokens = self.nll(autocast)
        metrics: dict[str, Any] = {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
            "tokens": tokens,
        }
        if self.settings.samples:
            metrics["samples"] = self._samples()
        return metrics | self._attention_entropy()

    @torch.inference_mode()
    def nll(self, autocast: AbstractContextManager[Any]) -> tuple[float, int]:
        """−log p of every validation token but the first, in windows that do not overlap."""
        self.model.eval()

        def batch_nll(starts: Any, length: int) -> tuple[Tensor, int]:
            batch = windows(self.validation_tokens, starts, length).to(self.language_model.device)
            with autocast:
                _, nll = self.loss(batch.tensors)
            return nll, batch.tokens

        return corpus_nll(batch_nll(starts, length) for starts, length in self._window_batches())

    def _window_batches(self) -> Iterator[tuple[Any, int]]:
        """(starts, length) of windows that cover the validation text; the last may be shorter."""
        length = self.context
        count = len(self.validation_tokens) - 1
        positions = min(MAX_POSITIONS, MAX_LOGITS // len(self.language_model.tokenizer))
        # Without gradients, more rows fit: few large batches are faster than many small ones.
        rows = max(self.rows, positions // length)  # never fewer than training has
        starts = np.arange(0, count - length + 1, length)  # of windows that fit completely
        for first in range(0, len(starts), rows):
            yield starts[first : first + rows], length
        rest = count % length  # every token counts exactly once
        if rest:
            yield np.array([count - rest]), rest

    def scores(self) -> dict[str, Score]:
        """Likelihood of the validation text, and exact match where a generated task tests it."""
        scores = super().scores()
        for name, pairs in self.data.test_sets.items():
            targets = [target for _, target in pairs]
            answers = self._answers([prompt for prompt, _ in pairs], targets)
            result = scored("translate", answers, targets)
            scores[name] = result
            self.setup.say(
                f"{name}: exact match {result.exact_match:.1f} %  ({len(pairs):,} texts)"
            )
        return scores

    def _answers(self, prompts: list[str], targets: list[str]) -> list[str]:
        """What greedy decoding writes after each prompt, up to the end of the line."""
        longest = max(len(ids) for ids in self.language_model.tokenizer.encode_batch(targets))
        # + 1: the line end, which the model must write too.
        texts = self.language_model.generate(
            prompts, Greedy(), max_new_tokens=longest + 1, truncation=True
        )
        return [text.partition(LINE_END)[0].strip() for text in texts]

    def _samples(self) -> list[dict[str, str]]:
        """Texts sampled from the model, starting with the first validation token."""
        prompt = self.language_model.tokenizer.decode(self.validation_tokens[:1].tolist())
        texts = self.language_model.generate(
            [prompt] * self.settings.samples,
            Sampling(seed=self.settings.seed),
            max_new_tokens=SAMPLE_TOKENS,
        )
        return [{"text": prompt + text} for text in texts]

    def _attention_entropy(self) -> dict[str, Any]:
        """Attention entropy on the first windows of the validation text."""
        length = min(self.context, len(self.validation_tokens) - 1)
        starts = np.arange(0, len(self.validation_tokens) - length, length)[:ROWS]
        batch = windows(self.validation_tokens, starts, length).to(self.language_model.device)
        tokens = batch.tensors["tokens"]
        return attention_entropy(
            lambda probe: self.model(tokens, None, Context(probe=probe)),
            padding_masks={"decoder": None},
        )


def next_token_loss(
    model: Any,
    tensors: Mapping[str, Tensor],
    context: Context | None = None,
    token_loss: TokenLoss = linear_cross_entropy,
) -> LossTerms:
    """The loss of the next token at every position; a `context` has the state that is carried."""
    hidden, auxiliary = model(tensors["tokens"], None, context)  # [B, T, D]
    labels = tensors["labels"]
    loss, nll = token_loss(model.head, hidden, labels)
    return LossTerms(loss, nll, auxiliary, labels.numel())


def windows(tokens: Any, starts: Any, length: int) -> Batch:
    """`tokens` and `labels` [B, T]: windows of a text, and the same one token later."""
    cells = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)  # [B, T + 1]
    tensors = {
        "tokens": torch.from_numpy(cells[:, :-1].copy()),
        "labels": torch.from_numpy(cells[:, 1:].copy()),
    }
    return Batch(tensors, len(starts) * length, starts)


def token_ranges(corpus: Corpus, context: int) -> list[tuple[int, int]]:
    """Of each corpus of a mixture: its first token, and how many windows can begin in it."""
    offsets = corpus.columns["text"].offsets
    ranges = []
    for span in corpus.spans:
        first = int(offsets[span.first])
        count = int(offsets[span.first + span.rows]) - first - context
        if count < 1:
            raise DataError(
                f"a corpus of the mixture has fewer than {context + 1} tokens",
                "give a smaller context, or leave it out",
            )
        ranges.append((first, count))
    return ranges


def token_stream(corpus: Corpus) -> Any:
    """All token ids of a corpus, one after the other, memory-mapped."""
    return corpus.columns["text"].tokens
