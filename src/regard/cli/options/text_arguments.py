"""Texts as arguments of commands: what is blank, or a path, is no text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

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
