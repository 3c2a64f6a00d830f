"""A prepared corpus: token ids on disk, memory-mapped, so that it may be larger than memory.

A folder holds, for each named column, `NAME.tokens` (all rows' ids end to end, little endian) and `NAME.offsets` (where
each row begins, and the end; int64), and `corpus.json`, which says what they should be. The columns of translation are
`source` and `target`; a language model's corpus has one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from io import BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard import disk
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

FORMAT = 1
MANIFEST = "corpus.json"
PARTS = ("tokens", "offsets")
TYPES = {"uint16": "H", "uint32": "I"}  # numpy's name → array's type code
CHUNK = 2000  # pairs tokenised at a time: enough to keep all cores busy, little enough to hold
BUFFER = 1 << 20  # ids held before they are written

Ids = NDArray[np.unsignedinteger[Any]]


class Column:
    """The rows of one side: `column[i]` is a view of row i's ids."""

    def __init__(self, tokens: Ids, offsets: NDArray[np.int64]) -> None:
        self.tokens = tokens
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        start, end = self.offsets[:-1][row], self.offsets[1:][row]
        return self.tokens[start:end]

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """The number of ids in each row."""
        return np.diff(self.offsets).astype(np.int32)

    def concatenated(self, rows: NDArray[np.int64]) -> Ids:
        """The ids of some rows, one row after the other."""
        lengths = self.lengths[rows].astype(np.int64)
        ends = np.cumsum(lengths)
        # Within each row the index counts up from its offset in the column.
        within_row = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        return self.tokens[np.repeat(self.offsets[rows], lengths) + within_row]


