"""Constraints on what a batch may decode: start tokens, end tokens, forced and forbidden tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NEG_INF = float("-inf")


@dataclass(frozen=True)
class Constraints:
    """The constraints of one batch, as tensors on its device.

    `forced_bos`: the first token chosen, whatever the logits (mBART's target language).
    `forced_eos`: an output that reaches its length limit closes with the end token.
    `begin_suppressed`: token ids that are not chosen first.
    `extra_ends`: further token ids that end an output.
    `min_new_tokens`, `no_repeat_ngram_size`: rules that depend on the tokens so far, by the names
      of Hugging Face's generation config: a minimum length, and no n-gram twice; 0 is off.
    `repetition_penalty`: divides positive logits of tokens that have been read, and multiplies
      negative ones (Keskar et al. 2019); 1 is off.
    `stops`: whether a beam's tokens, of a sentence by its number, end an output as they are.
    """

    start_tokens: Tensor  # [B, P] the decoder's first input ids
    limits: Tensor  # [B] maximum number of new tokens of each sentence
    end: int
    banned: Tensor  # token ids that are never chosen
    forced_bos: int | None = None
    forced_eos: bool = False
    begin_suppressed: Tensor | None = None
    extra_ends: tuple[int, ...] = ()
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    # [B, P] what these rules count besides: read before decoding begins; −1 is padding.
    prefix: Tensor | None = None
    stops: Callable[[int, list[int]], bool] | None = None

    @property
    def first_step_is_regular(self) -> bool:
        """Whether the first step is like the later ones, so that one CUDA graph serves all."""
        suppresses = self.begin_suppressed is not None and len(self.begin_suppressed) > 0
        return self.forced_bos is None and not suppresses and self.start_tokens.shape[1] == 1

    @property
    def graph_key(self) -> tuple[Hashable, ...]:
        """The key of a captured CUDA graph, besides the shapes of tensors."""
        rules = (self.min_new_tokens, self.no_repeat_ngram_size, self.repetition_penalty)
        return self.end, self.forced_bos, self.forced_eos, self.extra_ends, rules

    @cached_property
    def max_steps(self) -> int:
        """The maximum number of tokens of an output."""
        return int(self.limits.max())

    @property
    def cache_capacity(self) -> int:
        """The number of positions that the KV cache must hold."""
        return self.max_steps + self.start_tokens.shape[1] - 1

    def is_end(self, tokens: Tensor) -> Tensor:
        """Which of these tokens end an output."""
        ends = tokens == self.end
        for other in self.extra_ends:
            ends = ends | (tokens == other)
        return ends

    def mask_logits(self, logits: Tensor, t: Tensor, sentences: Tensor, *, first: bool) -> Tensor:
        """logits [rows, V] of step t with −∞ for forbidden tokens; changes them in place.

        `sentences` [rows]: which sentence each row belongs to. Here and below t is the same for
        all rows, [1], or that of each, [rows].
        """
        logits = logits.index_fill_(1, self.banned, NEG_INF)
        if self.forced_bos is not None and first:
            return _force_token(logits, self.forced_bos)
        if self.begin_suppressed is not None and first:
            logits = logits.index_fill_(1, self.begin_suppressed, NEG_INF)
        if self.forced_eos:
            at_limit = self.limits[sentences] == t + 1
            return torch.where(at_limit[:, None], _force_token(logits, self.end), logits)
        return logits

    def forbidden_by_rules(
        self, logits: Tensor, t: Tensor, sentences: Tensor, generated: Tensor, *, first: bool
    ) -> Tensor | None:
        """[rows, V] True for tokens that the history rules forbid at step t; None if no rule is on.

        `generated` [rows, L] has t tokens so far. A forced token stays allowed. This is apart from
        `mask_logits` because beam search takes these tokens out after the softmax, without giving
        their probability to the others, as Hugging Face's logits processors do.
        """
        size = self.no_repeat_ngram_size
        if not (self.min_new_tokens or size) or (first and self.forced_bos is not None):
            return None
        forbidden = torch.zeros_like(logits, dtype=torch.bool)
        for end in (self.end, *self.extra_ends):
            if self.min_new_tokens and end >= 0:
                forbidden[:, end] = t < self.min_new_tokens
        history = self._history(sentences, generated)
        if size and size <= history.shape[1]:
            length = history.shape[1] - generated.shape[1] + t[:, None]
            forbidden |= _repeated_ngram_tokens(history, length, size, logits.shape[1])
        if self.forced_eos:
            at_limit = self.limits[sentences] == t + 1
            forbidden = forbidden & ~at_limit[:, None]
        return forbidden

    def penalize_repetition(
        self, scores: Tensor, t: Tensor, sentences: Tensor, generated: Tensor
    ) -> Tensor:
        """Scores [rows, V] with those of tokens lowered that the prefix or `generated` has."""
        if self.repetition_penalty == 1:
            return scores
        history = self._history(sentences, generated)
        length = history.shape[1] - generated.shape[1] + t[:, None]
        has_come = torch.arange(history.shape[1], device=t.device) < length
        read = _mark(history, has_come, scores.shape[1])
        penalty = self.repetition_penalty
        lowered = torch.where(scores < 0, scores * penalty, scores / penalty)
        return torch.where(read, lowered, scores)

    def _history(self, sentences: Tensor, generated: Tensor) -> Tensor:
        """[rows, P + L] what each row has read, and room for what it will."""
        if self.prefix is None:
            return generated
        return torch.cat([self.prefix[sentences], generated], dim=1)


def _repeated_ngram_tokens(history: Tensor, length: Tensor, size: int, vocabulary: int) -> Tensor:
    """[rows, V]: tokens that would complete an n-gram that the history already has.

    history [rows, S], of which the first `length` [rows or 1, 1] tokens count; `size` is n. The
    length is a tensor and nothing depends on its value, so that the step can be captured in a CUDA
    graph.
    """
    device = history.device
    ngrams = history.unfold(1, size, 1)  # [rows, N, size]
    suffix_positions = (length - size + 1 + torch.arange(size - 1, device=device)).clamp_min(0)
    suffix_positions = suffix_positions.expand(len(history), -1)
    suffix = history.gather(1, suffix_positions)[:, None]  # [rows, 1, size - 1] the last tokens
    same = (ngrams[..., :-1] == suffix).all(dim=-1)  # [rows, N]
    inside = torch.arange(ngrams.shape[1], device=device) + size <= length
    same = same & inside
    return _mark(ngrams[..., -1], same, vocabulary)


def _mark(tokens: Tensor, chosen: Tensor, vocabulary: int) -> Tensor:
    """[rows, V]: the tokens [rows, N] that are chosen."""
    # The others, and padding, write to one column more, which is cut off.
    columns = torch.where(chosen & (tokens >= 0), tokens, vocabulary)
    marked = columns.new_zeros(len(columns), vocabulary + 1, dtype=torch.bool)
    return marked.scatter(1, columns, True)[:, :vocabulary]


def _force_token(logits: Tensor, token: int) -> Tensor:
    """Logits that give all of the probability to one token."""
    forced = torch.full_like(logits, NEG_INF)
    forced[:, token] = 0.0
    return forced
