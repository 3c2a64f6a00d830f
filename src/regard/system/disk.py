"""Atomic writes and memory-mapped tensors.

After a crash, what is on disk is the old state or the new one, never something between.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import io
import json
import math
import mmap
import os
import re
import shutil
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from regard.system.errors import DiskError, RegardError, SettingError

if TYPE_CHECKING:
    from torch import Tensor  # at run time only where needed: help must not wait for torch

# --- locks ---


def lock(file: IO[Any]) -> bool:
    """Locks an open file until it is closed or the process ends; False if another has done so."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# --- atomic writes --------------------------------------------------------------------------------

_FETCH_AGAIN = "correct it, or fetch the folder again"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of half a character, or of one of a pair
_LARGEST_TEXT = 2**30  # bytes of a JSON or text file that is read as a whole


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turns the OSErrors of writing `what` into DiskErrors that end with the repair."""
    try:
        yield
    except OSError as error:
        # No space, over the quota, over the limit on a file's size.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskError(
                f"the disk is full: {what} was not written; what was there before is intact",
                "free some space, then go on (a run: `regard train --resume DIR`)",
            ) from None
        raise DiskError(
            f"writing {what} failed: {error.strerror}",
            "choose another folder, or see to its permissions",
        ) from error


def sync(path: Path) -> None:
    """fsync of a file's content, or of a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> list[Path]:
    """mkdir with parents, whose entries are on disk when it returns.

    Returns the new ones, innermost first.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(new):
        path.mkdir(exist_ok=True)
        sync(path.parent)
    return new


def require_absent(path: Path, repair: str) -> None:
    """Refuses to write to what exists, whatever it is."""
    # A link that leads nowhere exists as well.
    if path.exists() or path.is_symlink():
        raise SettingError(f"{path} exists, and nothing is overwritten", repair)


def write_file(path: Path, content: bytes | str) -> None:
    """Replaces `path` atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a text line by line, completely or not at all."""
    with (
        atomic_file(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(lines)


def read_bytes(path: Path) -> bytes:
    """The content of a file; an OSError for what is no file, or too large to be meant.

    A device may have no end, and a pipe may never have a writer.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        what = "it is a directory" if path.is_dir() else "it is no regular file"
        raise OSError(errno.EINVAL, what, str(path))
    if status.st_size > _LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"{status.st_size:,} bytes are too many", str(path))
    return path.read_bytes()


def open_to_append(path: Path) -> io.FileIO:
    """An unbuffered file, made if it is missing; an OSError for what is no file.

    Opening a pipe would wait for a reader, who may never come.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    handle = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return io.FileIO(handle, "ab")


def read_text(path: Path, error: type[RegardError]) -> str:
    """The content of a UTF-8 text file; `error` where it cannot be read."""
    try:
        return read_bytes(path).decode()
    except OSError as failure:
        raise error(f"cannot read {path}: {failure.strerror}", _FETCH_AGAIN) from None
    except UnicodeDecodeError as failure:
        problem = f"{path} is not UTF-8 text (byte {failure.start})"
        raise error(problem, "save it as UTF-8, or fetch the folder again") from None


def parse_json(text: str) -> Any:
    """A JSON value; ValueError also where a string holds half a character (a lone surrogate).

    Such a string can neither be printed nor written; only an escape makes one.
    """
    value = json.loads(text)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it holds half a character (a lone surrogate)") from None
    return value


def read_json(path: Path, error: type[RegardError]) -> Any:
    """The content of a JSON file; `error` where it cannot be read or is damaged."""
    text = read_text(path, error)
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as failure:
        raise error(f"{path} is not valid JSON: {failure}", _FETCH_AGAIN) from None


def read_json_object(path: Path, error: type[RegardError]) -> dict[str, Any]:
    """The object of a JSON file, empty where there is no file."""
    if not path.is_file():
        return {}
    value = read_json(path, error)
    if not isinstance(value, dict):
        raise error(f"{path} is not a JSON object", _FETCH_AGAIN)
    return value


def read_toml(path: Path, error: type[RegardError]) -> dict[str, Any]:
    """The content of a TOML file; `error` where it cannot be read or is damaged."""
    try:
        return tomllib.loads(read_text(path, error).removeprefix("\ufeff"))  # a mark of editors
    except tomllib.TOMLDecodeError as failure:
        raise error(f"{path} is not valid TOML: {failure}", "correct that line") from None


def json_value(value: Any) -> Any:
    """A value that JSON can hold: NaN and infinities, which it has not, become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    return value


