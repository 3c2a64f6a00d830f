"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), with the sizes of Table 3 and two small ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

from regard import spec
from regard.errors import SettingError, did_you_mean
from regard.options import parse_option

# d_model, d_ff, heads, layers, dropout; `tiny` is the Transformer-tiny of the Multi30k literature.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "d_ff": 256, "heads": 4, "layers": 4, "dropout": 0.3},
    "small": {"d_model": 256, "d_ff": 1024, "heads": 4, "layers": 3, "dropout": 0.1},
    "base": {"d_model": 512, "d_ff": 2048, "heads": 8, "layers": 6, "dropout": 0.1},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "layers": 6, "dropout": 0.3},
}


def transformer(
    source_vocabulary: int,
    target_vocabulary: int,
    *,
    d_model: int = 512,
    d_ff: int = 2048,
    heads: int = 8,
    layers: int = 6,
    dropout: float = 0.1,
    share: Literal["all", "target", "none"] = "all",
    **details: Any,
) -> spec.EncoderDecoder:
    """The paper's wiring at any size. `details`: d_k, d_v, decoder_layers, attention_dropout, feedforward_dropout,
    activation, position (at the input), relative (positions inside attention), residual; and how each side looks at itself:
    attention and decoder_attention, words that `looking` knows, of up to max_length places where that matters."""
    unknown = set(details) - _DETAILS.keys()
    if unknown:
        name = sorted(unknown)[0]
        raise SettingError(f"the Transformer has no option {name!r}", did_you_mean(name, _DETAILS))
    choice = {**_DETAILS, **details}
    if d_model % heads and not (choice["d_k"] and choice["d_v"]):
        raise SettingError(
            f"d_model {d_model} does not divide by {heads} heads", "change one, or give d_k and d_v"
        )
    softmax = spec.Attention(
        heads=heads,
        d_k=choice["d_k"] or d_model // heads,
        d_v=choice["d_v"] or d_model // heads,
        mixer=spec.SoftmaxAttention(choice["attention_dropout"]),
    )
    looks = [choice["attention"], choice["decoder_attention"] or choice["attention"]]
    (own, sees), (past, sees_past) = (
        attending(word, softmax, choice["max_length"], decodes)
        for word, decodes in zip(looks, (False, True), strict=True)
    )
    feedforward = spec.FeedForward(d_ff, choice["activation"], choice["feedforward_dropout"])
    final = spec.LayerNorm() if isinstance(choice["residual"], spec.PreNorm) else None
    encoder = spec.Block(own, feedforward, residual=choice["residual"], dropout=dropout)
    decoder = spec.Block(
        past, feedforward, cross=softmax, residual=choice["residual"], dropout=dropout
    )
    return spec.EncoderDecoder(
        d_model=d_model,
        source=spec.Tokens(source_vocabulary, choice["position"], dropout=dropout),
        target=spec.Tokens(target_vocabulary, choice["position"], dropout=dropout),
        encoder=spec.Stack(layers, encoder, sees, choice["relative"], final=final),
        decoder=spec.Stack(
            choice["decoder_layers"] or layers, decoder, sees_past, choice["relative"], final=final
        ),
        share=share,
    )


_DETAILS: dict[str, Any] = {
    "d_k": None,
    "d_v": None,
    "decoder_layers": None,
    "attention_dropout": 0.0,
    "feedforward_dropout": 0.0,
    "activation": "relu",
    "position": spec.Sinusoidal(),
    "relative": None,
    "residual": spec.PostNorm(),
    "attention": "softmax",
    "decoder_attention": None,
    "max_length": 512,
}


def _ahead(size: int = 256) -> spec.MaskPattern:
    return spec.Or(spec.WindowMask(size), spec.GlobalMask(1))


def _blocks(size: int = 64, draws: int = 1) -> spec.MaskPattern:
    around = spec.Or(spec.BlockLocalMask(size, 1), spec.GlobalMask(1, 0, size))
    return spec.Or(around, spec.RandomBlockMask(size, draws, of="before"))


# What each word with its numbers means: the places that are seen, or another way to mix them.
PATTERNS: dict[str, Callable[..., spec.MaskPattern]] = {
    "softmax": spec.FullMask,
    "window": spec.WindowMask,
    "dilated": spec.DilatedMask,
    "strided": spec.StridedMask,
    "blocks": spec.BlockLocalMask,
    "longformer": _ahead,
    "bigbird": _blocks,
}
MIXERS: dict[str, Callable[..., spec.Mixer]] = {
    "topk": lambda top: spec.SoftmaxAttention(top=top),
    "linear": lambda: spec.LinearAttention(),
    "performer": lambda count=None: spec.LinearAttention(spec.FavorFeatures(count)),
    "linformer": lambda rank=256: spec.Linformer(1, rank),
    "reformer": lambda buckets=64, chunk=64: spec.LshAttention(buckets, chunk),
}


def looking(word: str) -> tuple[spec.Mixer, spec.MaskPattern]:
    """`softmax`, `window:128` (so many on each side), `dilated:64:2`, `strided:16`, `blocks:64`, `longformer` (a window, and
    the first place, which all see and which sees all), `bigbird` (blocks of 64, their neighbours, the first, and one drawn),
    `topk:32`, `linear`, `performer`, `linformer`, `reformer`, each perhaps with numbers: `performer:256`."""
    parsed = parse_option(
        word,
        {**PATTERNS, **MIXERS},
        subject="attention",
        usage="write it like window:128, dilated:64:2 or performer",
        convert=int,
    )
    if word.partition(":")[0] in PATTERNS:
        return spec.SoftmaxAttention(), cast(spec.MaskPattern, parsed)
    return cast(spec.Mixer, parsed), spec.FullMask()


def attending(
    word: str, softmax: spec.Attention, length: int, decodes: bool
) -> tuple[spec.Attention, spec.MaskPattern]:
    """The self-attention of one side, and what it may see."""
    mixer, sees = looking(word)
    dropout = softmax.mixer.dropout
    if dropout and isinstance(mixer, spec.LinearAttention):
        raise SettingError(
            f"attention {word!r} never makes its weights, so none can be dropped",
            "set attention_dropout = 0",
        )
    match mixer:
        case spec.SoftmaxAttention() | spec.LshAttention():
            mixer = replace(mixer, dropout=dropout)
        case spec.Linformer():
            mixer = replace(mixer, dropout=dropout, length=length)
        case spec.LinearAttention():
            pass
    projection: Literal["apart", "shared"] = (
        "shared" if isinstance(mixer, spec.LshAttention) else "apart"
    )
    if decodes:
        sees = spec.CausalMask() if sees == spec.FullMask() else spec.And(spec.CausalMask(), sees)
    return replace(softmax, mixer=mixer, projection=projection), sees


def preset(
    name: str, source_vocabulary: int, target_vocabulary: int, **changes: Any
) -> spec.EncoderDecoder:
    """A named size, with any of its settings changed."""
    if name not in PRESETS:
        raise SettingError(f"there is no preset {name!r}", did_you_mean(name, PRESETS))
    return transformer(source_vocabulary, target_vocabulary, **{**PRESETS[name], **changes})
