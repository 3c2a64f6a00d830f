"""Attention rollout (Abnar and Zuidema 2020): attention through all layers of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from regard.look import drawing
from regard.look.backdrop import Backdrop
from regard.look.drawing import terminal
from regard.look.recording import Look, even_weights, mean_over_heads, recorded_attentions
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
    # The rollout of even attention, which the weights are drawn against.
    even: Array | None = field(default=None, metadata=PICTURE_ONLY)  # [positions, inputs]

    note = (
        "Attention rollout (Abnar and Zuidema 2020): product over layers of (mean over heads + "
        "identity) / 2. Not a causal explanation."
    )

    @property
    def title(self) -> str:
        return f"attention rollout of the {self.stack}"

    def numpy(self) -> Array:
        return self.weights

    def shades(self) -> Array:
        """The weights as they are drawn: shades from 0 to 1, against even attention."""
        return drawing.attention_shades(self.weights, self.even)

    def scene(self) -> drawing.Scene:
        if self.backdrop is not None:
            return self._overlay(self.backdrop)
        return drawing.attention_heat(
            self.weights, self.tokens, self.tokens, even=self.even, title=self.title
        )

    def _overlay(self, backdrop: Backdrop) -> drawing.Scene:
        """What reaches the position that stands for the input, or the mean of all, on the input."""
        rows = slice(None) if backdrop.query is None else [backdrop.query]
        even = self.even
        if even is None:
            even = drawing.even_attention(self.weights > 0)
        panel = drawing.Panel("", self.weights[rows].mean(axis=0), even[rows].mean(axis=0))
        return backdrop.attended([panel], title=self.title)

    def lines(self, width: int = 100) -> list[str]:
        return terminal.heat(
            self.weights, self.tokens, self.tokens, width=width, shades=self.shades()
        )


def rollout(run: Look, stack: str | None = None) -> Rollout:
    """The rollout of one stack's self-attention, by default of the first stack that has any."""
    if stack is None:
        first = recorded_attentions(run, "self")[0]
        stack = first.rsplit(".", 2)[0]  # "encoder" of "encoder.0.self"
    names = recorded_attentions(run, f"{stack}.*.self")
    # [T, T] of each layer, in double precision: products of many
    layers = [mean_over_heads(run.call(name)).astype(np.float64) for name in names]
    even_layers = [even_weights(run.call(name)).mean(axis=0) for name in names]
    return Rollout(
        stack,
        run.labels(names[0])[0],
        _rolled(layers),
        run.backdrop_of(names[0]),
        _rolled(even_layers),
    )


def _rolled(layers: Sequence[Array]) -> Array:
    """The product of (attention + identity) / 2 of all layers, first layer first."""
    rolled = np.eye(len(layers[0]))
    for weights in layers:
        # The residual connection carries each position on.
        mixed = weights + np.eye(len(weights))
        mixed /= mixed.sum(axis=1, keepdims=True)
        # Later layers mix what earlier ones have mixed: they multiply from the left.
        rolled = mixed @ rolled
    return rolled
