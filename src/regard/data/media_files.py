"""Files of images and recordings: those of folders, and those that tables name with a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.data.text_files import RECORD_FORMATS, format_of_suffix, pairs, records, text_of
from regard.system.errors import DataError


def files_below(folder: str | Path, pattern: str, suffixes: Sequence[str]) -> list[Path]:
    """The files of a folder that match a pattern and have one of these suffixes."""
    # Sorted: the order of a listing is that of the file system.
    return [path for path in sorted(Path(folder).glob(pattern)) if path.suffix.lower() in suffixes]


def named_files(table: Path, key: str) -> list[tuple[Path, str]]:
    """The files and texts of a table: TSV (file, tab, text), or records with `key` and `text`."""
    rows: Iterable[tuple[str, str]]
    if format_of_suffix(table) in RECORD_FORMATS:
        rows = (
            (text_of(record, key, where), text_of(record, "text", where))
            for where, record in records(table)
        )
    else:
        rows = pairs(table, format="tsv")
    files = [(file_beside(table, name), text) for name, text in rows]
    if not files:
        raise DataError(f"{table} names no files", "write a line for each: file, a tab, text")
    return files


def file_beside(table: Path, name: str) -> Path:
    """A file that a table names, relative to the table."""
    path = table.parent / name
    if not path.is_file():
        raise DataError(
            f"{table} names {name}, which does not exist", f"put it into {table.parent}"
        )
    return path
