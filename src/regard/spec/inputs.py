"""The inputs of a model: the arguments of its call, under the names that transformers has."""

from __future__ import annotations

from typing import Literal, NamedTuple

InputKind = Literal[
    "tokens", "pixels", "samples", "frames", "values", "nodes", "mask", "segments", "labels", "more"
]


class _Argument(NamedTuple):
    kind: InputKind
    dimensions: str = ""  # of what stands by itself
    shaped_as: tuple[str, ...] = ()  # the arguments, of which a model has one, of the same shape


_SEQUENCES = ("input_ids", "input_values", "node_features")
_ARGUMENTS = {
    "input_ids": _Argument("tokens", "[texts, tokens]"),
    "decoder_input_ids": _Argument("tokens", "[texts, tokens]"),
    "story": _Argument("tokens", "[stories, sentences, tokens]"),
    "question": _Argument("tokens", "[stories, tokens]"),
    "pixel_values": _Argument("pixels", "[images, channels, height, width]"),
    "input_values": _Argument("samples", "[recordings, samples]"),
    "input_features": _Argument("frames", "[recordings, mels, frames]"),
    "past_values": _Argument("values", "[series, steps, channels]"),
    "node_features": _Argument("nodes", "[graphs, nodes, features]"),
    # Whisper hears its whole window: the mask is taken, as in transformers, and not read.
    "attention_mask": _Argument("mask", shaped_as=_SEQUENCES),
    "global_attention_mask": _Argument("more", shaped_as=("input_ids",)),
    "decoder_attention_mask": _Argument("mask", shaped_as=("decoder_input_ids",)),
    "story_mask": _Argument("mask", shaped_as=("story",)),
    "question_mask": _Argument("mask", shaped_as=("question",)),
    "past_observed_mask": _Argument("mask", shaped_as=("past_values",)),
    "token_type_ids": _Argument("segments", "[texts, tokens]", ("input_ids",)),
    "labels": _Argument("labels", "[texts, tokens]", ("decoder_input_ids",)),
}


class Input(NamedTuple):
    """An argument of a model's call."""

    name: str
    required: bool = True

    @property
    def kind(self) -> InputKind:
        """What its numbers are."""
        return self._argument.kind

    @property
    def dimensions(self) -> str:
        """The dimensions of ids and of features, in words; "" of others."""
        return self._argument.dimensions

    @property
    def shaped_as(self) -> tuple[str, ...]:
        """The arguments, of which a model has one, that its shape follows."""
        return self._argument.shaped_as

    @property
    def _argument(self) -> _Argument:
        return _ARGUMENTS.get(self.name, _Argument("more"))


def arguments(required: str, optional: str = "") -> tuple[Input, ...]:
    """Inputs by their names."""
    return (
        *(Input(name) for name in required.split()),
        *(Input(name, required=False) for name in optional.split()),
    )
