"""Streaming text files: lines, blocks of text, and parallel text (pairs of sentences).

Files are UTF-8, plain or gzipped. Nothing is kept in memory but the current line or block.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import DataError, SettingError, did_you_mean

GZIP = b"\x1f\x8b"  # the first two bytes of a gzip file
BLOCK = 1 << 20  # bytes of a read buffer

# The format of a file of pairs by its suffix, after `.gz` is taken off.
FORMATS = {".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


# --- lines and blocks ---


def lines(path: str | Path) -> Iterator[str]:
    """The lines of a file, without their ends; "-" is standard input.

    Whether it is gzipped is seen from its content. Only "\\n" and "\\r\\n" end a line: U+2028,
    vertical tab and the like are part of it, because other tools count lines so. A byte order mark
    is dropped. Files are opened at the first `next`.
    """
    for line in _decoded_lines(path):
        yield line.removesuffix("\n").removesuffix("\r")


def _decoded_lines(path: str | Path) -> Iterator[str]:
    """Lines with their ends."""
    name = _name(path)
    offset = 0
    with _open(path) as stream:
        for number, raw in enumerate(_raw_lines(stream, name), start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                position = f"offset {offset + error.start}, line {number}"
                convert = "iconv -f latin1 -t utf-8"
                example = f"{convert} {name}" if str(path) != "-" else f"{convert} FILE | regard …"
                raise DataError(
                    f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at {position}",
                    f"convert it, for example: {example}",
                ) from error
            offset += len(raw)
            if number == 1:
                line = line.removeprefix("\ufeff")  # byte order mark
            yield line


def text(path: str | Path, size: int = 1 << 16) -> Iterator[str]:
    """A file as it is, line ends too, in blocks of complete lines of about `size` characters.

    A byte order mark is dropped.
    """
    block: list[str] = []
    length = 0
    for line in _decoded_lines(path):
        block.append(line)
        length += len(line)
        if length >= size:
            yield "".join(block)
            block = []
            length = 0
    if block:
        yield "".join(block)


# --- parallel text ---


def pairs(
    source: str | Path,
    target: str | Path | None = None,
    *,
    format: str | None = None,
    languages: tuple[str, str] | None = None,
) -> Iterator[tuple[str, str]]:
    """Parallel text: pairs of sentences, from two files line by line, or from one file of pairs.

    The format of one file is that of its suffix, or `format` ("tsv", "jsonl"; needed for standard
    input). TSV: the first two columns, without quoting. JSON Lines: `{"source": …, "target": …}`
    or, with `languages=("en", "de")`, Hugging Face's `{"translation": {"en": …, "de": …}}`.
    """
    file_format = _format(source, target, format)
    if target is not None:
        yield from _two_files(source, target)
        return
    count = 0
    for count, line in enumerate(lines(source), start=1):
        where = f"{_name(source)}, line {count}"
        if file_format == "tsv":
            yield _tsv_pair(line, where)
        else:
            yield _json_pair(line, where, languages)
    if count == 0:
        raise _empty(_name(source))


def _format(source: str | Path, target: str | Path | None, format: str | None) -> str:
    formats = ("text", "tsv", "jsonl")
    if format is not None and format not in formats:
        raise SettingError(f"no format is called {format!r}", did_you_mean(format, formats))
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
    file_format = format or format_of_suffix(source)
    if file_format == "text":
        raise SettingError(
            f"{_name(source)} holds one side of the pairs at most",
            "give the target file too, or one .tsv or .jsonl file "
            "(for another name: format 'tsv' or 'jsonl')",
        )
    return file_format


def format_of_suffix(path: str | Path) -> str:
    """tsv, jsonl or text, by the suffix of a file, which may be gzipped."""
    path = Path(path)
    if path.suffix == ".gz":
        path = path.with_suffix("")
    return FORMATS.get(path.suffix.lower(), "text")


def _two_files(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    source_lines = lines(source)
    target_lines = lines(target)
    count = 0
    for source_line, target_line in zip_longest(source_lines, target_lines):
        # The rest is counted for the message: how much longer a file is tells what went wrong.
        if source_line is None:
            raise _unequal(target, count + 1 + sum(1 for _ in target_lines), source, count)
        if target_line is None:
            raise _unequal(source, count + 1 + sum(1 for _ in source_lines), target, count)
        count += 1
        yield source_line, target_line
    if count == 0:
        raise _empty(f"{_name(source)} and {_name(target)}")


def _unequal(longer: str | Path, lines: int, shorter: str | Path, end: int) -> DataError:
    return DataError(
        f"{_name(longer)} has {lines} lines, {_name(shorter)} ends at line {end}",
        "give files where line n of one translates line n of the other",
    )


def _tsv_pair(line: str, where: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) < 2:
        raise DataError(f"{where} has no tab, so no second column", "write: source, a tab, target")
    return columns[0], columns[1]


def _json_pair(line: str, where: str, languages: tuple[str, str] | None) -> tuple[str, str]:
    record = json_record(line, where, 'write one object a line: {"source": "…", "target": "…"}')
    keys = ("source", "target")
    if isinstance(record.get("translation"), dict):
        if languages is None:
            present = ", ".join(map(repr, record["translation"]))
            raise DataError(
                f"{where} holds the languages {present}", 'say which way, as languages=("en", "de")'
            )
        record = record["translation"]
        keys = languages
    return _string(record, keys[0], where), _string(record, keys[1], where)


def json_record(line: str, where: str, repair: str = "write one object a line") -> dict[str, Any]:
    """The object on a line of JSON Lines; `where` names the line in error messages."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}", repair) from error
    if not isinstance(record, dict):
        raise DataError(f"{where} is JSON, but not an object", repair)
    return record


def _string(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        state = "is not a text" if key in record else "is missing"
        raise DataError(
            f"{where}: {key!r} {state}",
            f"give it as a string; the line has: {', '.join(record) or 'nothing'}",
        )
    try:
        value.encode()  # JSON's \ud800 escapes may be half of a character
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {key!r} holds half a character (a lone surrogate)", "replace it"
        ) from error
    return value


def _name(path: str | Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def _empty(name: str) -> DataError:
    return DataError(
        f"nothing to read: {name} is empty", "check the path, or how the file was made"
    )


# --- bytes ---


@contextmanager
def _open(path: str | Path) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file or of standard input, which is left open."""
    with ExitStack() as stack:
        try:
            file: BinaryIO
            if str(path) == "-":
                file = sys.stdin.buffer
            else:
                file = stack.enter_context(open(path, "rb", buffering=BLOCK))
            stream = _decompressed(file)
        except OSError as error:
            problem = f"cannot read {_name(path)}: {error.strerror}"
            raise DataError(problem, "check the path; it must be a readable file") from error
        yield stream


def _decompressed(stream: BinaryIO) -> BinaryIO:
    head = stream.read(len(GZIP))
    rejoined = io.BufferedReader(_Rejoined(head, stream), BLOCK)
    if head != GZIP:
        return rejoined
    return io.BufferedReader(gzip.GzipFile(fileobj=rejoined, mode="rb"), BLOCK)


class _Rejoined(io.RawIOBase):
    """A stream whose first bytes were read to see what it is; pipes cannot seek back."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # read1 gives what a pipe holds now, where read would wait for a full block.
        data = self._head or self._rest.read1(len(buffer))
        self._head = b""
        buffer[: len(data)] = data
        return len(data)


def _raw_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of a stream; what damaged files raise becomes DataError."""
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
