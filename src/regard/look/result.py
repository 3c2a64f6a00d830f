"""The base class of results: numbers, an HTML page, a picture, a table for a terminal."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from regard.look import drawing
from regard.look.drawing import Array as Array
from regard.look.drawing import terminal

if TYPE_CHECKING:
    from regard.look.backdrop import Backdrop

Names = tuple[str, ...]  # of tokens, layers, attentions


class AnalysisResult(ABC):
    """What an analysis returns; abstract, its subclasses are frozen dataclasses.

    `note` says how to read the result, on the page and below the table of a terminal.
    """

    note: ClassVar[str] = ""
    numbers: ClassVar[str]  # the field that the picture shows

    @property
    @abstractmethod
    def title(self) -> str: ...

    def numpy(self) -> Array:
        """The numbers that the picture shows."""
        return np.asarray(getattr(self, self.numbers))

    @abstractmethod
    def scene(self) -> drawing.Scene:
        """The picture."""

    def lines(self, width: int = 100) -> list[str]:
        """The table, or other lines for a terminal."""
        return terminal.table(self.table(), width=width)

    def table(self) -> list[list[str]]:
        """The rows of a table for a terminal, of a result that has no other lines."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values; `kind` names the class."""
        values = {
            field.name: to_json(getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if field.metadata != PICTURE_ONLY
        }
        return {"kind": type(self).__name__, "title": self.title, "note": self.note, **values}

    def _repr_html_(self) -> str:
        """The figure that a notebook shows."""
        note = f"<figcaption>{escape(self.note)}</figcaption>" if self.note else ""
        return drawing.figure(self.scene(), self.title, note)

    def to_html(self, path: str | Path) -> None:
        """Writes a self-contained HTML page."""
        drawing.write_page(Path(path), self.title, self._repr_html_())

    def to_png(self, path: str | Path) -> None:
        drawing.write_png(Path(path), self.scene())

    def __str__(self) -> str:
        lines = [self.title, "", *self.lines()]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines)


class HeadNumbers(AnalysisResult):
    """A number for each head of each attention: `numbers` are [attentions, heads].

    Rows are padded with NaN where layers have fewer heads.
    """

    names: Names  # of the attentions
    form: ClassVar[str] = ".3f"
    most: ClassVar[float | None] = None
    signed: ClassVar[bool] = False

    def scene(self) -> drawing.Scene:
        values = self.numpy()
        columns = list(map(str, range(values.shape[1])))
        inside = [[format(value, self.form) for value in row] for row in values]
        return drawing.heat(
            values,
            self.names,
            columns,
            title=self.title,
            signed=self.signed,
            most=self.most,
            inside=inside,
        )

    def lines(self, width: int = 100) -> list[str]:
        return terminal.by_head(self.names, self.numpy(), self.form, width=width)


def by_attention(rows: Sequence[Array]) -> Array:
    """A row for each attention: what is missing where one has fewer heads is NaN."""
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return table


# Metadata of a field that only the picture needs: JSON has the numbers that are laid over it.
PICTURE_ONLY = {"picture_only": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenAttention(AnalysisResult):
    """Attention weights between tokens, drawn as a heat map or on the input itself."""

    numbers = "weights"
    weights: Array  # [rows, columns], or [heads, rows, columns]
    # What the columns stand on
    backdrop: Backdrop | None = dataclasses.field(default=None, metadata=PICTURE_ONLY)
    # What the weights would be if each query attended alike to all keys that it may attend to
    even: Array | None = dataclasses.field(default=None, metadata=PICTURE_ONLY)
    # Whether a map is shaded against `even`; None: if the input is long
    relative: bool | None = dataclasses.field(default=None, metadata=PICTURE_ONLY)

    def shades(self) -> Array:
        """The weights as they are drawn: shades from 0 to 1."""
        return self.panel.shades

    @property
    def panel(self) -> drawing.Panel:
        return drawing.Panel(self.title, self.weights, self.even, relative=self.relative)


def to_json(value: Any) -> Any:
    """JSON values; a number that JSON does not have (−∞, NaN) becomes null."""
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
