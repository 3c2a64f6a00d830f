"""The words for each part of a spec on the page.

A kind that has no words here is named with its options, as `Linformer(length=64)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from regard import spec

_ACTIVATIONS = {
    "relu": "ReLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "quick_gelu": "GELU (quick)",
    "silu": "SiLU",
}


def activation(kind: str) -> str:
    return _ACTIVATIONS.get(kind, kind)


def named(part: Any) -> str:
    """`WindowMask(reach=4)`: the kind, and its options that are not the defaults."""
    if not dataclasses.is_dataclass(part):
        return str(part)
    options = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value != field.default:
            options.append(f"{field.name}={named(value)}")
    name = type(part).__name__
    if not options:
        return name
    return f"{name}({', '.join(options)})"


def norm(part: spec.Norm) -> str:
    match part:
        case spec.LayerNorm(eps, bias):
            if not bias:  # PaLM
                return f"LayerNorm without bias, ε {eps:g}"
            return f"LayerNorm, ε {eps:g}"
        case spec.RMSNorm(eps, offset):
            text = f"RMSNorm, ε {eps:g}"
            if offset:  # Gemma stores weights around 0 and adds 1
                text += f", weights from {offset:g} on"
            return text
        case spec.BatchNorm(eps, momentum):
            return f"BatchNorm of all tokens, ε {eps:g}, momentum {momentum:g}"
        case _:
            return named(part)


# ------------------------------------------------------------------ attention


def attention(part: spec.Attention) -> str:
    heads = _count(part.heads, "head")
    if part.key_heads != part.heads:  # grouped-query or multi-query attention
        heads += f" on {_count(part.key_heads, 'key head')}"
    widths = f"d_k {part.d_k}"
    if part.d_v != part.d_k:
        widths += f", d_v {part.d_v}"
    biases = {"qkvo": "biases", "": "no biases"}.get(part.bias, f"biases on {', '.join(part.bias)}")
    text = f"{heads}, {widths}, {biases}"
    if not isinstance(part.mixer, spec.SoftmaxAttention):
        text += f", {named(part.mixer)}"
    if part.projection.startswith("tied"):
        letters = ", ".join(part.projection.removeprefix("tied_").upper())
        text += f", one matrix for {letters}"
    return text


def scores(part: spec.Attention, position: spec.StackPosition | None = None) -> str:
    """How attention weights come from queries and keys."""
    if isinstance(part.mixer, spec.AdditiveAttention):
        return "softmax(w · tanh(q + k))"
    if not isinstance(part.mixer, spec.SoftmaxAttention):
        return named(part.mixer)
    product = "q · k"
    terms = 1
    if isinstance(position, spec.Disentangled):
        product = "(q · k + distances)"
        # DeBERTa, equation 4: the scale is √(3d) for content-to-content, c2p and p2c.
        terms = 3 if position.terms == "both" else 2
    text = f"{product} / √{terms * part.d_k}"
    if part.scale is not None:  # T5 has none: its scale is 1
        text = f"{product} × {part.scale:g}"
    if isinstance(position, spec.T5Bias | spec.Alibi):
        text += " + bias"
    return f"softmax({text})"


def pattern(part: spec.MaskPattern) -> str:
    match part:
        case spec.FullMask():
            return "all to all"
        case spec.NeighbourMask():
            return "along edges"
        case spec.CausalMask(None):
            return "causal"
        case spec.CausalMask(window):  # Mistral
            return f"causal, a window of {window:,}"
        case _:
            return named(part)


def recurrent_attention(part: spec.BahdanauAttention | spec.LuongAttention) -> str:
    """Attention of a recurrent decoder over the encoder's states."""
    when = "before each step"
    if isinstance(part, spec.LuongAttention):
        when = "after each step"
        if part.feeding:  # input feeding (Luong et al. 2015, section 3.3)
            when += ", fed into the next"
    return f"{named(part.score)} over the memory {when}; tanh(W [context; state])"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# ------------------------------------------------------------------ positions


