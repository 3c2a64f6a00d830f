"""Recurrent and convolutional encoder–decoders, in sizes that compare with the Transformer's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from regard import spec
from regard.families.preset_settings import PresetFamily, Size, preset_settings, translation_family
from regard.system.errors import SettingError, did_you_mean

SIZES = {
    "tiny": Size({"d_model": 128, "layers": 1, "dropout": 0.3}),
    "small": Size({"d_model": 256, "layers": 2, "dropout": 0.1}),
    "base": Size({"d_model": 512, "layers": 4, "dropout": 0.1}),
    "big": Size({"d_model": 1024, "layers": 4, "dropout": 0.3}),
}
# A convolution reads few positions only, so one recurrent layer corresponds to this many.
_CONVOLUTIONS_PER_LAYER = 5
Cell = Literal["rnn", "rnn_relu", "gru", "lstm"]
EncoderAndDecoder = tuple[spec.Recurrent | spec.Convolutional, spec.Recurrent | spec.Convolutional]


def _recurrent(
    cell: Cell,
    layers: int,
    dropout: float,
    attention: spec.BahdanauAttention | spec.LuongAttention | None = None,
    bidirectional: bool = False,
) -> EncoderAndDecoder:
    encoder = spec.Recurrent(cell, layers, bidirectional, dropout=dropout)
    decoder = spec.Recurrent(cell, layers, looks=attention, dropout=dropout)
    return encoder, decoder


def _convolutional(
    unit: spec.GatedUnit | spec.BottleneckUnit,
    sees: Literal["attention", "aligned"],
    layers: int,
    dropout: float,
) -> EncoderAndDecoder:
    depth = _CONVOLUTIONS_PER_LAYER * layers
    encoder = spec.Convolutional(depth, unit, dropout=dropout)
    decoder = spec.Convolutional(depth, unit, sees, dropout=dropout)
    return encoder, decoder


# Encoder and decoder by name, from a number of layers n and a dropout p.
FAMILIES: dict[str, Callable[[int, float], EncoderAndDecoder]] = {
    # Without attention (Cho et al. 2014, Sutskever et al. 2014).
    "rnn": lambda n, p: _recurrent("rnn", n, p),
    "rnn_relu": lambda n, p: _recurrent("rnn_relu", n, p),  # Le et al. 2015
    "gru": lambda n, p: _recurrent("gru", n, p),
    "lstm": lambda n, p: _recurrent("lstm", n, p),
    # Bahdanau et al. 2015; Luong et al. 2015, with input feeding (their Section 3.3).
    "bahdanau": lambda n, p: _recurrent("gru", n, p, spec.BahdanauAttention(), bidirectional=True),
    "luong": lambda n, p: _recurrent("lstm", n, p, spec.LuongAttention()),
    "luong_feeding": lambda n, p: _recurrent("lstm", n, p, spec.LuongAttention(feeding=True)),
    # Gehring et al. 2017; Kalchbrenner et al. 2016.
    "convs2s": lambda n, p: _convolutional(spec.GatedUnit(), "attention", n, p),
    "bytenet": lambda n, p: _convolutional(spec.BottleneckUnit(), "aligned", n, p),
}


def language_model(cell: Cell, name: str, vocabulary: int, **changes: Any) -> spec.RecurrentDecoder:
    """A recurrent language model in a named size; `changes`: d_model, layers, dropout."""
    s = preset_settings(cell, SIZES, name, {}, changes)
    tokens = spec.Tokens(vocabulary, None, dropout=s["dropout"])
    stack = spec.Recurrent(cell, s["layers"], dropout=s["dropout"])
    return spec.RecurrentDecoder(s["d_model"], tokens, stack)


def preset(
    family: str, name: str, source_vocabulary: int, target_vocabulary: int, **changes: Any
) -> spec.SequenceToSequence:
    """An encoder–decoder of a family in a named size.

    `changes`: d_model, layers, dropout, share, and the max_length of ConvS2S's learned positions.
    """
    if family not in FAMILIES:
        raise SettingError(f"there is no model {family!r}", did_you_mean(family, FAMILIES))
    s = preset_settings(family, SIZES, name, {"share": "all", "max_length": 512}, changes)
    encoder, decoder = FAMILIES[family](s["layers"], s["dropout"])
    # Recurrent cells, and ByteNet's dilated convolutions, need no positions.
    position = None
    if isinstance(encoder, spec.Convolutional) and isinstance(encoder.unit, spec.GatedUnit):
        position = spec.LearnedPosition(s["max_length"])
    source = spec.Tokens(source_vocabulary, position, dropout=s["dropout"])
    target = spec.Tokens(target_vocabulary, position, dropout=s["dropout"])
    return spec.SequenceToSequence(s["d_model"], source, target, encoder, decoder, share=s["share"])


def _language_model(cell: Cell) -> PresetFamily:
    def make(size: str, vocabulary: int, context: int, **changes: Any) -> spec.RecurrentDecoder:
        return language_model(cell, size, vocabulary, **changes)

    return PresetFamily("decoder", make, SIZES, (), 37_000, 512, "base")


# Their papers print no counts for these sizes.
PRESETS = {
    **{name: translation_family(partial(preset, name), SIZES, ()) for name in FAMILIES},
    "rnn-lm": _language_model("rnn"),
    "rnn_relu-lm": _language_model("rnn_relu"),
    "gru-lm": _language_model("gru"),
    "lstm-lm": _language_model("lstm"),
}