class Corpus:
    """A prepared corpus, opened for reading. `columns` holds its sides by name, `about` what its maker noted."""

    def __init__(
        self, folder: Path, columns: dict[str, Column], fingerprint: str, about: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.columns = columns
        self.fingerprint = fingerprint
        self.about = about

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Open a folder that `prepare` wrote; its sizes are checked, its content is not (see `verify`)."""
        folder = Path(folder)
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
        except OSError as error:
            raise DataError(
                f"{folder} holds no prepared corpus: {error.strerror}: {MANIFEST}", "prepare it"
            ) from error
        except ValueError as error:
            raise _damaged(folder, f"{MANIFEST} is not JSON") from error
        try:
            if manifest["format"] != FORMAT:
                raise ValueError("its format is unknown")
            columns = {
                name: _open_column(folder, name, **entry)
                for name, entry in manifest["columns"].items()
            }
            if len({len(column) for column in columns.values()}) != 1:
                raise ValueError("its columns have different numbers of rows, or there are none")
            return cls(folder, columns, str(manifest["fingerprint"]), dict(manifest["about"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(
                folder, f"{MANIFEST} does not describe a corpus of format {FORMAT}"
            ) from error

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def source(self, row: int) -> Ids:
        """The source ids of a row, the end token included."""
        return self.columns["source"][row]

    def target(self, row: int) -> Ids:
        """The target ids of a row, the end token included."""
        return self.columns["target"][row]

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """The length of each source row."""
        return self.columns["source"].lengths

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        """The length of each target row."""
        return self.columns["target"].lengths

    @property
    def lengths(self) -> NDArray[np.int32]:
        """All lengths, [rows, columns], as `data.batch.plan` takes them."""
        return np.stack([column.lengths for column in self.columns.values()], axis=1)

    def verify(self) -> None:
        """Read everything and compare it with the fingerprint; DataError if a byte has changed."""
        digests = []
        for file in (self.folder / f"{name}.{part}" for name in self.columns for part in PARTS):
            try:
                with open(file, "rb") as stream:
                    digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
            except OSError as error:
                raise _damaged(self.folder, f"{file.name}: {error.strerror}") from error
        if _fingerprint(digests) != self.fingerprint:
            raise _damaged(self.folder, "its content is not what was written")


def _open_column(folder: Path, name: str, dtype: str, rows: int, tokens: int) -> Column:
    if dtype not in TYPES or not name.isidentifier():  # the name becomes a path
        raise ValueError(f"no column is called {name} and holds {dtype}")
    column = Column(
        _map(folder / f"{name}.tokens", dtype, tokens),
        _map(folder / f"{name}.offsets", "int64", rows + 1),
    )
    if column.offsets[0] != 0 or column.offsets[-1] != tokens:
        raise _damaged(folder, f"{name}.offsets does not fit {name}.tokens")
    return column


def _map(file: Path, dtype: str, count: int) -> NDArray[Any]:
    kind = np.dtype(dtype).newbyteorder("<")
    try:
        size = file.stat().st_size
        if size != count * kind.itemsize:
            raise _damaged(
                file.parent, f"{file.name} has {size} bytes instead of {count * kind.itemsize}"
            )
        # An empty file cannot be mapped; and a plain array, unlike np.memmap itself, is quick to slice.
        return np.asarray(np.memmap(file, dtype=kind, mode="r")) if count else np.zeros(0, kind)
    except OSError as error:
        raise _damaged(file.parent, f"{file.name}: {error.strerror}") from error


def _damaged(folder: Path, detail: str) -> DataError:
    return DataError(
        f"the prepared corpus {folder} is damaged: {detail}",
        "remove the folder and prepare it again",
    )


def _fingerprint(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@dataclass
class Report:
    """What became of the pairs: how many were kept, and why the others were not."""

    max_length: int
    kept: int = 0
    empty: int = 0
    too_long: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    source_unknown: int = 0
    target_unknown: int = 0
    first_too_long: list[int] = field(default_factory=list)

    @property
    def unknown(self) -> int:
        """Unknown tokens on both sides of the kept pairs."""
        return self.source_unknown + self.target_unknown

    def lines(self) -> list[str]:
        """The report in sentences."""
        told = [
            f"{self.kept:,} pairs kept: {self.source_tokens:,} source and {self.target_tokens:,} target tokens."
        ]
        if self.empty:
            told.append(f"{self.empty:,} pairs skipped because a side is empty.")
        if self.too_long:
            where = ", ".join(map(str, self.first_too_long)) + (", …" if self.too_long > 5 else "")
            told.append(
                f"{self.too_long:,} pairs skipped because a side is over {self.max_length:,} tokens (lines {where})."
            )
        if self.source_unknown:
            share = self.source_unknown / self.source_tokens
            told.append(
                f"{self.source_unknown:,} source tokens ({share:.2%}) are not in the vocabulary."
            )
        if self.target_unknown:
            share = self.target_unknown / self.target_tokens
            told.append(
                f"{self.target_unknown:,} target tokens ({share:.2%}) are not in the vocabulary."
            )
        return told

    def __str__(self) -> str:
        return "\n".join(self.lines())


def prepare(
    pairs: Iterable[tuple[str, str]],
    source: Tokenizer,
    target: Tokenizer,
    folder: str | Path,
    *,
    max_length: int,
) -> Report:
    """Tokenise pairs into a corpus folder, each side ending with its end token, and report what was skipped.

    A pair is skipped, and counted, when a side is empty or longer than `max_length` tokens, the end token included.
    A corpus that is there already is replaced, once the new one is complete.
    """
    report = Report(max_length)
    sides = {"source": source, "target": target}
    write_columns(
        _kept(pairs, source, target, report),
        list(sides),
        ["uint16" if len(side) <= 65_535 else "uint32" for side in sides.values()],
        folder,
        about=lambda: {
            "report": asdict(report),
            "tokenizers": {name: side.fingerprint for name, side in sides.items()},
        },
    )
    return report


def _kept(
    pairs: Iterable[tuple[str, str]], source: Tokenizer, target: Tokenizer, report: Report
) -> Iterator[tuple[list[int], list[int]]]:
    numbered = enumerate(pairs, start=1)
    around = len(source.frame(()))
    eos = target.required_token_id("eos")
    source_unknown = _unknown_id(source)
    target_unknown = _unknown_id(target)
    while chunk := list(itertools.islice(numbered, CHUNK)):
        left = source.encode_batch([pair[0] for _, pair in chunk])
        right = target.encode_batch([pair[1] for _, pair in chunk])
        for (number, pair), one, other in zip(chunk, left, right, strict=True):
            # Blank text need not give zero tokens, nor text more than zero: both count as empty.
            if not (one and other and pair[0].strip() and pair[1].strip()):
                report.empty += 1
            elif max(len(one) + around, len(other) + 1) > report.max_length:
                report.too_long += 1
                report.first_too_long += [number] if report.too_long <= 5 else []
            else:
                report.kept += 1
                report.source_tokens += len(one) + around
                report.target_tokens += len(other) + 1
                report.source_unknown += one.count(source_unknown)
                report.target_unknown += other.count(target_unknown)
                yield source.frame(one), [*other, eos]
    if not report.kept:
        raise DataError(
            f"no pair is left: {report.empty:,} have an empty side, {report.too_long:,} are over the limit of "
            f"{report.max_length:,} tokens",
            "raise max_length, or give shorter sentences"
            if report.too_long
            else "give text on both sides",
        )


def write_columns(
    rows: Iterable[tuple[Sequence[int], ...]],
    names: Sequence[str],
    dtypes: Sequence[str],
    folder: str | Path,
    about: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Write rows of ids, one sequence a column, as a corpus folder; `about()`, called last, is kept with it as JSON.

    Everything is written and synced next to the folder, then renamed: a crash leaves no corpus or a whole one.
    """
    folder = Path(folder)
    _check_replaceable(folder)
    with disk.committing(folder) as partial, ExitStack() as stack:
        columns = [
            _ColumnWriter(
                name,
                dtype,
                [stack.enter_context(open(partial / f"{name}.{p}", "wb")) for p in PARTS],
            )
            for name, dtype in zip(names, dtypes, strict=True)
        ]
        for row in rows:
            for column, ids in zip(columns, row, strict=True):
                column.add(ids)
        if not columns[0].rows:
            raise DataError(f"there is no row to write to {folder}", "give at least one")
        manifest = {
            "format": FORMAT,
            "fingerprint": _fingerprint(digest for column in columns for digest in column.finish()),
            "columns": {column.name: column.entry() for column in columns},
            "about": dict(about()),
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


class _ColumnWriter:
    """The two growing files of one column, hashed as they grow; the caller closes them."""

    def __init__(self, name: str, dtype: str, files: list[BufferedWriter]) -> None:
        self.name = name
        self.rows = self.count = 0
        self._dtype = dtype
        self._files = files
        self._hashes = [hashlib.sha256() for _ in PARTS]
        self._buffers = [array(TYPES[dtype]), array("q", [0])]

    def add(self, ids: Sequence[int]) -> None:
        tokens, offsets = self._buffers
        try:
            tokens.extend(ids)
        except OverflowError as error:
            problem = (
                f"an id of column {self.name!r}, row {self.rows + 1}, does not fit {self._dtype}"
            )
            raise DataError(
                problem, "write the column as uint32; ids are never negative"
            ) from error
        self.rows += 1
        self.count += len(ids)
        offsets.append(self.count)
        if len(tokens) >= BUFFER or len(offsets) >= BUFFER:
            self._flush()

    def finish(self) -> list[str]:
        """Write out what is left; the digests of the files."""
        self._flush()
        for file in self._files:
            file.flush()
        return [digest.hexdigest() for digest in self._hashes]

    def entry(self) -> dict[str, Any]:
        return {"dtype": self._dtype, "rows": self.rows, "tokens": self.count}

    def _flush(self) -> None:
        for file, digest, buffer in zip(self._files, self._hashes, self._buffers, strict=True):
            if sys.byteorder == "big":
                buffer.byteswap()
            digest.update(buffer)
            file.write(buffer)
            del buffer[:]


def _check_replaceable(folder: Path) -> None:
    """Only a corpus may be replaced by a corpus: a mistyped path must not cost anybody's files."""
    ours = {f".{part}" for part in PARTS}
    if folder.is_dir() and all(
        file.name == MANIFEST or file.suffix in ours for file in folder.iterdir()
    ):
        return
    if folder.exists():
        raise DataError(
            f"{folder} exists and holds other things than a corpus",
            "choose another folder for the corpus",
        )


def _unknown_id(tokenizer: Tokenizer) -> int:
    """The id of the unknown token; −1, which no token has, where everything can be spelled."""
    unknown = tokenizer.special_token_id("unk")
    return -1 if unknown is None else unknown
