"""The attention map: who looks at whom, for each head of an attention."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from regard.look import drawing
from regard.look.backdrop import Backdrop
from regard.look.drawing import terminal
from regard.look.result import PICTURE_ONLY, AnalysisResult, Array


@dataclass(frozen=True)
class AttentionMap(AnalysisResult):
    """The attention weights of some heads and queries of one attention; each row sums to 1."""

    name: str
    heads: tuple[int, ...]
    rows: tuple[str, ...]  # queries
    columns: tuple[str, ...]  # keys
    weights: Array  # [heads, rows, columns]
    # What the columns stand on, and the row that is laid over it; None is the mean of all.
    backdrop: Backdrop | None = field(default=None, metadata=PICTURE_ONLY)
    query: int | None = field(default=None, metadata=PICTURE_ONLY)
    # What the weights would be if each query attended alike to all keys that it may attend to.
    even: Array | None = field(default=None, metadata=PICTURE_ONLY)  # [heads or 1, rows, columns]

    note = (
        "Rows are queries, columns keys. Attention weights show where a head attends, not why the "
        "model predicts something."
    )

    @property
    def title(self) -> str:
        return f"{self.name}, head {', '.join(map(str, self.heads))}"

    def numpy(self) -> Array:
        return self.weights

    def scene(self) -> drawing.Scene:
        if self.backdrop is not None:
            return self._overlay(self.backdrop)
        if len(self.heads) > 1:
            return drawing.grid(self._panels(), self.rows, self.columns, title=self.name)
        panel = self._panels()[0]
        maps = [
            drawing.attention_heat(
                panel.weights, self.rows, self.columns, even=panel.even, title=self.title
            )
        ]
        if panel.weights.size <= drawing.MOST_CELLS:
            # Beyond that, the lines would be a black block.
            maps.append(drawing.links(panel.weights, self.rows, self.columns, even=panel.even))
        return drawing.below(maps)

    def even_weights(self) -> Array:
        """The weights of even attention, [heads, rows, columns]."""
        if self.even is None:
            return drawing.even_attention(self.weights > 0)
        return np.broadcast_to(self.even, self.weights.shape)

    def shades(self) -> Array:
        """The weights as they are drawn: shades from 0 to 1, against even attention."""
        return drawing.attention_shades(self.weights, self.even_weights())

    def _panels(self) -> list[drawing.Panel]:
        """A panel for each head."""
        return [
            drawing.Panel(f"head {head}", weights, even)
            for head, weights, even in zip(
                self.heads, self.weights, self.even_weights(), strict=True
            )
        ]

    def _overlay(self, backdrop: Backdrop) -> drawing.Scene:
        """Where each head looks, on the input itself; of tokens, a row for each of them."""
        if self.name.endswith(".cross"):
            mean = self.weights.mean(axis=0)
            even = self.even_weights().mean(axis=0)
            return backdrop.table(mean, self.rows, title=self.name, scale="attention", even=even)
        rows = slice(None) if self.query is None else [self.query]
        panels = [
            drawing.Panel(
                panel.name, panel.weights[rows].mean(axis=0), panel.even[rows].mean(axis=0)
            )
            for panel in self._panels()
        ]
        title = f"{self.name}: attention from all positions"
        if self.query is not None:
            who = backdrop.position_name(self.rows[self.query])
            title = f"{self.name}: attention from {who}"
        return backdrop.attended(panels, title=title)

    def lines(self, width: int = 100) -> list[str]:
        lines: list[str] = []
        for panel in self._panels():
            if lines:
                lines.append("")
            if len(self.heads) > 1:
                lines.append(panel.name)
            shades = drawing.attention_shades(panel.weights, panel.even)
            lines += terminal.heat(
                panel.weights, self.rows, self.columns, width=width, shades=shades
            )
        return lines
