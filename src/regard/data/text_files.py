"""Streaming text: lines, blocks of text, and parallel text (pairs of sentences).

Text files are UTF-8; tables (Parquet, Arrow) have it in a column. Where a path is expected, several
files, globs, folders and remote ones are read one after the other (`file_access`). Nothing is kept
in memory but the current line or block.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from regard.data import published
from regard.data.file_access import (
    BLOCK,
    DATASET_STATE,
    expand,
    file_name,
    is_plain_text,
    is_remote,
    open_binary,
    open_decompressed,
    raw_lines,
    require_pyarrow,
    split_location,
    suffix_format,
)
from regard.evaluation.metrics.reference import Reference
from regard.system import disk
from regard.system.errors import (
    DataError,
    SettingError,
    UnreadColumnsWarning,
    did_you_mean,
    warn,
)

RECORD_FORMATS = ("csv", "jsonl", "table", *published.FORMATS)
_FORMATS = ("text", "tsv", *RECORD_FORMATS)
TEXT_KEY = "text"  # of JSON Lines, unless another is named

# --- lines and blocks ---


def lines(path: str | Path) -> Iterator[str]:
    """The lines of a file, without their ends; "-" is standard input.

    Whether it is compressed is seen from its content. Only "\\n" and "\\r\\n" end a line: U+2028,
    vertical tab and the like are part of it, because other tools count lines so. A byte order mark
    is dropped. Of a table, each text is a line; a line of JSON Lines is one, as it stands there.
    Files are opened at the first `next`.
    """
    for file in expand(path):
        if suffix_format(file) == "table":
            yield from _record_texts(file, None)
            continue
        for line in _decoded_lines(file):
            yield line.removesuffix("\n").removesuffix("\r")


def texts(path: str | Path, column: str | None = None) -> Iterator[str]:
    """The lines of text files, and the texts of tables and JSON Lines: those of a column or key."""
    for file in expand(path):
        if is_record_file(file):
            yield from _record_texts(file, column)
        else:
            yield from lines(file)


def is_record_file(file: str) -> bool:
    """Whether a file has texts in records: a table, CSV, or JSON Lines."""
    return suffix_format(file) in RECORD_FORMATS


def check_has_columns(files: Iterable[str], column: str | None) -> None:
    """Refuses the name of a column where none of the files is a table or JSON Lines."""
    files = list(files)
    if column is not None and not any(is_record_file(file) for file in files):
        raise DataError(
            f"{', '.join(files[:3])}: a text file has no column {column!r}",
            "leave the text column out, or give a table (.parquet, .arrow) or .jsonl",
        )


def _record_texts(file: str, column: str | None) -> Iterator[str]:
    """One key of records: the one named, or `text`, or of a table the only one with strings."""
    key = column
    for where, record in records(file):
        if key is None:
            key = TEXT_KEY
            strings = [name for name, value in record.items() if isinstance(value, str)]
            if key not in record and suffix_format(file) == "table" and len(strings) == 1:
                key = strings[0]
        if key not in record:
            raise DataError(
                f"{where}: there is no column {key!r}",
                "call it `text`, or name it with --text-column, where there is this flag; "
                f"has: {', '.join(record) or 'nothing'}",
            )
        yield text_of(record, key, where)


def _decoded_lines(path: str | Path) -> Iterator[str]:
    """Lines with their ends."""
    name = file_name(path)
    offset = 0
    with open_decompressed(path) as stream:
        for number, raw in enumerate(raw_lines(stream, name), start=1):
            if number == 1 and _is_utf_16(raw):
                raise DataError(
                    f"{name} is UTF-16, not UTF-8",
                    f"convert it: iconv -f utf-16 -t utf-8 {name}",
                )
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                # Zero bytes are in images, recordings and archives, and in no text.
                if b"\0" in raw + stream.read(1024):
                    raise DataError(f"{name} is not a text file", "give one") from None
                raise DataError(
                    f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at offset "
                    f"{offset + error.start}, line {number}",
                    "convert it, for example: iconv -f latin1 -t utf-8 FILE",
                ) from error
            offset += len(raw)
            if number == 1:
                line = line.removeprefix("\ufeff")  # byte order mark
            yield line


def _is_utf_16(line: bytes) -> bool:
    """Whether a file begins as UTF-16: with its byte order mark, or with letters of two bytes."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    # Each ASCII character has a zero byte, always the first or always the second of its two.
    zeros = line.count(b"\0")
    return 3 * zeros >= len(line) and zeros in (line[::2].count(b"\0"), line[1::2].count(b"\0"))


