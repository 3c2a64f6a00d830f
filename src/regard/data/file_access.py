"""Files by location: one file, several, a glob, a folder, or a remote path; decompressed bytes.

A location is a path, or several with commas between. A path may be

- a file, or "-" for standard input;
- a glob (`shards/*.txt.gz`, `**` for all subfolders);
- a folder, whose files are read in the order of their names;
- a member of an archive, as if that were a folder (`scan.tar.gz/tasks_train_simple.txt`);
- one split of a published data set (`cmudict.dict.gz:test`, see `data/published`);
- remote, through fsspec (`s3://…`, `hf://…`, `https://…`), with globs and folders there too.

Files may be compressed by gzip or Zstandard, which is seen from their content.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from zipfile import BadZipFile, ZipFile, is_zipfile

from regard.system import disk
from regard.system.errors import DataError

if TYPE_CHECKING:  # recipes know paths, and their help does not wait for numpy
    from numpy.typing import NDArray

LONGEST_LINE = 1 << 28  # bytes; there are corpora of 100 MB in one line (text8)
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
ZSTANDARD = b"\x28\xb5\x2f\xfd"
BLOCK = 1 << 20  # bytes of a read buffer
COMPRESSED = (".gz", ".zst")  # suffixes
# The format of a file by its suffix, after that of its compression is taken off.
FORMATS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "table",
    ".arrow": "table",
    ".dict": "dict",
    ".fasta": "fasta",
}
SPLITS = ("train", "valid", "test")  # of a file that has several, as FILE:SPLIT
DATASET_STATE = "state.json"  # of a folder that `datasets` saved
DATASET_SPLITS = "dataset_dict.json"  # of one with several splits


# --- locations ------------------------------------------------------------------------------------


def is_remote(path: str) -> bool:
    return "://" in path


def file_name(path: str | Path) -> str:
    """A file as messages name it."""
    return "standard input" if str(path) == "-" else str(path)


def suffix_format(path: str | Path) -> str:
    """The format of a file by its suffix, before that of its compression; text without one."""
    path = Path(split_of_file(path)[0])
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
    if (path / DATASET_STATE).is_file():
        return "table"
    return FORMATS.get(path.suffix.lower(), "text")


def split_of_file(path: str | Path) -> tuple[str, str | None]:
    """The file of FILE:SPLIT and the split; None where all of the file is meant."""
    file, _, split = str(path).rpartition(":")
    if file and split in SPLITS:
        return file, split
    return str(path), None


def split_location(location: str | Path) -> list[str]:
    """The paths of a location, one for each corpus."""
    text = str(location)
    # A file may have a comma in its name.
    if "," not in text or Path(text).exists():
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def below(root: str | Path, location: str) -> str:
    """A location whose relative paths are those of a folder."""
    parts = split_location(location)
    return ",".join(part if is_remote(part) else str(Path(root) / part) for part in parts)


def expand(location: str | Path) -> list[str]:
    """The files of a location, in their order; a saved dataset counts as one file."""
    return [file for path in split_location(location) for file in _expand_path(path)]


def _expand_path(path: str) -> list[str]:
    if path == "-":
        return [path]
    if is_remote(path):
        return _expand_remote(path)
    if Path(path).is_dir():
        return _folder_files(Path(path))
    if not Path(path).exists() and glob.has_magic(path):
        files = [file for file in sorted(glob.glob(path, recursive=True)) if Path(file).is_file()]
        return _at_least_one(files, path)
    return [path]


def _folder_files(folder: Path) -> list[str]:
    if (folder / DATASET_STATE).is_file():
        return [str(folder)]
    if (folder / DATASET_SPLITS).is_file():
        train = folder / "train"
        if train.is_dir():
            return [str(train)]
        splits = ", ".join(sorted(child.name for child in folder.iterdir() if child.is_dir()))
        raise DataError(f"{folder} has no split train", f"name one of its folders: {splits}")
    files = sorted(str(file) for file in folder.rglob("*") if file.is_file())
    return _at_least_one(_data_files(files, str(folder)), str(folder))


def _data_files(files: list[str], folder: str) -> list[str]:
    """Those that hold data: by their suffix, or all where none has one that is known."""
    names = {file: file.removeprefix(folder) for file in files}
    visible = [file for file in files if "/." not in names[file].replace("\\", "/")]
    texts = (".txt", *(f".txt{suffix}" for suffix in COMPRESSED))
    return [
        file for file in visible if suffix_format(file) != "text" or file.endswith(texts)
    ] or visible


def _at_least_one(files: list[str], path: str) -> list[str]:
    if not files:
        what = "a directory without files" if Path(path).is_dir() else "no file's name"
        raise DataError(f"nothing to read: {path} is {what}", "check the path")
    return files


# --- remote files ---------------------------------------------------------------------------------


def _expand_remote(path: str) -> list[str]:
    with _read_errors(path):
        from fsspec.core import url_to_fs

        system, inner = url_to_fs(path)
        if glob.has_magic(inner):
            files = _at_least_one(sorted(map(str, system.glob(inner))), path)
            return [system.unstrip_protocol(file) for file in files]
        # A web server has no folders.
        if not path.startswith("http") and system.isdir(inner):
            files = [system.unstrip_protocol(file) for file in sorted(system.find(inner))]
            return _at_least_one(_data_files(files, path), path)
    return [path]


@contextmanager
def _read_errors(path: str | Path) -> Iterator[None]:
    """What opening raises, fsspec and its file systems too, as errors that end with the repair."""
    try:
        yield
    except ImportError as error:
        protocol = str(path).partition("://")[0]
        raise DataError(
            f"{protocol}:// needs a package that is missing: {error}",
            f"pip install 'regard[data]' 'fsspec[{protocol}]'",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(
            f"cannot read {file_name(path)}: {reason}",
            "check the path or address; it must be a readable file",
        ) from error


# --- bytes ----------------------------------------------------------------------------------------


def _open_now(path: str, flags: int) -> int:
    """A descriptor without waiting: a pipe that nobody writes to is empty, and does not hang."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(handle, True)  # reading waits for who writes, as ever
    return handle


