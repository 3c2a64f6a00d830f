"""A tokenized corpus on disk, memory-mapped, so that it may be larger than memory.

A folder holds, for each named column, `NAME.tokens` (the ids of all rows end to end, little endian)
and `NAME.offsets` (where each row begins, and the end; int64), and `corpus.json`, the manifest. The
columns of translation are `source` and `target`; a language model's corpus has one.
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

FORMAT = 1  # of the manifest; another number is refused
MANIFEST = "corpus.json"
VERIFIED_BYTES = 1 << 25  # of tokens: 32 MB are hashed in less than a tenth of a second
PARTS = ("tokens", "offsets")  # suffixes of a column's files
TYPES = {"uint16": "H", "uint32": "I"}  # numpy's name → array's type code
CHUNK = 2000  # pairs tokenized at a time: enough for all cores, little enough for memory
BUFFER = 1 << 20  # ids buffered before they are written

Ids = NDArray[np.unsignedinteger[Any]]


class Column:
    """The rows of one side: `column[i]` is a view of row i's ids."""

    def __init__(self, tokens: Ids, offsets: NDArray[np.int64]) -> None:
        self.tokens = tokens
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        # Slices first, so that row −1 is the last row.
        start = self.offsets[:-1][row]
        end = self.offsets[1:][row]
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


# --- reading ---


