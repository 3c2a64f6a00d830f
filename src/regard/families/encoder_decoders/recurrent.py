"""Recurrent and convolutional encoder–decoders, in sizes that compare with the Transformer's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from regard import spec
from regard.families.preset_settings import PresetFamily, Size, translation_family

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


def _language_model(cell: Cell, settings: Any) -> spec.RecurrentDecoder:
    s = settings
    tokens = spec.Tokens(s["vocabulary"], None, dropout=s["dropout"])
    stack = spec.Recurrent(cell, s["layers"], dropout=s["dropout"])
    return spec.RecurrentDecoder(s["d_model"], tokens, stack)


def preset(
    family: str, name: str, source_vocabulary: int, target_vocabulary: int, **changes: Any
) -> spec.SequenceToSequence:
    """An encoder–decoder of a family in a named size.

    `changes`: d_model, layers, dropout, share, and the max_length of ConvS2S's learned positions.
    """
    settings = {**SIZES[name].settings, **changes}
    return _encoder_decoder(family, source_vocabulary, target_vocabulary, **settings)


def _encoder_decoder(
    family: str,
    source_vocabulary: int,
    target_vocabulary: int,
    *,
    d_model: int,
    layers: int,
    dropout: float,
    share: Literal["all", "target", "inputs", "none"] = "all",
    max_length: int = 512,
) -> spec.SequenceToSequence:
    encoder, decoder = FAMILIES[family](layers, dropout)
    # Recurrent cells, and ByteNet's dilated convolutions, need no positions.
    position = None
    if isinstance(encoder, spec.Convolutional) and isinstance(encoder.unit, spec.GatedUnit):
        position = spec.LearnedPosition(max_length)
    source = spec.Tokens(source_vocabulary, position, dropout=dropout)
    target = spec.Tokens(target_vocabulary, position, dropout=dropout)
    return spec.SequenceToSequence(d_model, source, target, encoder, decoder, share=share)


_CELLS: tuple[Cell, ...] = ("rnn", "rnn_relu", "gru", "lstm")
# Their papers print no counts for these sizes.
PRESETS = {
    **{name: translation_family(partial(_encoder_decoder, name), SIZES, {}) for name in FAMILIES},
    **{
        f"{cell}-lm": PresetFamily(
            "decoder", partial(_language_model, cell), SIZES, {}, 37_000, 512, "base"
        )
        for cell in _CELLS
    },
}
