"""What surrounds the sequences of one batch: where they begin, where they must end, and what they may hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEVER = float("-inf")


@dataclass(frozen=True)
class Frame:
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

    def ends(self, tokens: Tensor) -> Tensor:
        """Which of these tokens end an output."""
        found = tokens == self.end
        for other in self.also:
            found = found | (tokens == other)
        return found

    @property
    def steps(self) -> int:
        return int(self.limits.max())

    @property
    def capacity(self) -> int:
        """How many tokens a decoding state must hold."""
        return self.steps + self.first.shape[1] - 1

    def allowed(self, logits: Tensor, t: Tensor, sentences: Tensor, *, first: bool) -> Tensor:
        """logits [rows, V] of step t, with −∞ for what may not be chosen; `sentences` [rows] says whose they are."""
        logits = logits.float().index_fill(1, self.banned, NEVER)
        if self.opening is not None and first:
            return _only(logits, self.opening)
        if self.not_first is not None and first:
            logits = logits.index_fill(1, self.not_first, NEVER)
        if self.closing:
            last = self.limits[sentences] == t + 1
            return torch.where(last[:, None], _only(logits, self.end), logits)
        return logits


def _only(logits: Tensor, token: int) -> Tensor:
    forced = torch.full_like(logits, NEVER)
    forced[:, token] = 0.0
    return forced
