"""Writing that a crash cannot tear: what is on disk is the old state or the new one, never something between."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import DiskError, RegardError

if TYPE_CHECKING:
    from torch import Tensor

_FETCH_AGAIN = "fetch or write the folder again"


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turns the failures of a disk into errors that say what was kept."""
    try:
        yield
    except OSError as error:
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
    """Forces a file's, or a folder's entries', way to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes | str) -> None:
    """Replaces `path` as a whole."""
    with writing(path.name), replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_text(path: Path, error: type[RegardError]) -> str:
    """The content of a UTF-8 text file; `error` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as failure:
        raise error(f"cannot read {path}: {failure.strerror}", _FETCH_AGAIN) from None
    except UnicodeDecodeError as failure:
        problem = f"{path} is not UTF-8 text (byte {failure.start})"
        raise error(problem, _FETCH_AGAIN) from None


def read_json(path: Path, error: type[RegardError]) -> Any:
    """The content of a JSON file; `error` where it cannot be read or is damaged."""
    text = read_text(path, error)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise error(f"{path} is not valid JSON: {failure}", _FETCH_AGAIN) from None


def read_json_object(path: Path, error: type[RegardError]) -> dict[str, Any]:
    """The object of a JSON file, empty where there is no file."""
    if not path.is_file():
        return {}
    value = read_json(path, error)
    if not isinstance(value, dict):
        raise error(f"{path} holds no object", _FETCH_AGAIN)
    return value


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary sibling to write to; it takes the place of `path` when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def committing(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill; it becomes `folder` by one rename when the block ends well."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with writing(folder.name):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            for path in temporary.rglob("*"):
                sync(path)
            sync(temporary)
            if folder.exists():
                retired = folder.with_name(f".{folder.name}.{os.getpid()}.old")
                shutil.rmtree(retired, ignore_errors=True)
                os.rename(folder, retired)
                os.rename(temporary, folder)
                shutil.rmtree(retired, ignore_errors=True)
            else:
                os.rename(temporary, folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file; its library's failures come out as the OSError that they are."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        save_file(plain, path, {"format": "pt", "sha256": _content(sorted(plain.items()))})
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else 0, str(error)) from error


def mapped(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Nothing is read before it is used, and each has a mapping of its own, from which the
    memory of what was read is given back as soon as that tensor is given up: in one mapping for all, the last tensor in use
    holds the whole file."""
    from safetensors import safe_open

    before = path.stat()
    with safe_open(path, "pt") as file, path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        places = json.loads(raw.read(length))
        found = {
            name: _alone(path, file.get_tensor(name), 8 + length + places[name]["data_offsets"][0])
            for name in file.keys()  # noqa: SIM118 (it is no mapping)
        }
    if not os.path.samestat(before, path.stat()):
        raise OSError(f"{path} was replaced while it was opened")
    return found


def _alone(path: Path, tensor: Tensor, begin: int) -> Tensor:
    """The same tensor, `begin` bytes into the file, in a mapping that ends with it."""
    import torch

    if not tensor.nbytes:
        return tensor
    try:
        bytes_ = torch.from_file(
            str(path), shared=False, size=begin + tensor.nbytes, dtype=torch.uint8
        )
    except RuntimeError:  # a limit on addresses
        return tensor
    return bytes_[begin:].view(tensor.dtype).view(tensor.shape)


def forget(tensor: Tensor) -> None:
    """Gives back what was read of a tensor of `mapped`, as if it had just been opened. What was written to is left alone, and
    so is any other tensor: Linux tells, of each page, whether the file still has it."""
    if (
        not tensor.is_contiguous()
        or tensor.device.type != "cpu"
        or not sys.platform.startswith("linux")
    ):
        return
    import numpy as np

    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    first, count = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE - -(-begin // mmap.PAGESIZE)
    try:
        pages = np.fromfile("/proc/self/pagemap", np.uint64, max(0, count), offset=8 * first)
    except OSError:
        return
    absent, of_file = pages >> 62 == 0, pages >> 61 == 0b101  # present, not swapped, of a file
    if len(pages) == count and bool((absent | of_file).all()):
        place, size = ctypes.c_void_p(first * mmap.PAGESIZE), ctypes.c_size_t(count * mmap.PAGESIZE)
        ctypes.CDLL(None).madvise(place, size, mmap.MADV_DONTNEED)


def altered(path: Path) -> bool:
    """Whether the tensors at `path` are others than were written there; files of others do not say."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        expected = (file.metadata() or {}).get("sha256")
    if expected is None:
        return False
    found = mapped(path)
    return expected != _content((name, found.pop(name)) for name in sorted(found))


def _content(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of names, in their order, and bytes. It travels inside the file, so that file and hash cannot come apart."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