def text(path: str | Path, size: int = 1 << 16, column: str | None = None) -> Iterator[str]:
    """A file as it is, line ends too, in blocks of complete lines of about `size` characters.

    A byte order mark is dropped. A text of a table or of JSON Lines is followed by a line end.
    """
    block: list[str] = []
    length = 0
    for line in _text_lines(path, column):
        block.append(line)
        length += len(line)
        if length >= size:
            yield "".join(block)
            block = []
            length = 0
    if block:
        yield "".join(block)


def _text_lines(path: str | Path, column: str | None) -> Iterator[str]:
    """Lines, and texts of records, with their ends."""
    for file in expand(path):
        if is_record_file(file):
            for record in _record_texts(file, column):
                yield record if record.endswith("\n") else record + "\n"
        else:
            yield from _decoded_lines(file)


def count_lines(path: str | Path) -> int | None:
    """How many lines there are; None where a file would have to be decompressed, or is remote."""
    total = 0
    for file in expand(path):
        if file == "-" or is_remote(file) or not is_plain_text(file):
            return None
        with open_binary(file) as stream:
            last = b""
            while block := stream.read(BLOCK):
                total += block.count(b"\n")
                last = block
            total += bool(last) and not last.endswith(b"\n")
    return total


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
    input). TSV: the first two columns, without quoting. JSON Lines, tables and CSV: `{"source": …,
    "target": …}` or, with `languages=("en", "de")`, Hugging Face's `{"translation": {"en": …, "de":
    …}}` or `{"en": …, "de": …}`. Several files of a side go with equally many of the other.
    """
    if format not in (None, *_FORMATS):
        raise SettingError(f"no format is called {format!r}", did_you_mean(str(format), _FORMATS))
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
        sources = expand(source)
        targets = expand(target)
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} source files for {len(targets)} target files",
                "give as many files on one side as on the other",
            )
        for one, other in zip(sources, targets, strict=True):
            yield from _two_files(one, other)
        return
    count = 0
    for file in expand(source):
        file_format = format or format_of_suffix(file)
        for pair in _file_pairs(file, file_format, languages):
            count += 1
            yield pair
    if count == 0:
        raise nothing_to_read(file_name(source))


def _file_pairs(
    file: str, file_format: str, languages: tuple[str, str] | None
) -> Iterator[tuple[str, str]]:
    if file_format == "text":
        # Opened once: a pipe gives its first line once. Of standard input the format is named, so
        # nothing waits for it.
        written = iter(()) if file == "-" else lines(file)
        first = next(written, "")
        if not published.is_command(first):
            raise SettingError(
                f"{file_name(file)} holds one side of the pairs at most",
                "give the target file too; if it holds both sides, name it .tsv or .jsonl "
                "(in Python: format='tsv')",
            )
        yield from map(published.command, chain([first], written))
        return
    if file_format == "tsv":
        warned = False
        for number, line in enumerate(lines(file), start=1):
            columns = line.split("\t")
            where = f"{file_name(file)}, line {number}"
            if len(columns) < 2:
                raise DataError(
                    f"{where} has no tab, so no second column", "write: source, a tab, target"
                )
            if len(columns) > 2 and not warned:
                warned = True
                warn(
                    UnreadColumnsWarning(
                        f"{where} has {len(columns)} columns; the first two are read, here and in "
                        "the lines that follow"
                    )
                )
            yield columns[0], columns[1]
        return
    for where, record in _records_of(file, file_format):
        yield _record_pair(record, where, languages)


def format_of_suffix(path: str | Path) -> str:
    """tsv, jsonl, table or text, by the suffix of a file, or of the first of several."""
    first = split_location(path)[0]
    return suffix_format(expand(first)[0] if Path(first).is_dir() else first)


def _two_files(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    count = 0
    for source_line, target_line in zip_longest(lines(source), lines(target)):
        if source_line is None or target_line is None:
            ended, other = (source, target) if source_line is None else (target, source)
            raise DataError(
                f"{file_name(ended)} ends at line {count}, {file_name(other)} has more lines",
                "give files where line n of one translates line n of the other",
            )
        count += 1
        yield source_line, target_line
    if count == 0:
        raise nothing_to_read(f"{file_name(source)} and {file_name(target)}", "are")


def _record_pair(
    record: dict[str, Any], where: str, languages: tuple[str, str] | None
) -> tuple[str, str]:
    keys = ("source", "target")
    if isinstance(record.get("translation"), dict):
        if languages is None:
            present = ", ".join(map(repr, record["translation"]))
            raise DataError(
                f"{where} holds the languages {present}",
                "write `source` and `target` instead, or say which way: --languages en-de where "
                'there is this flag, in Python languages=("en", "de")',
            )
        record = record["translation"]
        keys = languages
    elif languages is not None and set(languages) <= record.keys():
        keys = languages
    target = record.get(keys[1])
    if isinstance(target, list) and target and all(isinstance(one, str) for one in target):
        return text_of(record, keys[0], where), Reference(target)
    return text_of(record, keys[0], where), text_of(record, keys[1], where)


def records(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of JSON Lines, or the rows of tables and CSV, and where each stands."""
    for file in expand(path):
        yield from _records_of(file, suffix_format(file))


def _records_of(file: str, file_format: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if file_format == "table":
        return _table_records(file)
    if file_format in published.FORMATS:
        return published.records(file, file_format, lines)
    return _csv_records(file) if file_format == "csv" else _json_records(file)


def _csv_records(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of CSV by the names of its header; two columns of other names are those of TSV."""
    name = file_name(file)
    reader = csv.reader(_decoded_lines(file))
    try:
        header = next(reader, [])
        for cells in filter(None, reader):
            where = f"{name}, line {reader.line_num}"
            if len(cells) != len(header):
                raise DataError(
                    f"{where} has {len(cells)} columns, the header has {len(header)}",
                    'quote texts with a comma: "…, …"',
                )
            record = dict(zip(header, cells, strict=True))
            if len(header) < 3:
                for names in (("text", "label"), ("source", "target")):
                    record = dict(zip(names, cells, strict=False)) | record
            yield where, record
    except csv.Error as error:
        raise DataError(f"{name} is no CSV: {error}", "write it again") from None


def _json_records(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines(file), start=1):
        where = f"{file_name(file)}, line {number}"
        yield where, json_record(line, where)


def json_record(line: str, where: str) -> dict[str, Any]:
    """The object on a line of JSON Lines; `where` names the line in error messages."""
    repair = 'write one object a line: {"source": "…", "target": "…"}, {"text": "…"}'
    try:
        record = disk.parse_json(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}", repair) from error
    if not isinstance(record, dict):
        raise DataError(f"{where} is JSON, but not an object", repair)
    return record


def text_of(record: dict[str, Any], key: str, where: str) -> str:
    """The text of a key, which must be there; `where` names the record in error messages."""
    value = record.get(key)
    if not isinstance(value, str):
        state = "is not a text" if key in record else "is missing"
        raise DataError(
            f"{where}: {key!r} {state}",
            f"give it as a string; the line has: {', '.join(record) or 'nothing'}",
        )
    return value


def nothing_to_read(name: str, verb: str = "is") -> DataError:
    return DataError(
        f"nothing to read: {name} {verb} empty", "check the path, or how the file was made"
    )


# --- tables: Parquet, Arrow, and folders that Hugging Face's `datasets` saved ---


ROWS_AT_ONCE = 2048
ARROW_FILE = b"ARROW1"  # the first bytes of an Arrow file; a stream has none
PARQUET_FILE = b"PAR1"
DATASET_INFO = "dataset_info.json"


def _table_records(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a table as dicts, and where each stands."""
    number = 0
    for batch in _batches(path):
        # Few rows at a time: the format may have many in a batch.
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            for record in batch.slice(start, ROWS_AT_ONCE).to_pylist():
                number += 1
                yield f"{file_name(path)}, row {number}", record


def class_names(path: str | Path, column: str) -> list[str] | None:
    """The names of the classes whose numbers a column of a saved dataset holds."""
    file = Path(path) / DATASET_INFO
    try:
        names = json.loads(file.read_text(encoding="utf-8"))["features"][column]["names"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _batches(path: str | Path) -> Iterator[Any]:
    """Arrow's record batches. Of a saved dataset the Arrow files are read themselves: nothing in
    its folder is executed or unpickled."""
    pyarrow = require_pyarrow("tables")
    if (Path(path) / DATASET_STATE).is_file():
        for file in _dataset_files(Path(path)):
            yield from _batches(file)
        return
    with open_binary(path) as stream:
        head = stream.read(len(ARROW_FILE))
        stream.seek(0)
        try:
            if head.startswith(PARQUET_FILE):
                from pyarrow import parquet

                # Without pre-buffering, one page of each column is in memory, not a row group.
                table = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 16)
                yield from table.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False)
            elif head == ARROW_FILE:
                table = pyarrow.ipc.open_file(stream)
                yield from map(table.get_batch, range(table.num_record_batches))
            else:
                yield from pyarrow.ipc.open_stream(stream)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"{file_name(path)} is not an intact Parquet or Arrow file: {error}",
                "copy or write it again",
            ) from None


def _dataset_files(folder: Path) -> list[Path]:
    """The Arrow files of a saved dataset, in its order."""
    try:
        state = json.loads((folder / DATASET_STATE).read_text(encoding="utf-8"))
        names = [entry["filename"] for entry in state["_data_files"]]
        # A name, not a path: it must not lead out of the folder.
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("a file outside of the folder")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} is not a dataset that `datasets` saved: {error}", "save it again"
        ) from None
    return [folder / name for name in names]
