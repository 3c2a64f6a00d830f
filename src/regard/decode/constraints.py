"""What surrounds the sequences of one batch: where they begin, where they must end, and what they may hold."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NEVER = float("-inf")


@dataclass(frozen=True)
class Rules:
    """What depends on the tokens so far: `least` of them before an end, and no run of `no_repeat` twice, `before` included."""

    least: int
    no_repeat: int
    before: Tensor  # [B, P] what the decoder has read when decoding begins


@dataclass(frozen=True)
class Constraints:
    """`opening`: the first token chosen, whatever the model says; `closing`: the last token that a limit allows is the end;
    `not_first`: ids that are not chosen first; `also`: further tokens that end an output."""

    first: Tensor  # [B, P] what decoding begins with
    limits: Tensor  # [B] most tokens for each sentence
    end: int
    banned: Tensor  # ids that are never chosen
    opening: int | None = None
    closing: bool = False
    not_first: Tensor | None = None
    also: tuple[int, ...] = ()
    rules: Rules | None = None

    @property
    def alike(self) -> bool:
        """Whether the first turn is like the others."""
        return (
            self.opening is None
            and not (self.not_first is not None and len(self.not_first))
            and self.first.shape[1] == 1
        )

    @property
    def said(self) -> tuple[Hashable, ...]:
        """What turns depend on besides tensors."""
        rules = None if self.rules is None else (self.rules.least, self.rules.no_repeat)
        return self.end, self.opening, self.closing, self.also, rules

    def ends(self, tokens: Tensor) -> Tensor:
        """Which of these tokens end an output."""
        found = tokens == self.end
        for other in self.also:
            found = found | (tokens == other)
        return found

    @cached_property
    def steps(self) -> int:
        return int(self.limits.max())

    @property
    def capacity(self) -> int:
        """How many tokens a decoding state must hold."""
        return self.steps + self.first.shape[1] - 1

    def allowed(self, logits: Tensor, t: Tensor, sentences: Tensor, *, first: bool) -> Tensor:
        """logits [rows, V] of step t, with −∞ for what may not be chosen, in their place; `sentences` [rows] says whose they
        are."""
        logits = logits.index_fill_(1, self.banned, NEVER)
        if self.opening is not None and first:
            return _only(logits, self.opening)
        if self.not_first is not None and first:
            logits = logits.index_fill_(1, self.not_first, NEVER)
        if self.closing:
            last = self.limits[sentences] == t + 1
            return torch.where(last[:, None], _only(logits, self.end), logits)
        return logits

    def withheld(
        self, like: Tensor, t: Tensor, sentences: Tensor, written: Tensor, *, first: bool
    ) -> Tensor | None:
        """[rows, V], as `like`: what the rules forbid at step t, when `written` [rows, L] holds t tokens; None for nothing.
        What is forced stays. Beams take it from log-probabilities, without giving its share to others, as transformers."""
        rules = self.rules
        if (
            rules is None
            or not (rules.least or rules.no_repeat)
            or (first and self.opening is not None)
        ):
            return None
        found = torch.zeros_like(like, dtype=torch.bool)
        if rules.least:
            for end in (self.end, *self.also):
                if end >= 0:
                    found[:, end] = t < rules.least
        size = rules.no_repeat
        if size and size <= rules.before.shape[1] + written.shape[1]:
            said = torch.cat([rules.before[sentences], written], dim=1)
            found = found | _repeats(said, rules.before.shape[1] + t, size, like.shape[1])
        if self.closing:
            found = found & (self.limits[sentences] != t + 1)[:, None]
        return found


def _repeats(said: Tensor, length: Tensor, size: int, vocabulary: int) -> Tensor:
    """[rows, V]: the tokens that would complete a run of `size` that the first `length` [1] of said [rows, S] hold."""
    runs = said.unfold(1, size, 1)  # [rows, N, size]
    last = (length - size + 1 + torch.arange(size - 1, device=said.device)).clamp_min(0)
    same = (runs[..., :-1] == said[:, None, last]).all(dim=-1)
    same = same & (torch.arange(runs.shape[1], device=said.device) + size <= length)
    marked = torch.zeros(said.shape[0], vocabulary + 1, dtype=torch.bool, device=said.device)
    return marked.scatter(1, torch.where(same, runs[..., -1], vocabulary), True)[:, :vocabulary]


def _only(logits: Tensor, token: int) -> Tensor:
    forced = torch.full_like(logits, NEVER)
    forced[:, token] = 0.0
    return forced
