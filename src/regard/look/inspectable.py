"""What an analysis needs of a model, and the inputs that it may be given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.audio import SUFFIXES as SOUND_SUFFIXES
from regard.data.labelled import IMAGE_SUFFIXES
from regard.data.text.tokenizer import Tokenizer
from regard.decode.batch_decoding import SpecialTokens
from regard.spec import ModelSpec
from regard.system.errors import DataError, SettingError
from regard.wirings.core_model import CoreModel

if TYPE_CHECKING:
    from regard.look.backdrop import Backdrop  # with all that draws


@dataclass(frozen=True, eq=False)
class Reading:
    """One input as a model reads it."""

    inputs: Tensor  # [1, …], as the model's front end takes it
    tokens: tuple[str, ...] | None = None  # names of its positions; None: they have only numbers
    # What is read next to that tensor, by argument: the edges of a graph.
    side_inputs: dict[str, Tensor] = field(default_factory=dict)
    backdrop: Backdrop | None = None  # what its positions stand on
    # That frame what is decoded after it, where they depend on it: Whisper is told the language it
    # hears.
    special_tokens: SpecialTokens | None = None


@dataclass(frozen=True, eq=False)
class MediaInput(Reading):
    """A prepared image or recording, with a picture of it for people."""

    # [height, width] or [height, width, 3]; sound from low to high
    picture: NDArray[np.uint8] = field(kw_only=True)


# A text, a tensor with a batch of 1, what was read before, or a file, which a string may name too.
Input = str | Tensor | Reading | Path


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

    def read_text(self, text: str) -> Reading:
        """A text, or the file of a series or graph whose path it is.

        Positions are tokens; those of a memory network are the sentences of a story.
        """

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        """The backdrop with what the model answers, by the output of its head [1, …]."""

    def read_medium(self, data: bytes) -> MediaInput:
        """Prepares the contents of an image or sound file as an input."""

    def read_file(self, path: Path) -> MediaInput:
        """Prepares such a file, or a folder of the frames of a clip."""


def token_ids(model: Inspectable, text: str) -> list[int]:
    """The token ids of an input text, of which there must be one at least."""
    ids = model.input_tokenizer.input_ids(text)
    if not ids:
        raise empty_input(model)
    return ids


def tokenizer_of(model: Inspectable, stack: str) -> Tokenizer:
    """The tokenizer of what a stack reads."""
    if stack == "decoder":
        return model.output_tokenizer
    return model.input_tokenizer


def empty_input(model: Inspectable) -> DataError:
    """The error of an input without content; series and graphs are given by their path."""
    if model.accepts_text:
        return DataError("the text is empty", "pass at least one word")
    return DataError("the input is empty", "pass the path of a file")


def decoder_start(special_tokens: SpecialTokens | None) -> list[int]:
    """The token ids that a decoder begins with."""
    start = None if special_tokens is None else special_tokens.start
    if start is None:
        return []
    return [start] if isinstance(start, int) else list(start)


MEDIA_SUFFIXES = (*IMAGE_SUFFIXES, *SOUND_SUFFIXES)


def read_input(model: Inspectable, text: Input) -> Reading:
    """An input, or what is in the file of an image or of sound that it names.

    A model that reads texts as well takes files as a `Path` only: a string may come from a page
    of the studio, and must not open files. Models of series and graphs read their files
    themselves: theirs stays a path, as a string.
    """
    if isinstance(text, Path):
        if model.medium is None and model.accepts_text:
            raise SettingError(
                f"this model reads text, but {str(text)!r} is a path",
                "pass the content of the file",
            )
        text = str(text) if model.medium is None else _read_medium(model, text)
    # An end token alone is not a text.
    if isinstance(text, str) and not text.strip():
        raise empty_input(model)
    if isinstance(text, str) and model.medium is not None:
        text = _caption(text) if model.accepts_text else _read_medium(model, Path(text))
    if isinstance(text, Reading):
        reading = text
    elif isinstance(text, Tensor):
        if text.dim() < 2 or text.numel() == 0 or len(text) != 1:
            raise SettingError(
                f"a tensor of shape {tuple(text.shape)} is not a batch of one input",
                "pass a tensor of shape [1, …], as in torch.tensor([ids])",
            )
        reading = Reading(text)
    else:
        reading = model.read_text(text)
        # Linear forecasters have an input without positions.
        if not reading.tokens and reading.backdrop is None:
            raise empty_input(model)
    special_tokens = reading.special_tokens or model.special_tokens
    inputs = reading.inputs.to(model.device)
    return replace(reading, inputs=inputs, special_tokens=special_tokens)


def _read_medium(model: Inspectable, path: Path) -> MediaInput:
    try:
        return model.read_file(path)
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