def position(part: Any) -> str:
    """Positions added at the input, or used inside the attention."""
    match part:
        case None:
            return "none"
        case spec.Sinusoidal(order, base):
            if base != 10_000:  # that of the paper, section 3.5
                return f"sines and cosines ({order}, base {base:,.0f})"
            return f"sines and cosines ({order})"
        case spec.LearnedPosition(length):
            return f"learned, {length:,} positions"  # BERT, GPT
        case spec.FixedPosition(length):
            return f"fixed, {length:,} positions, not trained"  # Whisper's encoder
        case spec.ConcatenatedPosition(width):
            return f"{width} sines and cosines, next to the embedding, both mapped to D"
        case spec.AxialPosition(shape, widths):
            axes = zip(shape, widths, strict=True)
            tables = " and ".join(f"{count:,} × {width:,}" for count, width in axes)
            return f"learned for each axis, {tables}, {part.length:,} positions"
        case spec.ConvPosition(kernel, groups):
            return f"a convolution over {kernel} positions, {groups} groups"
        case _:
            return _stack_position(part)


def _stack_position(part: Any) -> str:
    match part:
        case spec.Rope():
            return _rope(part)
        case spec.T5Bias(count, distance):
            return f"a bias for each of {count} distance buckets up to {distance}"
        case spec.Alibi():
            return "ALiBi: a linear penalty on distance"
        case spec.Disentangled(distance, buckets, terms):
            kinds = "c2p + p2c" if terms == "both" else terms
            return f"embeddings of {2 * (buckets or distance)} relative positions, {kinds}"
        case spec.RelativeKeys(distance):
            return (
                f"relative (Shaw et al.): a key vector per layer for each distance up to {distance}"
            )
        case spec.RelativeSinusoids():
            return (
                "relative (Transformer-XL): sinusoids of distances, projected to keys in each layer"
            )
        case spec.ShortestPathBias(distance):
            return f"a bias for each shortest path up to {distance}"
        case spec.RepeatedBlockBias(_, times):
            return f"the first block counts {times} times more, for BigBird's random ones"
        case _:
            return named(part)


def _rope(part: spec.Rope) -> str:
    text = f"rotary (RoPE) on q and k, base {part.base:,.0f}"
    if part.share != 1:  # GPT-NeoX rotates only a quarter of each head
        text += f", {part.share:.0%} of each head"
    return f"{text}, pairs in {part.pairs}{_rope_scaling(part.scaling)}"


def _rope_scaling(part: spec.RopeScaling | None) -> str:
    match part:
        case None:
            return ""
        case spec.LinearScaling(factor):
            return f", linear scaling × {factor:g}"
        case spec.BandedScaling(factor, _, _, length):
            return f", low frequencies scaled × {factor:g} beyond {length:,}"
        case _:
            return f", {named(part)}"


# ------------------------------------------------------------------ feed-forward and front ends


def feedforward(part: spec.PositionWise, d_model: int) -> str:
    match part:
        case spec.FeedForward(d_ff, kind, _, bias):
            # Biases are the rule here (section 3.3), and the exception in gated ones.
            text = f"{d_model:,} → {d_ff:,} → {d_model:,}, {activation(kind)}"
            return text if bias else f"{text}, no biases"
        case spec.GatedFeedForward(d_ff, kind, _, bias):
            text = f"{d_model:,} → 2 × {d_ff:,}, {activation(kind)}-gated → {d_model:,}"
            return f"{text}, biases" if bias else text
        case spec.ConvFeedForward(d_ff, kernels, kind, _, bias):
            text = f"convolutions over {kernels[0]} and {kernels[1]} positions, "
            text += f"{d_model:,} → {d_ff:,} → {d_model:,}, {activation(kind)}"
            return text if bias else f"{text}, no biases"
        case _:
            return named(part)


def patches(part: spec.Patches) -> str:
    tokens = {
        1: ", behind a class token",
        2: ", behind a class and a distillation token",  # DeiT
    }.get(part.extras, "")
    positions = {
        "learned": "learned positions",
        "sinusoidal": "sines and cosines of row and column",
        "fixed": "fixed sines and cosines of column and row",  # MAE
        "none": "no positions",  # Swin's windows have them
    }[part.position]
    text = f"squares of {part.patch} × {part.patch}, each a vector{tokens}; {positions}"
    if part.interpolated:
        text += ", interpolated for other sizes"
    if part.masked_share:
        text += f"; {part.masked_share:.0%} of them hidden in pre-training"
    if part.masked_share and part.mask_token:
        text += ", a mask token in their place"
    if part.mask_unit > 1:
        text += f", in squares of {part.mask_unit} × {part.mask_unit}"
    if part.norm is not None:
        text += f"; {norm(part.norm)}"
    return text


