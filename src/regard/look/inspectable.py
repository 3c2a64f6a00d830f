"""What an analysis needs of a model: the `Inspectable` protocol, and the inputs it may be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.decode.batch_decoding import SpecialTokens
from regard.errors import DataError
from regard.model import Decoder, DualEncoder, Encoder, EncoderDecoder, MemoryNetwork

CoreModel = EncoderDecoder | Encoder | Decoder | DualEncoder | MemoryNetwork


@dataclass(frozen=True, eq=False)
class MediaInput:
    """A prepared image or recording: the input tensor, and a picture of it for people."""

    inputs: Tensor  # [1, …], as the model's front end takes it
    picture: NDArray[np.uint8]  # [height, width] or [height, width, 3]; sound from low to high
    # Where the decoder's prompt depends on the input: Whisper is told the language it hears.
    special_tokens: SpecialTokens | None = None


Input = str | Tensor | MediaInput  # a text, a tensor with a batch of 1, or a prepared file


class Inspectable(Protocol):
    """A core model with its tokenizer, as the analyses see it.

    Every model of `regard.models` is one. A core model alone becomes one as
    `regard.models.Model(core, spec)`; without a tokenizer it can be shown tensors.
    """

    @property
    def model(self) -> CoreModel: ...

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
        """Whether `input_ids` can make token ids of a text."""

    def input_ids(self, text: str) -> list[int]:
        """The token ids of an input text, with its special tokens."""

    def input_offsets(self, text: str) -> Sequence[tuple[int, int]]:
        """The span of characters of each id of `input_ids(text)`; special tokens have (0, 0)."""

    def input_tokens(self, ids: Sequence[int]) -> list[str]:
        """The token string of each id of an input."""

    def labelled_input(self, text: str) -> tuple[Tensor, tuple[str, ...]]:
        """The input tensor of a text, [1, …], and a name for each of its positions.

        Positions are tokens; those of a memory network are the sentences of a story.
        """

    def target_ids(self, text: str) -> list[int]:
        """The token ids of a target text: what a decoder is to predict."""

    def target_offsets(self, text: str) -> Sequence[tuple[int, int]]:
        """The span of characters of each id of `target_ids(text)`; special tokens have (0, 0)."""

    def target_tokens(self, ids: Sequence[int]) -> list[str]:
        """The token string of each id of an output."""

    def target_text(self, ids: Sequence[int]) -> str:
        """The text that the ids of an output decode to."""

    def read_medium(self, data: bytes) -> MediaInput:
        """Prepares the contents of an image or sound file as an input."""


def token_ids(model: Inspectable, text: str) -> list[int]:
    """The token ids of an input text, of which there must be one at least."""
    ids = model.input_ids(text)
    if not ids:
        raise empty_text()
    return ids


def empty_text() -> DataError:
    return DataError("there is nothing to read in this text", "give at least one word")


def special_tokens_for(model: Inspectable, text: Input) -> SpecialTokens | None:
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
