"""Tables of records: Parquet, Arrow, and folders that Hugging Face's `datasets` saved.

They are read with pyarrow, a batch of rows at a time. Of a saved dataset the Arrow files are read
themselves: nothing in its folder is executed or unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.data.file_access import DATASET_STATE, file_name, open_binary, require_pyarrow
from regard.system.errors import DataError

ROWS_AT_ONCE = 2048
ARROW_FILE = b"ARROW1"  # the first bytes of an Arrow file; a stream has none
PARQUET_FILE = b"PAR1"
DATASET_INFO = "dataset_info.json"


def table_records(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a table as dicts, and where each stands."""
    number = 0
    for batch in _batches(path):
        for record in batch.to_pylist():
            number += 1
            yield f"{file_name(path)}, row {number}", record


def column_texts(path: str | Path, column: str | None) -> Iterator[str]:
    """One column of texts: the one named, or `text`, or the only one that holds strings."""
    name: str | None = None
    number = 0
    for batch in _batches(path):
        name = name or _text_column(batch.schema, column, path)
        for value in batch.column(name).to_pylist():
            number += 1
            if not isinstance(value, str):
                raise DataError(
                    f"{file_name(path)}, row {number}: {name!r} holds no text",
                    "leave such rows out, or name another column",
                )
            yield value


def class_names(path: str | Path, column: str) -> list[str] | None:
    """The names of the classes whose numbers a column of a saved dataset holds."""
    file = Path(path) / DATASET_INFO
    try:
        names = json.loads(file.read_text(encoding="utf-8"))["features"][column]["names"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _text_column(schema: Any, column: str | None, path: str | Path) -> str:
    import pyarrow

    strings = [
        field.name
        for field in schema
        if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
    ]
    wanted = column or "text"
    if wanted in schema.names:
        return wanted
    if column is None and len(strings) == 1:
        return str(strings[0])
    raise DataError(
        f"{file_name(path)} has no column {wanted!r}",
        call_it_text(schema.names),
    )


def call_it_text(names: Iterable[str]) -> str:
    """The repair of records whose text has another name; not all commands take that name."""
    listed = ", ".join(names) or "nothing"
    return f"call it `text`, or name it with --text-column, where there is this flag; has: {listed}"


# --- formats --------------------------------------------------------------------------------------


def _batches(path: str | Path) -> Iterator[Any]:
    """Arrow's record batches, of at most ROWS_AT_ONCE rows each where the format allows it."""
    require_pyarrow("tables")
    if (Path(path) / DATASET_STATE).is_file():
        for file in _dataset_files(Path(path)):
            yield from _batches(file)
        return
    with open_binary(path) as stream, _arrow_errors(path):
        head = stream.read(len(ARROW_FILE))
        stream.seek(0)
        if head.startswith(PARQUET_FILE):
            yield from _parquet_batches(stream)
        else:
            yield from _arrow_batches(stream, is_file=head == ARROW_FILE)


def _parquet_batches(stream: Any) -> Iterator[Any]:
    import pyarrow.parquet

    # Without pre-buffering, one page of each column is in memory, not a whole row group.
    table = pyarrow.parquet.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 16)
    yield from table.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False)


def _arrow_batches(stream: Any, is_file: bool) -> Iterator[Any]:
    import pyarrow

    batches: Iterable[Any] = ()
    if is_file:
        table = pyarrow.ipc.open_file(stream)
        batches = map(table.get_batch, range(table.num_record_batches))
    else:
        batches = pyarrow.ipc.open_stream(stream)
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            yield batch.slice(start, ROWS_AT_ONCE)


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


@contextmanager
def _arrow_errors(path: str | Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{file_name(path)} is not an intact Parquet or Arrow file: {error}",
            "copy or write it again",
        ) from None