def pixel_shuffle(part: spec.PixelShuffleHead, channels: int, width: int) -> str:
    """SimMIM's decoder."""
    pixels = channels * part.stride**2
    return f"{width:,} → {pixels:,} pixels, a square of {part.stride} × {part.stride}"


def waveform(part: spec.Waveform, d_model: int) -> str:
    """The convolutional feature extractor of wav2vec 2.0."""
    # The receptive field of one output position, and the distance between two, in samples.
    receptive_field = 1
    stride = 1
    for convolution in part.convolutions:
        receptive_field += (convolution.kernel - 1) * stride
        stride *= convolution.stride
    channels = part.convolutions[-1].channels
    text = f"{len(part.convolutions)} to {channels} channels: "
    text += f"{receptive_field} samples a position, every {stride}; "
    if part.features is not None:
        text += f"{norm(part.features)}; "
    text += f"{channels} → {d_model}; + {position(part.position)}"
    if part.norm is not None:
        text += f"; {norm(part.norm)}"
    return text


def node_features(part: spec.NodeFeatures) -> str:
    text = f"a linear map of {part.features:,} features"
    if part.degrees:
        text += f" + degrees up to {part.degrees - 1}"
    if part.laplacian:
        text += f" + {part.laplacian} eigenvectors of the Laplacian"
    return text


def series_patches(part: spec.SeriesPatches) -> str:
    scales = " and ".join(f"{one.length} steps, every {one.stride}" for one in part.scales)
    text = f"each channel by itself, {scales}, each a vector; {part.position} positions"
    if part.class_token:
        text += "; a class token"
    return f"{text}; scaled by its {part.scaler}" if part.scaler else text


def lagged_values(part: spec.LaggedValues) -> str:
    lags = ", ".join(map(str, part.lags))
    text = f"all channels {lags} steps before"
    if part.categories:
        widths = " and ".join(f"{one.count:,} × {one.width}" for one in part.categories)
        text += f"; categories {widths}"
    if part.static_features:
        text += f"; {part.static_features} static features"
    if part.covariates:
        text += f"; {part.covariates} time features"
    return f"{text}; scaled by {part.scaler}" if part.scaler else text


# ------------------------------------------------------------------ heads


def pool(part: spec.Pool) -> str:
    return ", then ".join(_pool_steps(part))


def _pool_steps(part: spec.Pool) -> Iterator[str]:
    if isinstance(part.which, spec.EndToken):  # CLIP's text tower
        yield "the end token's position"
    elif isinstance(part.which, spec.AttentionPool):  # SigLIP's image tower
        yield f"a learned query, {part.which.heads} heads, then FFN {part.which.d_ff:,}"
    elif part.which == "mean":  # sentence embeddings
        yield "mean of all positions"
    elif part.which == "first_and_mean":  # DINOv2's classifier
        yield "the first position beside the mean of the others"
    else:  # BERT's first position, a GPT's last
        yield f"the {part.which} position"
    if part.norm is not None:
        yield norm(part.norm)
    if part.activation:
        yield f"dense, {activation(part.activation)}"
    if part.width:  # CLIP maps both towers to one width
        yield f"mapped to {part.width:,}"


def classifier(part: spec.ClassifierHead | spec.DistilledHead) -> str:
    classes = "1 class" if part.count == 1 else f"{part.count:,} classes"
    if isinstance(part, spec.DistilledHead):  # DeiT: the class token's head and the teacher's
        return f"mean of the predictions at the first {part.voters} positions: {classes}"
    text = f"{part.task}: "
    if part.hidden:  # RoBERTa and ELECTRA have a layer before the classes
        text += f"dense, {activation(part.hidden)}, then "
    return text + classes
