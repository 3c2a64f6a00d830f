"""Data that Python has in memory: lists, pandas' frames, `datasets`; a run reads them as files."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeAlias, runtime_checkable

from regard.system.errors import SettingError

Rows: TypeAlias = Any  # a list of texts, tuples or dictionaries, a pandas frame, of `datasets`


@runtime_checkable
class Frame(Protocol):
    """What is used of a pandas frame."""

    iloc: Any

    def to_dict(self, orient: str) -> Any: ...


@runtime_checkable
class Table(Protocol):
    """What is used of a table of `datasets`."""

    column_names: Any

    def __iter__(self) -> Iterator[Any]: ...


# The columns of tuples. Those of two are read as pairs of texts too.
_COLUMNS = {2: ("text", "label"), 3: ("text", "text2", "label")}
_SETTINGS = ("data", "valid", "test")


@contextmanager
def as_files(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings with files in place of the rows among them; the files are gone afterwards.

    A run stores what it reads in its folder before the first step: it is resumed without them.
    """
    with TemporaryDirectory(prefix="regard-") as folder:
        yield {
            name: str(_write(value, Path(folder) / name))
            if name in _SETTINGS and _is_rows(value)
            else value
            for name, value in settings.items()
        }


def _is_rows(data: object) -> bool:
    """Whether it is a frame, a table of `datasets`, or a list of anything but paths."""
    if isinstance(data, Frame | Table):
        return True
    return isinstance(data, list) and not any(isinstance(one, Path) for one in data)


def _write(data: Any, path: Path) -> Path:
    """Texts as lines; rows as CSV, or as JSON Lines where CSV has no cells for them."""
    rows = data.to_dict("records") if isinstance(data, Frame) else list(data)
    if not rows:
        raise SettingError(f"`{path.name}` is empty", "give one row at least")
    if all(isinstance(row, str) for row in rows):
        if os.path.isfile(rows[0]):
            raise SettingError(
                f"the first text of the data is the name of a file, {rows[0]}",
                'join the names of several files: data="a.txt,b.txt"',
            )
        path = path.with_suffix(".txt")
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        return path
    records = [_record(row, number) for number, row in enumerate(rows)]
    differ = any(record.keys() != records[0].keys() for record in records)
    if differ or any(isinstance(cell, list | dict) for one in records for cell in one.values()):
        path = path.with_suffix(".jsonl")
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path
    path = path.with_suffix(".csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path


def _record(row: object, number: int) -> dict[str, Any]:
    """A row by the names of its columns."""
    match row:
        case dict():
            return row
        case ([*words], [*tags]):
            return {"tokens": words, "tags": tags}
        case [*cells] if len(cells) in _COLUMNS:
            return dict(zip(_COLUMNS[len(cells)], cells, strict=True))
        case _:
            raise SettingError(
                f"row {number} of the data is a {type(row).__name__}",
                'give texts, tuples such as ("text", "label"), or dictionaries',
            )
