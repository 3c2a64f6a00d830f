"""Tokenized labelled examples on disk: memory-mapped, so that they may be larger than memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import Rows
from regard.data.corpus import (
    CHUNK,
    MANIFEST,
    Corpus,
    RowChunk,
    damaged_corpus,
    order_notes,
    write_chunks,
)
from regard.system.arguments import is_whole
from regard.system.process_pool import ordered_map

COLUMNS = ("ids", "segments", "labels")
# Labels are stored as the bits of one of these: classes (IGNORED is negative), or numbers.
INTEGERS = "<i4"
NUMBERS = "<f4"
BITS = "uint32"


@dataclass(frozen=True)
class Row:
    """A tokenized text with its special tokens, and its labels.

    The labels are one class, a class for each token (IGNORED for some), or the first and the last
    token of an answer.
    """

    ids: list[int]
    segments: list[int]
    labels: list[Any]  # of numbers


class StoredRows(Sequence[Row]):
    """The rows of a corpus with the columns `ids`, `segments` and `labels`."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.examples = self._count("examples")  # a long one may make several rows
        self.truncated = self._count("full")  # rows of the greatest length
        label_type = corpus.about.get("labels")
        if label_type not in (NUMBERS, INTEGERS):
            raise damaged_corpus(corpus.folder, f"labels of {MANIFEST} is {label_type!r}")
        self._label_type: str = label_type

    def _count(self, name: str) -> int:
        value = self.corpus.about.get(name)
        if not is_whole(value, most=sys.maxsize):
            raise damaged_corpus(self.corpus.folder, f"{name} of {MANIFEST} is {value!r}")
        return value

    def __len__(self) -> int:
        return len(self.corpus)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        ids, segments, labels = (self.corpus.columns[name][index] for name in COLUMNS)
        return Row(ids.tolist(), segments.tolist(), labels.view(self._label_type).tolist())

    def lengths(self, rows: Rows) -> NDArray[np.int32]:
        """How many ids some rows have, [rows, 1]; the other columns do not count in a batch."""
        return self.corpus.columns["ids"].row_lengths(rows)[:, None]


def stored_rows(
    folder: Path,
    examples: Iterable[Any],
    tokenize: Callable[[Sequence[Any]], list[Row]],
    *,
    max_length: int,
    id_type: str,
    workers: int | None,
) -> StoredRows:
    """Tokenizes examples on the first call, in parallel and some at a time; later calls open them.

    `tokenize` makes the rows of some examples, none longer than `max_length`.
    """
    if (folder / MANIFEST).exists():
        corpus = Corpus.open(folder)
        if corpus.about.get("max_length") == max_length:
            return StoredRows(corpus)
    notes: dict[str, Any] = {"max_length": max_length, "examples": 0, "full": 0}

    def chunks() -> Iterator[tuple[RowChunk, ...]]:
        def prepared(some: Sequence[Any]) -> tuple[tuple[RowChunk, ...], str, int, int]:
            rows = tokenize(some)
            label_type = _label_type(rows)
            full = sum(len(row.ids) == max_length for row in rows)
            return _columns(rows, id_type, label_type), label_type, len(some), full

        for columns, label_type, count, full in ordered_map(prepared, _chunks(examples), workers):
            notes["labels"] = label_type
            notes["examples"] += count
            notes["full"] += full
            notes["rows"] = notes.get("rows", 0) + len(columns[0].lengths)
            yield columns

    def about() -> dict[str, Any]:
        rows = notes.pop("rows")
        return notes | order_notes({"train": rows}, None)

    write_chunks(chunks(), COLUMNS, [id_type, "uint16", BITS], folder, about)
    return StoredRows(Corpus.open(folder))


def _chunks(examples: Iterable[Any]) -> Iterator[list[Any]]:
    chunk = []
    for example in examples:
        chunk.append(example)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _label_type(rows: Sequence[Row]) -> str:
    is_number = any(isinstance(label, float) for row in rows for label in row.labels)
    return NUMBERS if is_number else INTEGERS


def _columns(rows: Sequence[Row], id_type: str, label_type: str) -> tuple[RowChunk, ...]:
    labels = np.array([label for row in rows for label in row.labels], label_type)
    lengths = np.array([len(row.labels) for row in rows], np.int64)
    return (
        RowChunk.of([row.ids for row in rows], id_type),
        RowChunk.of([row.segments for row in rows], "uint16"),
        RowChunk(labels.view("<u4"), lengths),
    )
