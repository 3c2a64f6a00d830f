"""Attention rollout (Abnar and Zuidema 2020): attention through all layers of a stack."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from regard.look import drawing, terminal
from regard.look.backdrop import Backdrop
from regard.look.recording import Look, mean_over_heads, recorded_attentions
from regard.look.result import PICTURE_ONLY, AnalysisResult, Array


@dataclass(frozen=True)
class Rollout(AnalysisResult):
    """How much of each input position reaches each position of the last layer.

    It is what would reach it if attention were all that moves information.
    """

    stack: str
    tokens: tuple[str, ...]
    weights: Array  # [positions, inputs]; each row sums to 1
    backdrop: Backdrop | None = field(default=None, metadata=PICTURE_ONLY)

    note = (
        "Attention rollout (Abnar and Zuidema 2020): products of (heads' mean + identity) / 2. "
        "Not an explanation."
    )

    @property
    def title(self) -> str:
        return f"attention rollout of the {self.stack}"

    def numpy(self) -> Array:
        return self.weights

    def scene(self) -> drawing.Scene:
        if self.backdrop is not None:
            query = self.backdrop.query
            values = self.weights.mean(axis=0) if query is None else self.weights[query]
            return self.backdrop.pictured([("", values)], title=self.title, signed=False)
        return drawing.heat(
            self.weights, self.tokens, self.tokens, title=self.title, scale="attention"
        )

    def lines(self, width: int = 100) -> list[str]:
        return terminal.heat(self.weights, self.tokens, self.tokens, width=width, attention=True)


def rollout(run: Look, stack: str | None = None) -> Rollout:
    """The rollout of one stack's self-attention, by default of the first stack that has any."""
    if stack is None:
        first = recorded_attentions(run, "self")[0]
        stack = first.rsplit(".", 2)[0]  # "encoder" of "encoder.0.self"
    rolled: Array | None = None
    for name in recorded_attentions(run, f"{stack}.*.self"):
        # [T, T], in double precision: products of many layers
        weights = mean_over_heads(run.call(name)).astype(np.float64)
        weights += np.eye(len(weights))  # the residual connection carries each position on
        weights /= weights.sum(axis=1, keepdims=True)
        # Later layers mix what earlier ones have mixed: they multiply from the left.
        rolled = weights if rolled is None else weights @ rolled
    assert rolled is not None  # `recorded_attentions` names at least one
    name = f"{stack}.0.self"
    return Rollout(stack, run.labels(name)[0], rolled, run.backdrop_of(name))
