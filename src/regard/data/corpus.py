"""A tokenized corpus on disk, memory-mapped, so that it may be larger than memory.

A folder holds, for each named column, `NAME.tokens` (the ids of all rows end to end, little endian)
and `NAME.offsets` (where each row begins, and the end; int64), and `corpus.json`, the manifest. The
columns of translation are `source` and `target`; a language model's corpus has one.

Text is tokenized by several processes, chunk by chunk, and written in its order: the files are the
same, byte for byte, whatever their number. Several corpora of a mixture are stored one after the
other; the manifest says where each ends and what its weight is.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from io import BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.epoch_order import RowSpan, mixture_weights, spans
from regard.data.text.tokenizer import Tokenizer
from regard.system import disk
from regard.system.errors import DataError
from regard.system.process_pool import batched, ordered_map

FORMAT = 1  # of the manifest; another number is refused
MANIFEST = "corpus.json"
VERIFIED_BYTES = 1 << 25  # of tokens: 32 MB are hashed in less than a tenth of a second
PARTS = ("tokens", "offsets")  # suffixes of a column's files
TYPES = ("uint16", "uint32")  # of token ids
CHUNK = 2000  # pairs tokenized at a time: enough for all cores, little enough for memory
ROWS_AT_ONCE = 256  # buffered before they are written
# Up to so many rows, an epoch is one shuffled list of batches; longer ones are shuffled in blocks.
MAX_LISTED_ROWS = 1 << 18

Ids = NDArray[np.unsignedinteger[Any]]
Rows = NDArray[np.int64]


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

    def row_lengths(self, rows: Rows) -> NDArray[np.int32]:
        """The number of ids in some rows, without counting all others."""
        starts = self.offsets[:-1][rows]
        ends = self.offsets[1:][rows]
        return (ends - starts).astype(np.int32)

    def concatenated(self, rows: Rows) -> Ids:
        """The ids of some rows, one row after the other."""
        lengths = self.row_lengths(rows).astype(np.int64)
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
            raise damaged_corpus(folder, f"{MANIFEST} is not JSON") from error
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
            raise damaged_corpus(
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
    def lengths(self) -> NDArray[np.int32]:
        """All lengths, [rows, columns], as `batching.batch_indices` takes them."""
        return np.stack([column.lengths for column in self.columns.values()], axis=1)

    def row_lengths(self, rows: Rows) -> NDArray[np.int32]:
        """Lengths of some rows, [rows, columns]."""
        return np.stack([column.row_lengths(rows) for column in self.columns.values()], axis=1)

    # --- order and mixture ---

    @property
    def in_blocks(self) -> bool:
        """Whether epochs are shuffled block by block (`batching.BlockSampler`).

        The folder says so, not its size.
        """
        return self.about.get("order") == "blocks"

    @property
    def spans(self) -> list[RowSpan]:
        """The corpora of the mixture; one where there is none."""
        corpora = self.about.get("corpora")
        if not corpora:
            return [RowSpan(0, len(self))]
        return spans([one["rows"] for one in corpora], [one["weight"] for one in corpora])

    def release_pages(self) -> None:
        """Releases the memory of what was read; the next use finds it in the page cache.

        Pages of a mapped file count as memory of the process until the system needs them.
        """
        if sys.platform == "win32":  # which has no advice for mappings
            return
        for column in self.columns.values():
            for values in (column.tokens, column.offsets):
                # numpy holds a view of the mapping; an empty column has none.
                mapped = values.base.obj if isinstance(values.base, memoryview) else None
                if isinstance(mapped, mmap.mmap):
                    mapped.madvise(mmap.MADV_DONTNEED)

    def verify(self) -> None:
        """Read everything and compare it with the fingerprint; DataError if a byte has changed."""
        digests = []
        for file in (self.folder / f"{name}.{part}" for name in self.columns for part in PARTS):
            try:
                with open(file, "rb") as stream:
                    digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
            except OSError as error:
                raise damaged_corpus(self.folder, f"{file.name}: {error.strerror}") from error
        if _fingerprint(digests) != self.fingerprint:
            raise damaged_corpus(self.folder, "its content is not what was written")


def _open_column(folder: Path, name: str, dtype: str, rows: int, tokens: int) -> Column:
    if dtype not in TYPES or not name.isidentifier():  # the name becomes a path
        raise ValueError(f"no column is called {name} and holds {dtype}")
    column = Column(
        _map(folder / f"{name}.tokens", dtype, tokens),
        _map(folder / f"{name}.offsets", "int64", rows + 1),
    )
    if column.offsets[0] != 0 or column.offsets[-1] != tokens:
        raise damaged_corpus(folder, f"{name}.offsets does not fit {name}.tokens")
    return column


def _map(file: Path, dtype: str, count: int) -> NDArray[Any]:
    kind = np.dtype(dtype).newbyteorder("<")
    try:
        size = file.stat().st_size
        if size != count * kind.itemsize:
            raise damaged_corpus(
                file.parent, f"{file.name} has {size} bytes instead of {count * kind.itemsize}"
            )
        if not count:  # an empty file cannot be mapped
            return np.zeros(0, kind)
        with open(file, "rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        # A plain array is faster to slice than np.memmap.
        return np.frombuffer(mapped, kind)
    except OSError as error:
        raise damaged_corpus(file.parent, f"{file.name}: {error.strerror}") from error


def damaged_corpus(folder: Path, detail: str) -> DataError:
    """The error for a folder whose content contradicts itself."""
    return DataError(
        f"the prepared corpus {folder} is damaged: {detail}",
        "remove the folder and prepare it again",
    )


def _fingerprint(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


# --- writing ---

Pair = tuple[str, str]
SIDES = ("source", "target")
MAX_NAMED_LINES = 5  # of pairs that are too long


@dataclass
class PreparationReport:
    """What became of the pairs: how many were kept, and why the others were not."""

    max_length: int
    kept: int = 0  # pairs that were written
    empty: int = 0  # pairs that were skipped because a side is empty
    too_long: int = 0  # pairs that were skipped because a side exceeds max_length
    # By side, of the pairs that were written, special tokens included.
    tokens: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    first_too_long: list[int] = field(default_factory=list)  # line numbers, five at most

    def add(self, other: PreparationReport) -> None:
        """Count further pairs, which follow those counted before."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        del self.first_too_long[MAX_NAMED_LINES:]

    def __str__(self) -> str:
        lines = [
            f"{self.kept:,} pairs kept: "
            f"{self.tokens['source']:,} source and {self.tokens['target']:,} target tokens."
        ]
        if self.empty:
            lines.append(f"{self.empty:,} pairs skipped because a side is empty.")
        if self.too_long:
            more = ", …" if self.too_long > len(self.first_too_long) else ""
            lines.append(
                f"{self.too_long:,} pairs skipped because a side is over {self.max_length:,} "
                f"tokens (lines {', '.join(map(str, self.first_too_long))}{more})."
            )
        for side, count in self.unknown.items():
            share = f"{count / self.tokens[side]:.2%}"
            lines.append(f"{count:,} {side} tokens ({share}) are not in the vocabulary.")
        return "\n".join(lines)


