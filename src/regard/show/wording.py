"""What each part of a spec is called on the page. A kind that has no words of its own is named with its options."""

from __future__ import annotations

import dataclasses
from typing import Any

from regard import spec

_ACTIVATIONS = {
    "relu": "ReLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "quick_gelu": "GELU (quick)",
    "silu": "SiLU",
}


def norm(part: spec.Norm) -> str:
    match part:
        case spec.LayerNorm(eps, bias):
            return f"LayerNorm{'' if bias else ' without bias'}, ε {eps:g}"
        case spec.RMSNorm(eps, offset):
            return f"RMSNorm, ε {eps:g}" + (f", weights from {offset:g} on" if offset else "")
        case _:
            return named(part)


def attention(part: spec.Attention) -> str:
    heads = f"{part.heads} head" + "s" * (part.heads != 1)
    groups = (
        f" on {part.key_heads} key head" + "s" * (part.key_heads != 1)
        if part.key_heads != part.heads
        else ""
    )
    widths = f"d_k {part.d_k}" + (f", d_v {part.d_v}" if part.d_v != part.d_k else "")
    bias = {"qkvo": "biases", "": "no biases"}.get(part.bias, f"biases on {', '.join(part.bias)}")
    said = [heads + groups, widths, bias]
    said += [] if isinstance(part.mixer, spec.SoftmaxAttention) else [named(part.mixer)]
    return ", ".join(said)


def scores(part: spec.Attention, place: spec.StackPosition | None = None) -> str:
    """How the weights come about."""
    if not isinstance(part.mixer, spec.SoftmaxAttention):
        return named(part.mixer)
    terms = (1 + (2 if place.terms == "both" else 1)) if isinstance(place, spec.Disentangled) else 1
    product = "(q · k + distances)" if terms > 1 else "q · k"
    scale = f" × {part.scale:g}" if part.scale is not None else f" / √{terms * part.d_k}"
    return f"softmax({product}{scale}{' + bias' if isinstance(place, (spec.T5Bias, spec.Alibi)) else ''})"


def pattern(part: spec.MaskPattern) -> str:
    match part:
        case spec.FullMask():
            return "all to all"
        case spec.CausalMask(window):
            return "causal" + (f", a window of {window:,}" if window else "")
        case _:
            return named(part)


def position(part: Any) -> str:
    """Added at the input, or inside the attention."""
    match part:
        case None:
            return "none"
        case spec.Sinusoidal(order, base):
            return f"sines and cosines ({order}" + (
                f", base {base:,.0f})" if base != 10_000 else ")"
            )
        case spec.LearnedPosition(length):
            return f"learned, {length:,} positions"
        case spec.FixedPosition(length):
            return f"fixed, {length:,} positions, not trained"
        case spec.AxialPosition(shape, widths):
            axes = " and ".join(
                f"{count:,} × {width:,}" for count, width in zip(shape, widths, strict=True)
            )
            return f"learned for each axis, {axes}, {part.length:,} positions"
        case spec.Rope(base, share, pairs, scaling):
            most = f", {share:.0%} of each head" if share != 1 else ""
            return f"rotary: q and k turned by angles, base {base:,.0f}{most}, pairs in {pairs}{_scaling(scaling)}"
        case spec.T5Bias(count, distance):
            return f"a bias for each of {count} distances up to {distance}"
        case spec.Alibi():
            return "a penalty that grows with distance (ALiBi)"
        case spec.Disentangled(distance, buckets, terms):
            return f"vectors of {2 * (buckets or distance)} distances, {'c2p + p2c' if terms == 'both' else terms}"
        case spec.ConvPosition(kernel, groups):
            return f"a convolution over {kernel} positions, {groups} groups"
        case _:
            return named(part)


def _scaling(part: spec.RopeScaling | None) -> str:
    match part:
        case None:
            return ""
        case spec.LinearScaling(factor):
            return f", stretched × {factor:g}"
        case spec.BandedScaling(factor, _, _, length):
            return f", long waves stretched × {factor:g} beyond {length:,}"
        case _:
            return f", {named(part)}"


def feedforward(part: spec.PositionWise, d_model: int) -> str:
    match part:
        case spec.FeedForward(d_ff, kind, _, bias):
            return f"{d_model:,} → {d_ff:,} → {d_model:,}, {activation(kind)}{'' if bias else ', no biases'}"
        case spec.GatedFeedForward(d_ff, kind, _, bias):
            return f"{d_model:,} → 2 × {d_ff:,}, {activation(kind)}-gated → {d_model:,}{', biases' if bias else ''}"
        case _:
            return named(part)


def activation(kind: str) -> str:
    return _ACTIVATIONS.get(kind, kind)


def named(part: Any) -> str:
    """`Window(size=4)`: the kind, and the options that are not its usual ones."""
    if not dataclasses.is_dataclass(part):
        return str(part)
    options = [(f.name, getattr(part, f.name), f.default) for f in dataclasses.fields(part)]
    said = ", ".join(f"{name}={named(value)}" for name, value, usual in options if value != usual)
    return f"{type(part).__name__}({said})" if said else type(part).__name__