def json_line(value: Any) -> str:
    """One line of a JSON Lines file."""
    return json.dumps(value, ensure_ascii=False) + "\n"


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary sibling to write to; it replaces `path` when the block ends well."""
    # In the same folder: a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path.name):
        try:
            yield temporary
            # In this order: content, rename, folder entry. Else a crash may leave an empty file.
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill; it becomes `folder` by one rename when the block ends well."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    retired = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    for path in (temporary, retired):
        shutil.rmtree(path, ignore_errors=True)
    with disk_errors(folder.name):
        try:
            make_folder(temporary)
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                sync(path)
            # A folder cannot be renamed onto one that is not empty: the old one moves aside first.
            if folder.exists():
                os.rename(folder, retired)
            os.rename(temporary, folder)
            shutil.rmtree(retired, ignore_errors=True)
            sync(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def delete_unfinished(folder: Path) -> None:
    """Removes what a killed process left in a folder that only this process writes to.

    Temporary files and folders, by the names that `atomic_file` and `atomic_folder` give them.
    """
    for pattern in (".*.tmp", ".*.old"):
        for path in folder.glob(pattern):
            with suppress(OSError):
                remove(path)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


# --- tensors --------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file, with a hash of its content in the header.

    The same tensors give the same bytes.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    on_cpu = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # Inside the file, so that file and hash cannot come apart.
    metadata = {"format": "pt", "sha256": _content_hash(sorted(on_cpu.items()))}
    try:
        save_file(on_cpu, path, metadata)
    except SafetensorError as error:
        # The library wraps an OSError in text: "I/O error: No space left on device (os error 28)".
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else 0, str(error)) from error
    _sort_metadata(path)
    # The library makes files that only their owner can read, unlike all other files of a folder.
    path.chmod(_default_mode())


def replace_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Replaces a safetensors file atomically: a reader sees the old one or the new one."""
    with atomic_file(path) as temporary:
        write_tensors(temporary, tensors)


@functools.cache
def _default_mode() -> int:
    """The mode of new files, by the umask, which can only be read by setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _sort_metadata(path: Path) -> None:
    """Sorts the metadata in the header of a safetensors file.

    The library writes the tensors in a fixed order, but the metadata in that of a hash table with a
    random seed.
    """
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        # The same keys in another order, filled up with spaces as the library does.
        assert len(text) <= length, "the header has grown"
        file.seek(8)
        file.write(text.ljust(length))


def mmap_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, memory-mapped: nothing is read before it is used.

    Each has a mapping of its own, whose memory is released with that tensor. In one mapping for
    all, the last tensor in use would hold the whole file in memory.
    """
    from safetensors import safe_open

    before = path.stat()
    with safe_open(path, "pt") as file, path.open("rb") as raw:
        # The format: the header's length in 8 bytes, the header as JSON, the data.
        header_length = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(header_length))
        tensors = {}
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            offset = 8 + header_length + header[name]["data_offsets"][0]
            tensors[name] = _mmap_tensor(path, file.get_tensor(name), offset)
    if not os.path.samestat(before, path.stat()):
        raise OSError(f"{path} was replaced while it was opened")
    return tensors


def _mmap_tensor(path: Path, tensor: Tensor, offset: int) -> Tensor:
    """The same tensor, at this offset of the file, in a mapping that ends with it."""
    import torch

    # An empty mapping is an error; a header of any length is valid, also one that shifts the data
    # off the boundaries that a view of a mapping needs.
    if not tensor.nbytes or offset % tensor.element_size():
        return tensor
    size = offset + tensor.nbytes
    try:
        # from_file maps from the beginning of the file; pages that nobody reads cost no memory.
        data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    except RuntimeError:  # the limit on address space (ulimit -v)
        return tensor
    return data[offset:].view(tensor.dtype).view(tensor.shape)


def drop_pages(tensor: Tensor) -> None:
    """Releases the memory of what was read of a memory-mapped tensor (MADV_DONTNEED).

    The next use reads the file again. Any other tensor, and one that was written to, is left alone:
    Linux says of each page whether it is still that of the file.
    """
    is_linux = sys.platform.startswith("linux")
    if not (is_linux and tensor.device.type == "cpu" and tensor.is_contiguous()):
        return
    import numpy as np

    # Pages that the tensor fills completely.
    first = -(-tensor.data_ptr() // mmap.PAGESIZE)
    last = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE
    count = last - first
    try:
        # One 64-bit entry a page: bit 63 present, bit 62 swapped, bit 61 of a file.
        pages = np.fromfile("/proc/self/pagemap", np.uint64, max(0, count), offset=8 * first)
    except OSError:
        return
    # Absent: neither present nor swapped. Of the file: present, not swapped, file-backed.
    absent = pages >> 62 == 0
    of_file = pages >> 61 == 0b101
    if len(pages) == count and bool((absent | of_file).all()):
        address = ctypes.c_void_p(first * mmap.PAGESIZE)
        size = ctypes.c_size_t(count * mmap.PAGESIZE)
        ctypes.CDLL(None).madvise(address, size, mmap.MADV_DONTNEED)


def is_altered(path: Path) -> bool:
    """Whether a safetensors file of ours has other content than was written.

    Files of other libraries carry no hash, and count as unaltered.
    """
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        expected = (file.metadata() or {}).get("sha256")
    if expected is None:
        return False
    tensors = mmap_tensors(path)
    # pop: each tensor's memory is released before the next is read.
    return expected != _content_hash((name, tensors.pop(name)) for name in sorted(tensors))


def _content_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of names and bytes, in this order."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode())
        # The buffer itself: `tobytes` would copy it.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """~/.cache/regard, or what REGARD_CACHE names."""
    return Path(os.environ.get("REGARD_CACHE") or Path.home() / ".cache" / "regard")