_COUNTS = [one.name for one in fields(PreparationReport) if one.name != "max_length"]


def prepare(
    pairs: Iterable[tuple[str, str]] | Mapping[str, Iterable[tuple[str, str]]],
    source: Tokenizer,
    target: Tokenizer,
    folder: str | Path,
    *,
    max_length: int,
    mixture: Mixture | None = None,
    workers: int | None = None,
) -> PreparationReport:
    """Tokenize pairs into a corpus folder, framed by special tokens; report what was skipped.

    A pair is skipped, and counted, when a side is empty or longer than `max_length` tokens, special
    tokens included. A corpus that is there already is replaced, once the new one is complete.
    Several corpora, by name, are mixed as the `mixture` says; `workers` are processes that
    tokenize, one a core by default.
    """
    report = PreparationReport(max_length)
    sides = dict(zip(SIDES, (source, target), strict=True))
    dtypes = [id_type(source), id_type(target)]
    tokenize = partial(_tokenize_pairs, source, target, dtypes, max_length)
    corpora = pairs if isinstance(pairs, Mapping) else {"": pairs}
    rows: dict[str, int] = {}  # of each corpus that was written

    def chunks() -> Iterator[tuple[RowChunk, ...]]:
        for name, stream in corpora.items():
            before = report.kept
            some = batched(enumerate(stream, start=1), CHUNK)
            for chunk, counts in ordered_map(tokenize, some, workers):
                report.add(counts)
                yield chunk
            rows[name] = report.kept - before
        if not report.kept:
            repair = "give text on both sides"
            if report.too_long:
                repair = "raise max_length, or give shorter sentences"
            raise DataError(
                f"no pair is left: {report.empty:,} have an empty side, "
                f"{report.too_long:,} are over the limit of {max_length:,} tokens",
                repair,
            )

    write_chunks(
        chunks(),
        list(sides),
        dtypes,
        folder,
        about=lambda: {
            "report": vars(report),
            "tokenizers": {name: side.fingerprint for name, side in sides.items()},
            **order_notes(rows, mixture),
        },
    )
    return report


