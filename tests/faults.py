"""Faults on the way to the disk: operations are recorded, and made to fail or to be the last.

Python's own functions are wrapped, those that `regard.system.disk` and `regard.system.checkpoint`
call; what libraries write is seen as changed content before the next operation.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch


@dataclass(frozen=True)
class Operation:
    """One operation on a file system: mkdir, write, fsync, rename, unlink or rmdir."""

    kind: str
    path: str
    target: str = ""  # of a rename
    content: bytes = b""  # of a write: the whole file


def process_environment() -> dict[str, str]:
    """The environment of a process that a test starts: what this one can import, on one thread."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


Tree = dict[str, bytes | None]  # path → content; None of a folder


@contextmanager
def intercepted(before: Callable[[Operation], None], root: Path) -> Iterator[None]:
    """Calls `before` ahead of each operation under `root`."""
    functions = {name: getattr(os, name) for name in ("mkdir", "unlink", "rmdir", "fsync")}
    rename = os.rename
    replace = os.replace
    save_file = safetensors.torch.save_file
    open_file = io.open

    def notify(kind: str, path: Any, target: Any = "", dir_fd: int | None = None) -> None:
        place = _absolute(path, dir_fd)
        if place.startswith(str(root)):
            before(Operation(kind, place, target and _absolute(target)))

    def wrapped(kind: str) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            notify(kind, path, dir_fd=options.get("dir_fd"))
            return functions[kind](path, *arguments, **options)

        return call

    def renamed(source: Any, target: Any) -> None:
        notify("rename", source, target)
        rename(source, target)

    def replaced(source: Any, target: Any) -> None:
        notify("rename", source, target)
        replace(source, target)

    def saved(tensors: Any, path: Any, *arguments: Any) -> None:
        notify("open", path)
        save_file(tensors, path, *arguments)

    def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+") and not isinstance(path, int):
            notify("open", path)
        return open_file(path, mode, *arguments, **options)

    patches = [mock.patch.object(os, kind, wrapped(kind)) for kind in functions]
    patches += [
        mock.patch.object(os, "rename", renamed),
        mock.patch.object(os, "replace", replaced),
        mock.patch.object(safetensors.torch, "save_file", saved),
        mock.patch.object(io, "open", opened),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def _absolute(path: Any, dir_fd: int | None = None) -> str:
    if isinstance(path, int):  # an open file
        return os.readlink(f"/proc/self/fd/{path}")
    if dir_fd is not None:
        return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
    return os.path.abspath(path)


# --- failing ---


@contextmanager
def full_disk_at(number: int, root: Path) -> Iterator[list[Operation]]:
    """The operation of this number fails for lack of space; the list has all that were begun."""
    operations: list[Operation] = []

    def fail(operation: Operation) -> None:
        operations.append(operation)
        removes = operation.kind in ("unlink", "rmdir")
        if len(operations) == number + 1 and not removes:
            raise OSError(errno.ENOSPC, "No space left on device")

    with intercepted(fail, root):
        yield operations


@contextmanager
def killed_at(number: int, root: Path, mark: Path | None = None) -> Iterator[None]:
    """SIGKILL ahead of the operation of this number: this process ends there, and makes `mark`."""
    count = 0

    def end(operation: Operation) -> None:
        nonlocal count
        if count == number:
            if mark is not None:
                mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    with intercepted(end, root):
        yield


# --- recording and replaying ---


@contextmanager
def recorded(root: Path) -> Iterator[list[Operation]]:
    """All operations under `root`, with the contents that were written."""
    operations: list[Operation] = []
    contents = {path: content for path, content in tree(root).items() if content is not None}

    def note_writes() -> None:
        for path, content in tree(root).items():
            if content is not None and contents.get(path) != content:
                contents[path] = content
                operations.append(Operation("write", path, content=content))

    def note(operation: Operation) -> None:
        note_writes()
        if operation.kind == "open":
            return
        operations.append(operation)
        if operation.kind == "rename":
            for path in list(contents):
                if path == operation.path or path.startswith(operation.path + "/"):
                    contents[operation.target + path[len(operation.path) :]] = contents.pop(path)

    with intercepted(note, root):
        yield operations
        note_writes()


def tree(root: Path) -> Tree:
    """What is under a folder."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        found[str(path)] = None if path.is_dir() else path.read_bytes()
    return found


def write_tree(content: Mapping[str, bytes | None], old_root: Path, root: Path) -> None:
    """Makes the files of a tree under another root."""
    root.mkdir(parents=True)
    for path in sorted(content):
        target = root / Path(path).relative_to(old_root)
        data = content[path]
        if data is None:
            target.mkdir()
        else:
            target.write_bytes(data)


@dataclass
class _File:
    content: bytes
    durable: bytes | None  # what fsync has put on disk


def crash_states(root: Path, before: Tree, operations: list[Operation]) -> Iterator[Tree]:
    """What may be on disk after a crash at the end of these operations.

    A killed process leaves all of them done. After a loss of power, what no fsync covered may be
    missing: of a file any part of its content, of a folder its last entries. Entries reach the disk
    in their order, as journals of file systems do it.
    """
    yield _state(root, before, operations, len(operations), lambda file: file.content)
    # The last fsync of a folder makes all earlier changes of entries durable.
    synced = [i for i, one in enumerate(operations) if one.kind == "fsync" and _is_folder(one)]
    first = synced[-1] + 1 if synced else 0
    changes = [i for i in range(first, len(operations)) if operations[i].kind in _ENTRY_CHANGES]
    for end in [*changes, len(operations)]:
        yield _state(root, before, operations, end, lambda file: file.durable or b"")
        yield _state(root, before, operations, end, _half)


_ENTRY_CHANGES = ("mkdir", "rename", "unlink", "rmdir")


def _half(file: _File) -> bytes:
    if file.durable is not None:
        return file.durable
    return file.content[: len(file.content) // 2]


def _is_folder(operation: Operation) -> bool:
    # Files of a checkpoint have a suffix, and so do temporary folders.
    return operation.path.endswith(".tmp") or not Path(operation.path).suffix


def _state(
    root: Path,
    before: Tree,
    operations: list[Operation],
    end: int,
    content: Callable[[_File], bytes],
) -> Tree:
    """The tree after operations, of whose changes of entries those from `end` on are lost."""
    files = {path: data if data is None else _File(data, data) for path, data in before.items()}
    for number, operation in enumerate(operations):
        path = operation.path
        match operation.kind:
            case "write":
                old = files.get(path)
                durable = old.durable if isinstance(old, _File) else None
                files[path] = _File(operation.content, durable)
            case "fsync":
                file = files.get(path)
                if isinstance(file, _File):
                    file.durable = file.content
            case _ if number >= end:
                continue
            case "mkdir":
                files[path] = None
            case "unlink" | "rmdir":
                files.pop(path, None)
            case "rename":
                for name in [n for n in files if n == path or n.startswith(path + "/")]:
                    files[operation.target + name[len(path) :]] = files.pop(name)
    # Files whose folder did not reach the disk went with it.
    return {
        path: content(file) if isinstance(file, _File) else None
        for path, file in files.items()
        if all(
            str(parent) in files
            for parent in Path(path).parents
            if parent != root and parent.is_relative_to(root)
        )
    }
