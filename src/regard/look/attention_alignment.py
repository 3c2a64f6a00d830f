"""Word alignment from cross-attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import SettingError
from regard.look import drawing, terminal
from regard.look.recording import Look, mean_over_heads, recorded_attentions
from regard.look.result import AnalysisResult, Array


@dataclass(frozen=True)
class Alignment(AnalysisResult):
    """The cross-attention of each target token; `links` are its strongest source tokens."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Array  # [target, source]
    links: tuple[tuple[int, int], ...]  # (target, source)
    layer: int
    heads: tuple[int, ...]

    note = (
        "Cross-attention while each target token was written, as a mean over the heads. "
        "Not a certain alignment."
    )

    @property
    def title(self) -> str:
        return f"alignment by decoder layer {self.layer}, heads {', '.join(map(str, self.heads))}"

    def numpy(self) -> Array:
        return self.weights

    def scene(self) -> drawing.Scene:
        # Lines for the strongest weights only; the heat map shows all.
        strongest = np.zeros_like(self.weights)
        for row, column in self.links:
            strongest[row, column] = self.weights[row, column]
        return drawing.below(
            [
                drawing.heat(self.weights, self.target, self.source, title=self.title),
                drawing.links(strongest, self.target, self.source),
            ]
        )

    def lines(self, width: int = 100) -> list[str]:
        return terminal.heat(self.weights, self.target, self.source, width=width)


def alignment(run: Look, layer: int | None = None, heads: Sequence[int] | None = None) -> Alignment:
    """The alignment by one decoder layer's cross-attention, as the mean of some heads.

    By default of the penultimate layer, which aligns best (Garg et al. 2019), and of all heads.
    """
    names = recorded_attentions(run, "cross")
    if layer is None:
        layer = max(0, len(names) - 2)
    if not 0 <= layer < len(names):
        raise SettingError(
            f"there is no decoder layer {layer}", f"the layers are 0 to {len(names) - 1}"
        )
    name = names[layer]
    call = run.call(name)
    head_count = call.q.shape[1]
    if heads is None:
        heads = range(head_count)
    if not all(0 <= head < head_count for head in heads):
        raise SettingError(
            f"the layer has no head {max(heads)}", f"its heads are 0 to {head_count - 1}"
        )
    weights = mean_over_heads(call, heads)  # [target, source]
    links = tuple((row, int(column)) for row, column in enumerate(weights.argmax(axis=1)))
    target, source = run.labels(name)
    return Alignment(source, target, weights, links, layer, tuple(heads))