@dataclass(frozen=True)
class Mixture:
    """How several corpora are mixed: by weights, or by a temperature (`mixture_weights`)."""

    weights: tuple[float, ...] | None = None
    temperature: float | None = None


def order_notes(
    rows: Mapping[str, int], mixture: Mixture | None, sizes: Sequence[int] | None = None
) -> dict[str, Any]:
    """What the manifest says of the order of a corpus, and of the corpora that it consists of.

    `sizes` are what a temperature is applied to, if not the numbers of rows.
    """
    if mixture is None or len(rows) < 2:
        return {"order": "blocks"} if sum(rows.values()) > MAX_LISTED_ROWS else {}
    sizes = sizes or list(rows.values())
    weights = mixture_weights(sizes, mixture.weights, mixture.temperature)
    corpora = [
        {"name": name, "rows": count, "weight": weight}
        for (name, count), weight in zip(rows.items(), weights, strict=True)
    ]
    return {"order": "blocks", "corpora": corpora}


def id_type(tokenizer: Tokenizer) -> str:
    """The type of stored ids: half the size on disk where every one fits into 16 bits."""
    return "uint16" if len(tokenizer) <= 65_535 else "uint32"


def _tokenize_pairs(
    source: Tokenizer,
    target: Tokenizer,
    dtypes: Sequence[str],
    max_length: int,
    numbered_pairs: list[tuple[int, Pair]],
) -> tuple[tuple[RowChunk, ...], PreparationReport]:
    """The rows of some pairs, and what became of these."""
    report = PreparationReport(max_length)
    eos = target.required_token_id("eos")
    # None, which no token has, where everything can be spelled.
    unknown: list[Any] = [side.special_token_id("unk") for side in (source, target)]
    rows: list[tuple[list[int], list[int]]] = []
    source_rows = source.encode_batch([pair[0] for _, pair in numbered_pairs])
    target_rows = target.encode_batch([pair[1] for _, pair in numbered_pairs])
    for (number, pair), source_ids, target_ids in zip(
        numbered_pairs, source_rows, target_rows, strict=True
    ):
        row = (source.frame(source_ids), [*target_ids, eos])
        # Blank text need not give zero tokens, nor text more than zero: both count as empty.
        if not (source_ids and target_ids and pair[0].strip() and pair[1].strip()):
            report.empty += 1
        elif max(map(len, row)) > max_length:
            report.too_long += 1
            report.first_too_long.append(number)
        else:
            rows.append(row)
    report.kept = len(rows)
    for side, unknown_id, texts in zip(SIDES, unknown, zip(*rows, strict=True), strict=False):
        report.tokens[side] = sum(map(len, texts))
        report.unknown[side] = sum(ids.count(unknown_id) for ids in texts)
    del report.first_too_long[MAX_NAMED_LINES:]
    sides = zip(*rows, strict=True) if rows else ((), ())
    chunk = tuple(RowChunk.of(side, dtype) for side, dtype in zip(sides, dtypes, strict=True))
    return chunk, report


