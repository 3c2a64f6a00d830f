"""Writing that a crash cannot tear: what is on disk is the old state or the new one, never something between."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import DiskError

if TYPE_CHECKING:
    from torch import Tensor


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
            f"writing {what} failed: {error.strerror}", "choose another folder, or see to its permissions"
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
        save_file(plain, path, {"format": "pt", "sha256": _content(plain)})
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else 0, str(error)) from error


def altered(path: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Whether these tensors, read from `path`, are others than were written there; files of others do not say."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        expected = (file.metadata() or {}).get("sha256")
    return expected is not None and expected != _content(tensors)


def _content(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names and bytes. It travels inside the file, so that file and hash cannot come apart."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
