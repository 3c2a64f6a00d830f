"""Texts and files that arguments name: what is a path is no text, and no input is written to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
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
    if os.path.isfile(text):
        if text.lower().endswith((*_IMAGES, *_RECORDINGS)):
            of_file = "give a text: this model reads no images and recordings"
        raise DataError(f"{text!r} is a file, not a text", of_file)
    if _looks_like_path(text):
        raise DataError(f"there is no file {text!r}", f"check the path; if it is a text, {as_text}")


def piped(text: str, command: str) -> str:
    """How a command reads a text that looks like a path: from standard input."""
    return f"pipe it: echo {quote(text)} | regard {command}"


def with_space(text: str) -> str:
    """The same of a command that reads its text from no file."""
    return f"add a trailing space: {quote(text + ' ')}"


def _looks_like_path(text: str) -> bool:
    # Several words are a sentence, also where a name of a file ends it.
    if re.search(r"\s", text):
        return False
    if text.lower().endswith(FILE_SUFFIXES) or text.startswith(PATH_PREFIXES):
        return True
    # 24/7, and/or, <b>bold</b> and dates are texts, unless there is such a folder.
    return "/" in text and os.path.isdir(os.path.dirname(text))


PAGE = (".html", ".htm")
PICTURE = (".png",)


def check_page(
    flag: str, path: str | None, suffixes: tuple[str, ...], inputs: Iterable[str] = ()
) -> None:
    """Refuses a page or picture of another format, and one that would replace an input."""
    if path is None:
        return
    file = Path(path)
    repair = f"choose another {flag}, such as {file.stem}{suffixes[0]}"
    check_output(flag, path, inputs)
    if file.is_dir() or file.suffix.lower() not in suffixes:
        disk.require_absent(file, repair)
        raise SettingError(f"{flag} {path} would not be a {suffixes[0]} file", repair)


def check_output(flag: str, path: str, inputs: Iterable[str]) -> None:
    """Refuses an output that is one of the inputs, by whatever name, or in no folder."""
    for name in inputs:
        # Missing inputs are reported by who reads them.
        if os.path.exists(path) and os.path.exists(name) and os.path.samefile(path, name):
            raise SettingError(f"{flag} {path} is also an input", f"choose another {flag}")
    folder = Path(path).parent
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}", f"create it, or choose another {flag}")