class Corpus:
    """A tokenized corpus, opened for reading.

    `columns` by name; `about` is the note of whoever wrote it.
    """

    def __init__(
        self, folder: Path, columns: dict[str, Column], fingerprint: str, about: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.columns = columns
        self.fingerprint = fingerprint
        self.about = about

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Open a folder that `prepare` wrote.

        Its sizes are checked; its content only where that takes no time (see `verify`).
        """
        folder = Path(folder)
        try:
            manifest = json.loads(disk.read_bytes(folder / MANIFEST))
        except OSError as error:
            raise DataError(
                f"{folder} holds no prepared corpus: {error.strerror}: {MANIFEST}", "prepare it"
            ) from error
        except (ValueError, RecursionError) as error:
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
            corpus = cls(folder, columns, str(manifest["fingerprint"]), dict(manifest["about"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(
                folder, f"{MANIFEST} does not describe a corpus of format {FORMAT}"
            ) from error
        if sum(column.tokens.nbytes for column in columns.values()) <= VERIFIED_BYTES:
            corpus.verify()
        return corpus

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
        """All lengths, [rows, columns], as `batching.batch_indices` takes them."""
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
        if not count:  # an empty file cannot be mapped
            return np.zeros(0, kind)
        # A plain array is faster to slice than np.memmap itself.
        return np.asarray(np.memmap(file, dtype=kind, mode="r"))
    except OSError as error:
        raise _damaged(file.parent, f"{file.name}: {error.strerror}") from error


def _damaged(folder: Path, detail: str) -> DataError:
    return DataError(
        f"the prepared corpus {folder} is damaged: {detail}",
        "remove the folder and prepare it again",
    )


def _fingerprint(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


# --- writing ---


@dataclass
class PreparationReport:
    """What became of the pairs: how many were kept, and why the others were not."""

    max_length: int
    kept: int = 0  # pairs that were written
    empty: int = 0  # pairs that were skipped because a side is empty
    too_long: int = 0  # pairs that were skipped because a side exceeds max_length
    source_tokens: int = 0  # of the pairs that were written, special tokens included
    target_tokens: int = 0
    source_unknown: int = 0
    target_unknown: int = 0
    first_too_long: list[int] = field(default_factory=list)  # line numbers, five at most

    @property
    def unknown(self) -> int:
        """Unknown tokens on both sides of the kept pairs."""
        return self.source_unknown + self.target_unknown

    def lines(self) -> list[str]:
        """The report in sentences."""
        lines = [
            f"{self.kept:,} pairs kept: "
            f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens."
        ]
        if self.empty:
            lines.append(f"{self.empty:,} pairs skipped because a side is empty.")
        if self.too_long:
            numbers = ", ".join(map(str, self.first_too_long))
            if self.too_long > len(self.first_too_long):
                numbers += ", …"
            lines.append(
                f"{self.too_long:,} pairs skipped because a side is over {self.max_length:,} "
                f"tokens (lines {numbers})."
            )
        if self.source_unknown:
            share = self.source_unknown / self.source_tokens
            lines.append(
                f"{self.source_unknown:,} source tokens ({share:.2%}) are not in the vocabulary."
            )
        if self.target_unknown:
            share = self.target_unknown / self.target_tokens
            lines.append(
                f"{self.target_unknown:,} target tokens ({share:.2%}) are not in the vocabulary."
            )
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def prepare(
    pairs: Iterable[tuple[str, str]],
    source: Tokenizer,
    target: Tokenizer,
    folder: str | Path,
    *,
    max_length: int,
) -> PreparationReport:
    """Tokenize pairs into a corpus folder, framed by special tokens; report what was skipped.

    A pair is skipped, and counted, when a side is empty or longer than `max_length` tokens, special
    tokens included. A corpus that is there already is replaced, once the new one is complete.
    """
    report = PreparationReport(max_length)
    sides = {"source": source, "target": target}
    write_columns(
        _tokenized_pairs(pairs, source, target, report),
        list(sides),
        # Half the size on disk where every id fits into 16 bits.
        ["uint16" if len(side) <= 65_535 else "uint32" for side in sides.values()],
        folder,
        about=lambda: {
            "report": asdict(report),
            "tokenizers": {name: side.fingerprint for name, side in sides.items()},
        },
    )
    return report


def _tokenized_pairs(
    pairs: Iterable[tuple[str, str]],
    source: Tokenizer,
    target: Tokenizer,
    report: PreparationReport,
) -> Iterator[tuple[list[int], list[int]]]:
    numbered = enumerate(pairs, start=1)
    special = len(source.frame(()))  # tokens around a source
    eos = target.required_token_id("eos")
    source_unknown = _unknown_id(source)
    target_unknown = _unknown_id(target)
    while chunk := list(itertools.islice(numbered, CHUNK)):
        source_rows = source.encode_batch([pair[0] for _, pair in chunk])
        target_rows = target.encode_batch([pair[1] for _, pair in chunk])
        for (number, pair), source_ids, target_ids in zip(
            chunk, source_rows, target_rows, strict=True
        ):
            # Blank text need not give zero tokens, nor text more than zero: both count as empty.
            if not (source_ids and target_ids and pair[0].strip() and pair[1].strip()):
                report.empty += 1
            elif max(len(source_ids) + special, len(target_ids) + 1) > report.max_length:
                report.too_long += 1
                if report.too_long <= 5:
                    report.first_too_long.append(number)
            else:
                report.kept += 1
                report.source_tokens += len(source_ids) + special
                report.target_tokens += len(target_ids) + 1
                report.source_unknown += source_ids.count(source_unknown)
                report.target_unknown += target_ids.count(target_unknown)
                yield source.frame(source_ids), [*target_ids, eos]
    if not report.kept:
        repair = "give text on both sides"
        if report.too_long:
            repair = "raise max_length, or give shorter sentences"
        raise DataError(
            f"no pair is left: {report.empty:,} have an empty side, "
            f"{report.too_long:,} are over the limit of {report.max_length:,} tokens",
            repair,
        )


def write_columns(
    rows: Iterable[tuple[Sequence[int], ...]],
    names: Sequence[str],
    dtypes: Sequence[str],
    folder: str | Path,
    about: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Write rows of ids, one sequence a column, as a corpus folder.

    `about()`, called last, goes into the manifest. Everything is written and synced next to the
    folder, then renamed: a crash leaves no corpus or a complete one.
    """
    folder = Path(folder)
    _check_replaceable(folder)
    with disk.atomic_folder(folder) as partial, ExitStack() as stack:
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
        # tokens, and offsets as int64, of which the first is 0
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
            if sys.byteorder == "big":  # files are little endian
                buffer.byteswap()
            digest.update(buffer)
            file.write(buffer)
            del buffer[:]


def _check_replaceable(folder: Path) -> None:
    """Only a corpus may be replaced by a corpus: a mistyped path must not cost anybody's files."""
    if not folder.exists():
        return
    suffixes = {f".{part}" for part in PARTS}
    is_corpus = folder.is_dir() and all(
        file.name == MANIFEST or file.suffix in suffixes for file in folder.iterdir()
    )
    if not is_corpus:
        raise DataError(
            f"{folder} exists and holds other things than a corpus",
            "choose another folder for the corpus",
        )


def _unknown_id(tokenizer: Tokenizer) -> int:
    """The id of the unknown token; −1, which no token has, where everything can be spelled."""
    unknown = tokenizer.special_token_id("unk")
    if unknown is None:
        return -1
    return unknown