# --- files of columns ---


@dataclass(frozen=True)
class RowChunk:
    """Some rows of one column: their ids end to end, and the length of each."""

    ids: Ids
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: str) -> RowChunk:
        """Rows of ids; OverflowError if one does not fit the type."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        # array.extend reads a list of integers several times faster than numpy does.
        ids = array({"uint16": "H", "uint32": "I"}[dtype])
        for row in rows:
            ids.extend(row)
        little_endian = np.array(ids, dtype).astype(np.dtype(dtype).newbyteorder("<"), copy=False)
        return cls(little_endian, lengths)


def row_chunks(
    rows: Iterable[tuple[Sequence[int], ...]], dtypes: Sequence[str]
) -> Iterator[tuple[RowChunk, ...]]:
    """Rows of ids, one sequence a column, as chunks."""
    for some in batched(rows, ROWS_AT_ONCE):
        columns = zip(zip(*some, strict=True), dtypes, strict=True)
        yield tuple(RowChunk.of(*column) for column in columns)


def write_chunks(
    chunks: Iterable[tuple[RowChunk, ...]],
    names: Sequence[str],
    dtypes: Sequence[str],
    folder: str | Path,
    about: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Write chunks of rows, one for each column, as a corpus folder.

    `about()`, called last, goes into the manifest. Everything is written and synced next to the
    folder, then renamed: a crash leaves no corpus or a complete one.
    """
    folder = Path(folder)
    _check_replaceable(folder)
    with disk.atomic_folder(folder) as partial_folder, ExitStack() as stack:
        columns = [
            _ColumnWriter(
                name,
                dtype,
                [stack.enter_context(open(partial_folder / f"{name}.{p}", "wb")) for p in PARTS],
            )
            for name, dtype in zip(names, dtypes, strict=True)
        ]
        for chunk in chunks:
            for column, rows in zip(columns, chunk, strict=True):
                column.add(rows)
        if not columns[0].rows:
            raise DataError(f"the data of {folder.name!r} is empty", "give at least one example")
        manifest = {
            "format": FORMAT,
            "fingerprint": _fingerprint(digest for column in columns for digest in column.finish()),
            "columns": {column.name: column.entry() for column in columns},
            "about": dict(about()),
        }
        (partial_folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


class _ColumnWriter:
    """The two growing files of one column, hashed as they grow; the caller closes them."""

    def __init__(self, name: str, dtype: str, files: list[BufferedWriter]) -> None:
        self.name = name
        self.rows = 0
        self.count = 0  # ids
        self._dtype = dtype
        self._files = files
        self._hashes = [hashlib.sha256() for _ in PARTS]
        self._write(1, np.zeros(1, "<i8"))  # the first offset

    def add(self, chunk: RowChunk) -> None:
        self._write(0, chunk.ids)
        self._write(1, (self.count + np.cumsum(chunk.lengths)).astype("<i8"))
        self.rows += len(chunk.lengths)
        self.count += len(chunk.ids)

    def finish(self) -> list[str]:
        """Flush what is left; the digests of the files."""
        for file in self._files:
            file.flush()
        return [digest.hexdigest() for digest in self._hashes]

    def entry(self) -> dict[str, Any]:
        return {"dtype": self._dtype, "rows": self.rows, "tokens": self.count}

    def _write(self, part: int, values: NDArray[Any]) -> None:
        self._hashes[part].update(values.data)
        self._files[part].write(values.data)


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
