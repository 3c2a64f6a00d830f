"""Causal language modelling: the next token, at every position of a text (GPT)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.core.caches.kv_cache import DecoderState, LayerCache
from regard.core.context import Context
from regard.core.seeding import philox
from regard.data.batching import Batch
from regard.data.corpus import Corpus
from regard.data.epoch_order import RowOrder
from regard.data.training_coverage import InputStatistics
from regard.decode.strategy import Greedy, Sampling
from regard.evaluation.language_modelling import (
    MAX_LOGITS,
    covering_windows,
    segment_losses,
    state_tensors,
    windows_at,
)
from regard.evaluation.metrics.perplexity import corpus_nll
from regard.evaluation.scores import Score, scored
from regard.models import LanguageModel
from regard.system.errors import CheckpointError, DataError, SettingError
from regard.training.data.plain_text import PlainText, TextCorpora
from regard.training.data.splits import LINE_END
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

SAMPLE_TOKENS = 200  # generated for each sample of a validation
# Limits of a validation batch: without gradients, few activations have to be stored.
MAX_POSITIONS = 1 << 14
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
    source_class = PlainText
    trained_model: LanguageModel

    def __init__(self, model: LanguageModel, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.context = setup.recipe.data.context
        self.train_tokens = token_stream(data.train)
        self.validation_tokens = token_stream(data.valid)
        self.rows = max(1, self.settings.batch_tokens // self.context)  # B

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def create(cls, model: Any, data: TextCorpora, setup: Setup) -> Objective:
        """A SegmentLM if the model carries state between segments."""
        if cls is CausalLM and model.model.stack.carries_state:
            return SegmentLM(model, data, setup)
        return cls(model, data, setup)

    @classmethod
    def fitting_batch_tokens(cls, model: Any, data: TextCorpora, setup: Setup) -> int:
        """A short text is cut into fewer streams."""
        size = setup.recipe.train.batch_tokens
        context = setup.recipe.data.context
        streams = (len(token_stream(data.train)) - 1) // context
        if model.model.stack.carries_state and 1 <= streams < size // context:
            return streams * context
        return size

    # --- training ---------------------------------------------------------------------------------

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
            first, possible = np.repeat(ranges, counts, axis=0).T  # starts of a window
            # Modulo is not exactly uniform, but 64 bits make the bias negligible.
            bits = philox(self.settings.seed, index).random_raw(self.rows)
            starts = first + (bits % possible.astype(np.uint64)).astype(np.int64)
            index += 1
            yield (epoch, index), windows(self.train_tokens, starts, self.context)
            if index % BATCHES_PER_RELEASE == 0:
                self.data.train.release_pages()

    def loss(self, tensors: Tensors) -> LossSums:
        token_loss = self.token_loss(tensors)
        return self.total(next_token_loss(self.model, tensors, token_loss=token_loss))

    @staticmethod
    def teacher_logits(teacher: LanguageModel, tensors: Tensors) -> Tensor:
        hidden, _ = teacher.model(tensors["tokens"])
        return teacher.model.head(hidden)

    # --- validation -------------------------------------------------------------------------------

    def measures(self) -> dict[str, Any]:
        """Attention entropy, and samples."""
        metrics = self._attention_entropy()
        if self.settings.samples:
            metrics["samples"] = self._samples()
        return metrics

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        """Windows that cover the validation text without overlap; the last may be shorter."""
        self.model.eval()
        tokens = self.validation_tokens
        positions = min(MAX_POSITIONS, MAX_LOGITS // len(self.data.tokenizer))
        # Without gradients, more rows fit: few large batches are faster than many small ones.
        rows = max(self.rows, positions // self.context)  # never fewer than training has
        for starts, length in covering_windows(len(tokens) - 1, self.context, rows):
            yield windows(tokens, starts, length).to(self.trained_model.device)

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
        longest = max(len(ids) for ids in self.trained_model.tokenizer.encode_batch(targets))
        # + 1: the line end, which the model must write too.
        texts = self.trained_model.generate(
            prompts, Greedy(), max_new_tokens=longest + 1, truncation=True
        )
        return [text.partition(LINE_END)[0].strip() for text in texts]

    def _samples(self) -> list[dict[str, str]]:
        """Texts sampled from the model, starting with the first validation token."""
        prompt = self.trained_model.tokenizer.decode(self.validation_tokens[:1].tolist())
        texts = self.trained_model.generate(
            [prompt] * self.settings.samples,
            Sampling(seed=self.settings.seed),
            max_new_tokens=SAMPLE_TOKENS,
        )
        return [{"text": prompt + text} for text in texts]

    def _attention_entropy(self) -> dict[str, Any]:
        """Attention entropy on the first windows of the validation text."""
        tokens = next(self.evaluation_batches("valid")).tensors["tokens"][:ROWS]
        return attention_entropy(
            lambda probe: self.model(tokens, None, Context(probe=probe)),
            padding_masks={"decoder": None},
        )


def next_token_loss(
    model: Any,
    tensors: Tensors,
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
    cells = windows_at(tokens, starts, length)  # [B, T + 1]
    tensors = {"tokens": cells[:, :-1].clone(), "labels": cells[:, 1:].clone()}
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


# --- segments -------------------------------------------------------------------------------------


class SegmentLM(CausalLM):
    """Recurrent networks, Transformer-XL and the Compressive Transformer read a text in segments.

    The text is cut into as many streams as a batch has rows, and a batch is the next segment of
    each. The state of recurrent cells, or the memory of a Transformer-XL, is carried from segment
    to segment, while gradients stay inside: truncated back-propagation through time (Williams and
    Peng 1990, Dai et al. 2019). `carry` is the state of the layers after the last batch, which a
    checkpoint must hold.
    """

    def __init__(self, model: LanguageModel, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        if self.teacher is not None:
            raise SettingError(
                "a model with segment memory cannot have a teacher", "leave out the teacher"
            )
        # − 1: the label of the last token is the one after it.
        self.stream_length = (len(self.train_tokens) - 1) // self.rows
        if self.stream_length < self.context:
            raise DataError(
                f"{len(self.train_tokens):,} tokens are too few for "
                f"{self.rows} streams of {self.context}",
                "lower batch_tokens or context, or give more text",
            )
        tensors = _state_tensors(self._initial_states(self.rows))
        # Zeros, as a reset leaves them. Not on the model's device: a sharded one is on none yet.
        self.carry = {
            name: torch.zeros_like(tensor, device=setup.device) for name, tensor in tensors.items()
        }

    def _initial_states(self, rows: int) -> list[LayerCache]:
        return self.model.stack.start_segments(rows, self.trained_model.spec.d_model)

    def input_statistics(self) -> InputStatistics:
        # What is carried from segment to segment is one text, of any length.
        return replace(self.source.statistics(), longest=None)

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        if (index + 1) * self.context > self.stream_length:
            raise CheckpointError(
                f"the run is at segment {index:,} of a text with "
                f"{self.stream_length // self.context:,}",
                "start a new run; this one was trained on another text",
            )
        stream_starts = np.arange(self.rows) * self.stream_length  # [B]
        while True:
            # Segment `index` of every stream: row i goes on where it stopped in the batch before.
            starts = stream_starts + index * self.context
            batch = windows(self.train_tokens, starts, self.context)
            batch.tensors["goes_on"] = torch.tensor(index > 0)  # False resets the carried state
            index += 1
            if (index + 1) * self.context > self.stream_length:  # no further segment fits
                epoch += 1
                index = 0
            yield (epoch, index), batch

    def loss(self, tensors: Tensors) -> LossSums:
        # A product and not a branch: a captured CUDA graph takes the same way each time.
        ranks = self.setup.ranks
        carry = {
            name: ranks.rows(tensor) * tensors["goes_on"] for name, tensor in self.carry.items()
        }
        loss, nll, carry = self.segment_loss(tensors, carry)
        if ranks.weight:  # a rank that has no rows of its own has computed another's
            for name, tensor in carry.items():
                # In place: a captured CUDA graph reads and writes these buffers.
                ranks.rows(self.carry[name]).copy_(tensor)
        return loss, nll

    def segment_loss(
        self, tensors: Tensors, carry: Tensors
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Loss, −log p, and the state that is carried on, without its gradient."""
        # New containers, filled with what is carried: the model updates them in place.
        states = self._initial_states(len(tensors["tokens"]))
        for layer, state in enumerate(states):
            restored = {name: carry[f"{layer}.{name}"] for name in state_tensors(state)}
            state.self_attention = replace(state.self_attention, **restored)  # type: ignore[type-var]
        context = Context(state=DecoderState(states))
        loss, nll = self.total(next_token_loss(self.model, tensors, context))
        # detach: gradients stay inside the segment.
        after = {name: tensor.detach() for name, tensor in _state_tensors(states).items()}
        return loss, nll, after

    def nll(self, split: str) -> tuple[float, int]:
        """−log p of every validation token but the first, read in streams as in training."""
        # With a state of its own: that of training goes on afterwards.
        segments = segment_losses(
            self.trained_model, self.validation_tokens, self.context, self.rows
        )
        with self.autocast:
            return corpus_nll((sum(rows), width * len(rows)) for _, width, rows in segments)


def _state_tensors(states: list[LayerCache]) -> dict[str, Tensor]:
    """Every tensor of the layers' states, by `layer.name`."""
    return {
        f"{layer}.{name}": tensor
        for layer, state in enumerate(states)
        for name, tensor in state_tensors(state).items()
    }
