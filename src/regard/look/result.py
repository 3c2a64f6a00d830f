"""What every analysis gives back: numbers, a page, a picture, lines for a terminal."""

from __future__ import annotations

import dataclasses
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from regard.look import drawing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = np.ndarray


class Result:
    """Abstract; the others are frozen dataclasses. `note` says how to read it, in the page and below it in a terminal."""

    note: ClassVar[str] = ""

    @property
    def title(self) -> str:
        raise NotImplementedError

    def numpy(self) -> Array:
        """The numbers that the picture shows."""
        raise NotImplementedError

    def scene(self) -> drawing.Scene:
        """The picture."""
        raise NotImplementedError

    def lines(self, width: int = 100) -> list[str]:
        """The table for a terminal."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Everything it holds as JSON values, under the names of its attributes; `kind` says what it is."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {
            "kind": type(self).__name__,
            "title": self.title,
            **{f.name: plain(getattr(self, f.name)) for f in fields},
        }

    def _repr_html_(self) -> str:
        note = f"<figcaption>{escape(self.note)}</figcaption>" if self.note else ""
        picture = drawing.svg(self.scene(), self.title)
        return f'<figure style="margin:0;overflow-x:auto">{picture}{note}</figure>'

    def to_html(self, path: str | Path) -> None:
        """One file that needs nothing else."""
        drawing.write_page(path, self.title, self._repr_html_())

    def to_png(self, path: str | Path) -> None:
        drawing.write_png(path, self.scene())

    def __str__(self) -> str:
        return "\n".join([self.title, "", *self.lines(), *(["", self.note] if self.note else [])])


def plain(value: Any) -> Any:
    """JSON values; what is no number (−∞, NaN) becomes null."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
