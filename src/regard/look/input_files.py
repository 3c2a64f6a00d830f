"""Inputs that are given by the path of a file, read as the model's medium."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from regard import disk
from regard.data.audio import SUFFIXES as SOUND_SUFFIXES
from regard.data.labelled_images import IMAGE_SUFFIXES
from regard.errors import DataError, SettingError
from regard.look.inspectable import Input, Inspectable, MediaInput, Prepared

MEDIA_SUFFIXES = (*IMAGE_SUFFIXES, *SOUND_SUFFIXES)


def read_input(model: Inspectable, text: Input) -> Prepared:
    """The input itself, or what is in the file of an image or of sound that it names.

    A model that reads texts as well takes files as a `Path` only: a string may come from a page
    of the studio, and must not open files. Models of series and graphs read their files
    themselves: theirs stays a path, as a string.
    """
    if isinstance(text, Path):
        return _file_of(model, text)
    if not isinstance(text, str | Tensor | MediaInput):
        raise SettingError(f"{type(text).__name__} is no input", "give one text, or a tensor")
    # Nothing at all is refused where texts are.
    if model.medium is None or not isinstance(text, str) or not text.strip():
        return text
    if model.accepts_text:
        return _caption(text)
    return _read_medium(model, Path(text))


def _file_of(model: Inspectable, path: Path) -> Prepared:
    if model.medium is not None:
        return _read_medium(model, path)
    if model.accepts_text:
        raise SettingError(
            f"this model reads texts, and {str(path)!r} is a path", "give what the file holds"
        )
    return str(path)


def _read_medium(model: Inspectable, path: Path) -> MediaInput:
    try:
        return model.read_medium(disk.read_bytes(path))
    except FileNotFoundError:
        problem = f"there is no file {str(path)!r}"
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        problem = f"cannot read {str(path)!r}: {getattr(error, 'strerror', error)}"
    raise DataError(problem, f"give the path of a file: this model reads {model.medium}s")


def _caption(text: str) -> str:
    """A text, unless it looks like a path: the model would answer about the name of the file."""
    # Several words are a sentence, also where the name of a file ends it.
    is_one_word = not any(character.isspace() for character in text)
    if is_one_word and text.lower().endswith(MEDIA_SUFFIXES):
        raise DataError(
            f"{text!r} is no text, but the name of a file",
            f"give a file that exists as Path({text!r}); as a text, write a space behind it",
        )
    return text