@contextmanager
def open_binary(path: str | Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file as they are; standard input is left open."""
    with ExitStack() as stack:
        with _read_errors(path):
            file: Any
            if str(path) == "-":
                file = sys.stdin.buffer
            elif is_remote(str(path)):
                import fsspec

                file = stack.enter_context(fsspec.open(str(path), "rb").open())
            else:
                path = Path(split_of_file(path)[0])
                archive = next((one for one in path.parents if one.is_file()), None)
                if archive is not None:
                    member = path.relative_to(archive).as_posix()
                    file = _open_member(stack, archive, member)
                else:
                    file = stack.enter_context(open(path, "rb", buffering=BLOCK, opener=_open_now))
        # Remote files are of any class; this one can look ahead.
        yield file if isinstance(file, io.BufferedReader) else io.BufferedReader(file, BLOCK)


def _open_member(stack: ExitStack, archive: Path, member: str) -> Any:
    """The bytes of a file in a tar or zip archive."""
    try:
        if is_zipfile(archive):
            return stack.enter_context(stack.enter_context(ZipFile(archive)).open(member))
        tar = stack.enter_context(tarfile.TarFile.open(archive))
        file = tar.extractfile(member)
    except (KeyError, tarfile.TarError, BadZipFile) as error:
        raise DataError(
            f"cannot read {archive}/{member}: {error}", "name a file of a .tar or .zip archive"
        ) from None
    return stack.enter_context(file or io.BytesIO())  # a folder has no bytes


@contextmanager
def open_decompressed(path: str | Path) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file or of standard input."""
    with open_binary(path) as file:
        with _read_errors(path):
            stream = _decompressed(file)
        yield stream


def _decompressed(stream: io.BufferedReader) -> BinaryIO:
    head = _compression(stream)
    if head == GZIP:
        return io.BufferedReader(gzip.GzipFile(fileobj=stream, mode="rb"), BLOCK)
    if head == ZSTANDARD:
        arrow = require_pyarrow("Zstandard files")
        compressed = arrow.PythonFile(stream, mode="r")
        return io.BufferedReader(arrow.CompressedInputStream(compressed, "zstd"), BLOCK)
    return stream


def _compression(stream: io.BufferedReader) -> bytes:
    """The first bytes that say how a stream is compressed, which stay to be read; else none."""
    head = stream.peek(len(ZSTANDARD))
    return next((first for first in (GZIP, ZSTANDARD) if head.startswith(first)), b"")


def is_plain_text(file: str) -> bool:
    """Whether a local file holds lines that are not compressed."""
    if suffix_format(file) == "table":
        return False
    with open_binary(file) as stream:
        return not _compression(stream)


def require_pyarrow(what: str) -> Any:
    """The package pyarrow; `DataError` where it is missing."""
    try:
        import pyarrow
    except ImportError:
        raise DataError(
            f"{what} need pyarrow, which is not installed", "pip install 'regard[data]'"
        ) from None
    return pyarrow


def raw_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of a stream; what damaged files raise becomes DataError.

    So does a line without an end, as of a device: memory has room for LONGEST_LINE only.
    """
    try:
        while line := stream.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise DataError(
                    f"{name} has a line of more than {LONGEST_LINE >> 20} MiB",
                    "is it a text file? Break its lines",
                )
            yield line
    except (EOFError, OSError, zlib.error) as error:
        # Arrow's errors of damaged Zstandard files have a text instead of a number.
        raise DataError(
            f"{name} is damaged or cannot be read: {getattr(error, 'strerror', None) or error}",
            "copy or download it again",
        ) from error


# --- arrays ---------------------------------------------------------------------------------------


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """An .npz file of arrays, complete or not at all; strings become arrays of a fixed width."""
    import numpy

    path.parent.mkdir(parents=True, exist_ok=True)
    with disk.atomic_file(path) as temporary, open(temporary, "wb") as file:
        numpy.savez_compressed(file, **arrays)


def read_arrays(path: Path, repair: str, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name: all of them, or these, of which none may be missing."""
    import numpy

    try:
        # A file may come from anywhere, and a pickle in it could run code.
        with numpy.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names or arrays}
    except (OSError, KeyError, ValueError, EOFError, MemoryError, BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}", repair) from None
