"""The attention map: who looks at whom, for each head of an attention."""

from __future__ import annotations

from dataclasses import dataclass, field

from regard.look import drawing, terminal
from regard.look.backdrop import Backdrop
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

    note = (
        "A row is a query, a column what it looks at. Attention shows where a head looks, not why "
        "the model says something."
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
            panels = [
                (f"head {head}", weights)
                for head, weights in zip(self.heads, self.weights, strict=True)
            ]
            return drawing.grid(panels, self.rows, self.columns, title=self.name)
        weights = self.weights[0]
        maps = [drawing.heat(weights, self.rows, self.columns, title=self.title, scale="attention")]
        if weights.size <= drawing.MOST_CELLS:
            # Beyond that, the lines would be a black block.
            maps.append(drawing.links(weights, self.rows, self.columns))
        return drawing.below(maps)

    def _overlay(self, backdrop: Backdrop) -> drawing.Scene:
        """Where each head looks, on the input itself; of tokens, a row for each of them."""
        if self.name.endswith(".cross"):
            mean = self.weights.mean(axis=0)
            return backdrop.table(mean, self.rows, title=self.name, scale="attention")
        rows = slice(None) if self.query is None else [self.query]
        panels = [
            (f"head {head}", weights[rows].mean(axis=0))
            for head, weights in zip(self.heads, self.weights, strict=True)
        ]
        title = f"{self.name}: where all positions look"
        if self.query is not None:
            who = backdrop.position_name(self.rows[self.query])
            title = f"{self.name}: where {who} looks"
        return backdrop.pictured(panels, title=title, signed=False)

    def lines(self, width: int = 100) -> list[str]:
        lines: list[str] = []
        for head, weights in zip(self.heads, self.weights, strict=True):
            if lines:
                lines.append("")
            if len(self.heads) > 1:
                lines.append(f"head {head}")
            lines += terminal.heat(weights, self.rows, self.columns, width=width, attention=True)
        return lines
