"""Reading an input: a text as it is, a tensor that is checked, or the content of a file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from regard.data.audio import SUFFIXES as SOUND_SUFFIXES
from regard.data.labelled_images import IMAGE_SUFFIXES
from regard.look.inspectable import Input, Inspectable, MediaInput, Prepared
from regard.system import disk
from regard.system.errors import DataError, SettingError

MEDIA_SUFFIXES = (*IMAGE_SUFFIXES, *SOUND_SUFFIXES)


def read_input(model: Inspectable, text: Input) -> Prepared:
    """The input itself, or what is in the file of an image or of sound that it names.

    A model that reads texts as well takes files as a `Path` only: a string may come from a page
    of the studio, and must not open files. Models of series and graphs read their files
    themselves: theirs stays a path, as a string.
    """
    if isinstance(text, Path):
        return _file_of(model, text)
    if isinstance(text, Tensor):
        return _checked_tensor(model, text)
    # An empty text is refused later, together with the other texts.
    if isinstance(text, MediaInput) or model.medium is None or not text.strip():
        return text
    if model.accepts_text:
        return _caption(text)
    return _read_medium(model, Path(text))


def _checked_tensor(model: Inspectable, inputs: Tensor) -> Tensor:
    """The inputs of one example as a tensor, if they have the form that the model reads."""
    if inputs.dim() < 2 or inputs.numel() == 0 or len(inputs) != 1:
        raise SettingError(
            f"a tensor of shape {tuple(inputs.shape)} is not a batch of one input",
            "pass a tensor of shape [1, …], as in torch.tensor([ids])",
        )
    names = {one.name for one in model.model.inputs}
    # Two towers read token ids or an image.
    reads_ids = "input_ids" in names and "pixel_values" not in names
    if reads_ids and (inputs.dim() != 2 or inputs.is_floating_point()):
        raise SettingError(
            f"a {inputs.dtype} tensor of shape {tuple(inputs.shape)} cannot hold token ids",
            "pass an integer tensor of shape [1, tokens]",
        )
    return inputs


def _file_of(model: Inspectable, path: Path) -> Prepared:
    if model.medium is not None:
        return _read_medium(model, path)
    if model.accepts_text:
        raise SettingError(
            f"this model reads text, but {str(path)!r} is a path", "pass the content of the file"
        )
    return str(path)


def _read_medium(model: Inspectable, path: Path) -> MediaInput:
    try:
        return model.read_medium(disk.read_bytes(path))
    except FileNotFoundError:
        problem = f"there is no file {str(path)!r}"
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        problem = f"cannot read {str(path)!r}: {getattr(error, 'strerror', error)}"
    raise DataError(problem, f"pass the path of a readable {model.medium} file")


def _caption(text: str) -> str:
    """A text, unless it looks like a path: the model would answer about the name of the file."""
    # Several words are a sentence, also where the name of a file ends it.
    is_one_word = not any(character.isspace() for character in text)
    if is_one_word and text.lower().endswith(MEDIA_SUFFIXES):
        raise DataError(
            f"{text!r} looks like a file name, not a text",
            f"pass Path({text!r}) to open the file, or append a space to use it as a text",
        )
    return text
