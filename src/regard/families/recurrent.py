"""What came before: recurrent and convolved encoder–decoders, in sizes that compare with the Transformer's presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from regard import spec
from regard.errors import SettingError, did_you_mean

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "layers": 1, "dropout": 0.3},
    "small": {"d_model": 256, "layers": 2, "dropout": 0.1},
    "base": {"d_model": 512, "layers": 4, "dropout": 0.1},
    "big": {"d_model": 1024, "layers": 4, "dropout": 0.3},
}
_DEPTH = 5  # convolutions see a few places each, so there are this many for one recurrent layer
Cell = Literal["rnn", "gru", "lstm"]
Sides = tuple[spec.Recurrent | spec.Convolutional, spec.Recurrent | spec.Convolutional]


def _recurrent(
    cell: Cell,
    layers: int,
    dropout: float,
    looks: spec.BahdanauAttention | spec.LuongAttention | None = None,
    both: bool = False,
) -> Sides:
    encoder = spec.Recurrent(cell, layers, both, dropout=dropout)
    return encoder, spec.Recurrent(cell, layers, looks=looks, dropout=dropout)


def _convolved(
    unit: spec.GatedUnit | spec.BottleneckUnit,
    sees: Literal["attention", "aligned"],
    n: int,
    p: float,
) -> Sides:
    layers = _DEPTH * n
    return spec.Convolutional(layers, unit, dropout=p), spec.Convolutional(
        layers, unit, sees, dropout=p
    )


# By name: the two sides, of so many layers and so much dropout.
FAMILIES: dict[str, Callable[[int, float], Sides]] = {
    # Without attention (Cho et al. 2014, Sutskever et al. 2014).
    "rnn": lambda n, p: _recurrent("rnn", n, p),
    "gru": lambda n, p: _recurrent("gru", n, p),
    "lstm": lambda n, p: _recurrent("lstm", n, p),
    "bahdanau": lambda n, p: _recurrent("gru", n, p, spec.BahdanauAttention(), both=True),
    "luong": lambda n, p: _recurrent("lstm", n, p, spec.LuongAttention()),
    "luong_feeding": lambda n, p: _recurrent("lstm", n, p, spec.LuongAttention(feeding=True)),
    "convs2s": lambda n, p: _convolved(spec.GatedUnit(), "attention", n, p),
    "bytenet": lambda n, p: _convolved(spec.BottleneckUnit(), "aligned", n, p),
}


def language(cell: Cell, name: str, vocabulary: int, **changes: Any) -> spec.RecurrentDecoder:
    """A language model of `rnn`, `gru` or `lstm` layers; `changes`: d_model, layers, dropout."""
    s = _chosen(cell, name, changes)
    tokens = spec.Tokens(vocabulary, None, dropout=s["dropout"])
    return spec.RecurrentDecoder(
        s["d_model"], tokens, spec.Recurrent(cell, s["layers"], dropout=s["dropout"])
    )


def preset(
    family: str, name: str, source_vocabulary: int, target_vocabulary: int, **changes: Any
) -> spec.SequenceToSequence:
    """A family in a named size; `changes`: d_model, layers, dropout, share, max_length (of ConvS2S's learned positions)."""
    if family not in FAMILIES:
        raise SettingError(f"there is no model {family!r}", did_you_mean(family, FAMILIES))
    s = _chosen(family, name, changes, share="all", max_length=512)
    encoder, decoder = FAMILIES[family](s["layers"], s["dropout"])
    # Cells and ByteNet's convolutions find their places by themselves.
    gated = isinstance(encoder, spec.Convolutional) and isinstance(encoder.unit, spec.GatedUnit)
    position = spec.LearnedPosition(s["max_length"]) if gated else None
    source, target = (
        spec.Tokens(count, position, dropout=s["dropout"])
        for count in (source_vocabulary, target_vocabulary)
    )
    return spec.SequenceToSequence(s["d_model"], source, target, encoder, decoder, share=s["share"])


def _chosen(family: str, name: str, changes: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """What the preset says, and what is asked for over it."""
    if name not in PRESETS:
        raise SettingError(f"{family} has no preset {name!r}", did_you_mean(name, PRESETS))
    known = {**PRESETS[name], **defaults}
    for key in changes:
        if key not in known:
            raise SettingError(f"{family} has no option {key!r}", did_you_mean(key, known))
    return {**known, **changes}
