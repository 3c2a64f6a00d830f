"""Attention options: the words of recipes and the command line that name an attention.

`softmax`, `window:128` and `performer` are such words; what follows a colon is a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

from regard import spec
from regard.system.options import construct, parse_option


def _global_mask(size: int = 256) -> spec.MaskPattern:
    return spec.Or(spec.WindowMask(size), spec.GlobalMask(1))


def _bigbird_mask(size: int = 64, random_blocks: int = 1) -> spec.MaskPattern:
    neighbours = spec.BlockLocalMask(size, 1)
    first_block = spec.GlobalMask(1, 0, size)
    random = spec.RandomBlockMask(size, random_blocks)
    return spec.Or(spec.Or(neighbours, first_block), random)


# Masks over softmax attention, by their names.
MASK_PATTERNS: dict[str, Callable[..., spec.MaskPattern]] = {
    "softmax": spec.FullMask,
    "window": spec.WindowMask,
    "neighbours": spec.NeighbourMask,  # of the nodes of graphs
    "dilated": spec.DilatedMask,  # a window with gaps
    "strided": spec.StridedMask,  # Child et al. 2019
    "blocks": spec.BlockLocalMask,  # blocks of neighbours
    "global": _global_mask,  # a window and a global first position
    "longformer": _global_mask,  # the same, with projections of its own (Beltagy et al. 2020)
    "bigbird": _bigbird_mask,  # Zaheer et al. 2020
}
# Other ways to mix the values than softmax over all scores.
MIXERS: dict[str, Callable[..., spec.Mixer]] = {
    "topk": lambda top: spec.SoftmaxAttention(top=top),
    "additive": lambda: spec.AdditiveAttention(),  # Bahdanau et al. 2015
    "linear": lambda: spec.LinearAttention(),  # Katharopoulos et al. 2020
    "performer": lambda count=None: spec.LinearAttention(spec.FavorFeatures(count)),
    "linformer": lambda rank=256: spec.Linformer(1, rank),
    "reformer": lambda buckets=64, chunk=64: spec.LshAttention(buckets, chunk),
}


def parse_attention(option: str) -> tuple[spec.Mixer, spec.MaskPattern]:
    """The mixer and the mask pattern that an attention option names.

    - `softmax`: full attention
    - `neighbours`: along the edges of a graph
    - `window:128`: so many positions on each side; `dilated:64:2`, `strided:16`, `blocks:64`
    - `global`: a window, and a global first position, which sees all and is seen by all
    - `longformer`: the same; in encoders it sees by projections of its own
    - `bigbird`: blocks of 64, their neighbours, the first block, and one drawn at random
    - `additive`: scores by a small network instead of products
    - `topk:32`, `linear`, `performer`, `linformer`, `reformer`, each perhaps with numbers
    """
    parsed = parse_option(
        option,
        {**MASK_PATTERNS, **MIXERS},
        subject="attention",
        usage="write it like window:128, dilated:64:2 or performer",
        convert=int,
    )
    if option.partition(":")[0] in MASK_PATTERNS:
        return spec.SoftmaxAttention(), cast(spec.MaskPattern, parsed)
    return cast(spec.Mixer, parsed), spec.FullMask()


def self_attention(
    option: str, softmax: spec.Attention, length: int, *, causal: bool
) -> tuple[spec.Attention, spec.MaskPattern]:
    """The self-attention that an option names, and its mask pattern.

    `softmax` is the plain attention of the same sizes, whose dropout is taken over where attention
    weights are computed (not in linear attention); `length` is
    the longest input, which Linformer's projections depend on.
    """
    mixer, pattern = parse_attention(option)
    dropout = softmax.mixer.dropout
    match mixer:
        case spec.SoftmaxAttention() | spec.LshAttention() | spec.AdditiveAttention():
            mixer = replace(mixer, dropout=dropout)
        case spec.Linformer():
            mixer = replace(mixer, dropout=dropout, length=length)
    # Reformer's hashing needs equal queries and keys.
    projection: Literal["apart", "shared"] = "apart"
    if isinstance(mixer, spec.LshAttention):
        projection = "shared"
    attention = replace(softmax, mixer=mixer, projection=projection)
    if causal:
        # There the first position sees nothing but itself, and needs no projections to do so.
        return attention, _causal(pattern)
    if option.partition(":")[0] == "longformer":
        assert isinstance(pattern, spec.Or), "a window and the first position"
        first = spec.FirstTokens()
        return replace(attention, projection="global", global_tokens=first), pattern.first
    return attention, _with_random_blocks(pattern, length=length)


def _causal(pattern: spec.MaskPattern) -> spec.MaskPattern:
    if pattern == spec.FullMask():
        return spec.CausalMask()
    # What a decoder has seen must stay what it was when the text grows.
    return spec.And(spec.CausalMask(), _with_random_blocks(pattern, of="before"))


def _with_random_blocks(pattern: spec.MaskPattern, **changes: Any) -> spec.MaskPattern:
    """The pattern with these changes to how BigBird's random blocks are drawn."""
    match pattern:
        case spec.RandomBlockMask():
            return replace(pattern, **changes)
        case spec.Or(first, second):
            return spec.Or(
                _with_random_blocks(first, **changes), _with_random_blocks(second, **changes)
            )
        case _:
            return pattern


def parse_compressed_memory(option: str) -> spec.CompressiveMemory:
    """The compressive memory (Rae et al. 2020) that an option names.

    `64:4` is a memory of 64 positions, each compressed by a convolution from 4 that left the
    segment memory; `64:4:mean` and `64:4:max` pool them instead.
    """
    functions: dict[str, Literal["convolution", "mean", "max"]] = {
        "conv": "convolution",
        "mean": "mean",
        "max": "max",
    }

    def memory(length: str, factor: str, function: str = "conv") -> spec.CompressiveMemory:
        return spec.CompressiveMemory(int(length), int(factor), functions[function])

    return construct(
        memory,
        option.split(":"),
        problem=f"a compressed memory cannot be {option!r}",
        usage="write it like 64:4, 64:4:mean, 64:4:max or 64:4:conv",
    )
