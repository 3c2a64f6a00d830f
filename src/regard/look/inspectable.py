"""What an analysis needs of a model, and the inputs that it may be given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.audio import SUFFIXES as SOUND_SUFFIXES
from regard.data.labelled_media import IMAGE_SUFFIXES
from regard.data.text.tokenizer import Tokenizer
from regard.decode.batch_decoding import SpecialTokens
from regard.spec import ModelSpec
from regard.system import disk
from regard.system.errors import DataError, SettingError
from regard.wirings.core_model import CoreModel

if TYPE_CHECKING:
    from regard.look.backdrop import Backdrop  # with all that draws


@dataclass(frozen=True, eq=False)
class MediaInput:
    """A prepared image or recording: the input tensor, and a picture of it for people."""

    inputs: Tensor  # [1, …], as the model's front end takes it
    picture: NDArray[np.uint8]  # [height, width] or [height, width, 3]; sound from low to high
    # Where the decoder's prompt depends on the input: Whisper is told the language it hears.
    special_tokens: SpecialTokens | None = None
    backdrop: Backdrop | None = None  # what its positions stand on


Prepared = str | Tensor | MediaInput  # a text, a tensor with a batch of 1, or a prepared file
Input = Prepared | Path  # or a file, which a path in a string names as well


class Inspectable(Protocol):
    """A core model with its tokenizer, as the analyses see it.

    Every model of `regard.models` is one. A core model alone becomes one as
    `regard.models.Model(core, spec)`; without a tokenizer it can be shown tensors.
    """

    @property
    def model(self) -> CoreModel: ...

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def special_tokens(self) -> SpecialTokens | None:
        """The special tokens that frame decoding; None if the model decodes nothing."""

    @property
    def medium(self) -> Literal["image", "sound"] | None:
        """The kind of file that `read_medium` opens."""

    @property
    def accepts_text(self) -> bool:
        """Whether there is an `input_tokenizer`."""

    @property
    def input_tokenizer(self) -> Tokenizer:
        """The tokenizer of inputs, with the special tokens that the model reads."""

    @property
    def output_tokenizer(self) -> Tokenizer:
        """The tokenizer of outputs: of the targets of an encoder–decoder, framed as its labels."""

    def label_name(self, index: int) -> str:
        """The name of one logit of a classification head: a class, or a letter."""

    def labelled_input(self, text: str) -> tuple[Tensor, tuple[str, ...]]:
        """The input tensor of a text, [1, …], and a name for each of its positions.

        Positions are tokens; those of a memory network are the sentences of a story.
        """

    def side_inputs(self, text: str) -> dict[str, Tensor]:
        """What the model reads next to that tensor, by argument: the edges of a graph."""

    def backdrop(self, text: str) -> Backdrop | None:
        """What the positions of an input stand on that is given by its path: series, graphs."""

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        """The backdrop with what the model answers, by the output of its head [1, …]."""

    def read_medium(self, data: bytes) -> MediaInput:
        """Prepares the contents of an image or sound file as an input."""


def token_ids(model: Inspectable, text: str) -> list[int]:
    """The token ids of an input text, of which there must be one at least."""
    ids = model.input_tokenizer.input_ids(text)
    if not ids:
        raise empty_input(model)
    return ids


def empty_input(model: Inspectable) -> DataError:
    """The error of an input without content; series and graphs are given by their path."""
    if model.accepts_text:
        return DataError("the text is empty", "pass at least one word")
    return DataError("the input is empty", "pass the path of a file")


def special_tokens_for(model: Inspectable, text: Prepared) -> SpecialTokens | None:
    """The special tokens that frame what is decoded after this input."""
    if isinstance(text, MediaInput) and text.special_tokens is not None:
        return text.special_tokens
    return model.special_tokens


def decoder_start(special_tokens: SpecialTokens | None) -> list[int]:
    """The token ids that a decoder begins with."""
    if special_tokens is None or special_tokens.start is None:
        return []
    if isinstance(special_tokens.start, int):
        return [special_tokens.start]
    return list(special_tokens.start)


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
