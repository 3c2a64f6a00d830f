"""Texts and files that arguments name: what is a path is no text, and no input is written to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from regard.system import disk
from regard.system.errors import DataError, SettingError

# What the names of files end in.
_TEXT_FILES = (
    ".txt", ".tsv", ".csv", ".json", ".jsonl", ".conll", ".conllu", ".md", ".gz", ".zst",
    ".parquet", ".arrow",
)  # fmt: skip
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".npy")
_RECORDINGS = (".wav", ".flac", ".mp3", ".ogg")
FILE_SUFFIXES = (*_TEXT_FILES, *_IMAGES, *_RECORDINGS)
PATH_PREFIXES = ("/", "./", "../", "~/")


def check_not_blank(texts: Sequence[str]) -> None:
    """Refuses an argument without a word in it; blank lines of a file keep their place instead."""
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise SettingError(f"text {number} of {len(texts)} is empty", "give a text, in quotes")


def check_is_text(text: str, as_text: str, of_file: str) -> None:
    """Refuses a path where a text is read: a model would answer about the name of the file.

    The repairs of the command: `as_text` gives it as a text, `of_file` what the file holds.
    """
    if is_file(text):
        medium = _medium(text)
        if medium is not None:
            raise DataError(f"{text!r} is {medium}, and this model reads text", "give a text")
        raise DataError(f"{text!r} is a file, not a text", of_file)
    if _looks_like_path(text):
        raise DataError(f"there is no file {text!r}", f"check the path; if it is a text, {as_text}")


def piped(text: str, command: str) -> str:
    """How a command reads a text that looks like a path: from standard input."""
    return f"pipe it: echo {quote(text)} | regard {command}"


def with_space(text: str) -> str:
    """The same of a command that reads its text from no file."""
    return f"add a trailing space: {quote(text + ' ')}"


def _medium(name: str) -> str | None:
    """An image or a recording, by the name of a file."""
    if name.lower().endswith(_IMAGES):
        return "an image"
    return "a recording" if name.lower().endswith(_RECORDINGS) else None


def is_file(text: str | Path) -> bool:
    """Whether a text is the name of a file that exists."""
    # A long text cannot be a name, and the system raises an error; so does a zero byte in it.
    with suppress(OSError, ValueError):
        return Path(text).is_file()
    return False


def is_folder(text: str | Path) -> bool:
    """Whether a text is the name of a folder that exists."""
    with suppress(OSError, ValueError):
        return Path(text).is_dir()
    return False


def _looks_like_path(text: str) -> bool:
    # Several words are a sentence, also where a name of a file ends it.
    if any(character.isspace() for character in text):
        return False
    if text.lower().endswith(FILE_SUFFIXES) or text.startswith(PATH_PREFIXES):
        return True
    # 24/7, and/or, <b>bold</b> and dates are texts, unless there is such a folder.
    return "/" in text and is_folder(Path(text).parent)


PAGE = (".html", ".htm")
PICTURE = (".png",)


def check_page(
    flag: str, path: str | None, suffixes: tuple[str, ...], inputs: Iterable[str] = ()
) -> None:
    """Refuses a page or picture of another format, and one that would replace an input."""
    if path is None:
        return
    check_not_input(flag, path, inputs)
    file = Path(path)
    repair = f"choose another {flag}, such as {file.stem}{suffixes[0]}"
    if file.is_dir() or file.suffix.lower() not in suffixes:
        disk.require_absent(file, repair)
        raise SettingError(f"{flag} {path} would not be a {suffixes[0]} file", repair)
    check_folder_exists(flag, file)


def check_new_file(flag: str, path: str | None, inputs: Iterable[str] = ()) -> None:
    """Refuses to write to what exists."""
    if path is None:
        return
    check_not_input(flag, path, inputs)
    disk.require_absent(Path(path), f"remove it, or choose another {flag}")
    check_folder_exists(flag, path)


def check_not_input(flag: str, path: str, inputs: Iterable[str]) -> None:
    """Refuses an output that is one of the inputs, by whatever name."""
    for name in inputs:
        # Missing inputs are reported by who reads them.
        if os.path.exists(path) and os.path.exists(name) and os.path.samefile(path, name):
            raise SettingError(f"{flag} {path} is also an input", f"choose another {flag}")


def check_folder_exists(flag: str, file: str | Path) -> None:
    """Refuses an output in a folder that is not there."""
    folder = Path(file).parent
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}", f"create it, or choose another {flag}")
