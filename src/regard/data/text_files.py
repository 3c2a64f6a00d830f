"""Reading parallel text as a stream: lines of files, and pairs of sentences. Nothing is held but the current line."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import DataError, SettingError, did_you_mean

GZIP = b"\x1f\x8b"
BLOCK = 1 << 20

# How a file that holds pairs is told by its name, after `.gz` is taken off.
FORMATS = {".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


def lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or gzipped (told by its content); "-" is standard input.

    Only "\\n" and "\\r\\n" end a line: U+2028, vertical tab and the like are part of it, because other tools count
    lines so. A byte order mark is dropped. Files are opened at the first `next`.
    """
    for text in _decoded(path):
        yield text.removesuffix("\n").removesuffix("\r")


def _decoded(path: str | Path) -> Iterator[str]:
    """Lines with their ends."""
    name = _name(path)
    offset = 0
    with _open(path) as stream:
        for number, raw in enumerate(_guarded(stream, name), start=1):
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                place = f"offset {offset + error.start}, line {number}"
                raise DataError(
                    f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at {place}",
                    f"convert it, for example: iconv -f latin1 -t utf-8 {name}",
                ) from error
            offset += len(raw)
            yield text.removeprefix("\ufeff") if number == 1 else text


def text(path: str | Path, size: int = 1 << 16) -> Iterator[str]:
    """A UTF-8 file as it is, line ends too, in blocks of whole lines of about `size` characters. A byte order mark is
    dropped."""
    block: list[str] = []
    held = 0
    for line in _decoded(path):
        block.append(line)
        held += len(line)
        if held >= size:
            yield "".join(block)
            block, held = [], 0
    if block:
        yield "".join(block)


def pairs(
    source: str | Path,
    target: str | Path | None = None,
    *,
    format: str | None = None,
    languages: tuple[str, str] | None = None,
) -> Iterator[tuple[str, str]]:
    """Pairs of sentences, from two files line by line or from one file that holds both.

    One file is read as its name says, or as `format` does ("tsv", "jsonl"; needed for standard input):
    TSV takes the first two columns and has no quoting; JSON Lines takes `{"source": …, "target": …}` or, with
    `languages=("en", "de")`, Hugging Face's `{"translation": {"en": …, "de": …}}`.
    """
    found = _format(source, target, format)
    if target is not None:
        yield from _two_files(source, target)
        return
    count = 0
    for count, line in enumerate(lines(source), start=1):
        place = f"{_name(source)}, line {count}"
        yield _tsv(line, place) if found == "tsv" else _json(line, place, languages)
    if count == 0:
        raise _empty(_name(source))


def _format(source: str | Path, target: str | Path | None, format: str | None) -> str:
    known = ("text", "tsv", "jsonl")
    if format is not None and format not in known:
        raise SettingError(f"no format is called {format!r}", did_you_mean(format, known))
    if target is not None:
        if format not in (None, "text"):
            raise SettingError(
                f"two files are read as text, not as {format}",
                "give one file, or leave the format out",
            )
        if str(source) == str(target) == "-":
            raise SettingError(
                "both sides are standard input",
                "give one of them as a file, or pairs as tsv or jsonl",
            )
        return "text"
    path = Path(source)
    found = format or FORMATS.get(
        (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower(), "text"
    )
    if found == "text":
        raise SettingError(
            f"{_name(source)} holds one side of the pairs at most",
            "give the target file too, or one .tsv or .jsonl file (for another name: format 'tsv' or 'jsonl')",
        )
    return found


def _two_files(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    left, right = lines(source), lines(target)
    end = object()
    count = 0
    while True:
        one, other = next(left, end), next(right, end)
        if isinstance(one, str) and isinstance(other, str):
            count += 1
            yield one, other
            continue
        if one is other:
            break
        longer, rest, shorter = (
            (source, left, target) if isinstance(one, str) else (target, right, source)
        )
        total = count + 1 + sum(1 for _ in rest)
        raise DataError(
            f"{_name(longer)} has {total} lines, {_name(shorter)} ends at line {count}",
            "give files where line n of one translates line n of the other",
        )
    if count == 0:
        raise _empty(f"{_name(source)} and {_name(target)}")


def _tsv(line: str, place: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) < 2:
        raise DataError(f"{place} has no tab, so no second column", "write: source, a tab, target")
    return columns[0], columns[1]


def _json(line: str, place: str, languages: tuple[str, str] | None) -> tuple[str, str]:
    shape = 'write one object a line: {"source": "…", "target": "…"}'
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON: {error}", shape) from error
    if not isinstance(record, dict):
        raise DataError(f"{place} is JSON, but not an object", shape)
    keys = ("source", "target")
    if isinstance(record.get("translation"), dict):
        if languages is None:
            spoken = ", ".join(map(repr, record["translation"]))
            raise DataError(
                f"{place} holds the languages {spoken}", 'say which way, as languages=("en", "de")'
            )
        record, keys = record["translation"], languages
    return _string(record, keys[0], place), _string(record, keys[1], place)


def _string(record: dict[str, Any], key: str, place: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        state = "is not a text" if key in record else "is missing"
        raise DataError(
            f"{place}: {key!r} {state}",
            f"give it as a string; the line has: {', '.join(record) or 'nothing'}",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: {key!r} holds half a character (a lone surrogate)", "replace it"
        ) from error
    return value


def _name(path: str | Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def _empty(name: str) -> DataError:
    return DataError(
        f"nothing to read: {name} is empty", "check the path, or how the file was made"
    )


@contextmanager
def _open(path: str | Path) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file or of standard input, which is left open."""
    with ExitStack() as stack:
        try:
            standard = str(path) == "-"
            file = (
                sys.stdin.buffer
                if standard
                else stack.enter_context(open(path, "rb", buffering=BLOCK))
            )
            stream = _decompressed(file)
        except OSError as error:
            problem = f"cannot read {_name(path)}: {error.strerror}"
            raise DataError(problem, "check the path; it must be a readable file") from error
        yield stream


def _decompressed(stream: BinaryIO) -> BinaryIO:
    head = stream.read(len(GZIP))
    whole = io.BufferedReader(_Rejoined(head, stream), BLOCK)
    if head != GZIP:
        return whole
    return io.BufferedReader(gzip.GzipFile(fileobj=whole, mode="rb"), BLOCK)


class _Rejoined(io.RawIOBase):
    """A stream whose first bytes were read to see what it is; pipes cannot be wound back."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # read1 gives what a pipe holds now, where read would wait for a full block.
        data = self._head or self._rest.read1(len(buffer))
        self._head = b""
        buffer[: len(data)] = data
        return len(data)


def _guarded(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The stream's lines, with what damaged files raise as DataError."""
    try:
        yield from stream
    except EOFError as error:
        raise DataError(
            f"{name} is a gzip file that stops in the middle", "copy or download it again"
        ) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{name} is a damaged gzip file: {error}", "copy or download it again"
        ) from error
    except OSError as error:
        raise DataError(
            f"reading {name} failed: {error.strerror}", "check the disk, then try again"
        ) from error
