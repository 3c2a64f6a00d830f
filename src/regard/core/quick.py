"""One token of a few rows on a GPU: the same function as `Block.forward`, in five kernels instead of some twenty.

Small steps cost what starting their kernels costs. Blocks of the usual parts (a norm before or after each sublayer, softmax
attention, a plain or gated feed-forward) are told apart here; all others take the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from regard.core import mix
from regard.core.attention import Attention, CrossProjection, SelfProjection
from regard.core.feedforward import ACTIVATIONS, Gated, Plain
from regard.core.linear import Linear
from regard.core.norm import LayerNorm, Norm, RmsNorm
from regard.core.pattern import Sight
from regard.core.residual import PostNorm, PreNorm, Sequence
from regard.core.state import LayerState, Slots

if TYPE_CHECKING:
    from regard.core.block import Block

ROWS = 64
Told = tuple[str, Tensor, Tensor | None, float, float]  # a norm as kernels are told of it
_NAMES = {function: name for name, function in ACTIVATIONS.items()}


def fits(block: Block, x: Tensor, sight: Sight, state: LayerState) -> bool:
    """Whether `step` knows all the parts of this block, and what it has to look at."""
    past, memory = state.past, state.memory
    return (
        few(x)
        and isinstance(past, Slots)
        and past.k.shape[3] == 1
        and len(past.k) == len(x)
        and (memory is None or len(memory.k) == len(x))
        and sight.relative is None
        and isinstance(block.residual, Sequence)
        and isinstance(block.feedforward, Plain | Gated)
        and block.feedforward.activation in _NAMES
        and all(_usual(part) for part in (block.attention, block.cross) if part is not None)
        and all(part.frozen is None and part.added is None for part in block.modules() if isinstance(part, Linear))
    )


def few(x: Tensor) -> bool:
    """Whether x [rows, 1, D] is one token of few rows, on a GPU, and nothing is learnt from it."""
    return (
        x.is_cuda
        and mix.HAS_TRITON
        and x.ndim == 3
        and x.shape[1] == 1
        and len(x) <= ROWS
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cuda")
    )


def _usual(attention: Attention) -> bool:
    part, mixer, rope = attention.project, attention.mixer, attention.rope
    return (
        isinstance(part, SelfProjection | CrossProjection)
        and part.d_k == part.d_v
        and mix.whole(part.d_k)
        and isinstance(mixer, mix.Softmax)
        and mixer.kernel is mix.best
        and mixer.top is None
        and attention.relative is None
        and attention.everywhere is None
        and (rope is None or (rope.pairs == "halves" and 2 * len(rope.frequencies) == part.d_k))
    )


def step(block: Block, x: Tensor, sight: Sight, memory_sight: Sight | None, state: LayerState) -> Tensor:
    """x [rows, 1, D], one new token each."""
    from regard.core.step_kernel import normed

    sublayers: list[Callable[[Tensor, Told | None, Tensor], Tensor]] = [
        lambda y, norm, rest: _self(block.attention, y, norm, rest, sight, state)
    ]
    if block.cross is not None:
        cross = block.cross
        sublayers.append(lambda y, norm, rest: _cross(cross, y, norm, rest, memory_sight, state))
    sublayers.append(lambda y, norm, rest: _feed(block.feedforward, y, norm, rest))  # type: ignore[arg-type]
    y = x[:, 0]
    for residual, sublayer in zip(block.residual.each, sublayers, strict=True):  # type: ignore[arg-type]
        if isinstance(residual, PreNorm):
            y = sublayer(y, _norm(residual.norm), y)
        else:
            assert isinstance(residual, PostNorm)
            y = normed(sublayer(y, None, y), _norm(residual.norm))
    return y[:, None]


def _self(attention: Attention, x: Tensor, norm: Told | None, rest: Tensor, sight: Sight, state: LayerState) -> Tensor:
    from regard.core.step_kernel import attend, linear

    part, past, mixer = attention.project, state.past, attention.mixer
    assert isinstance(part, SelfProjection)
    assert isinstance(past, Slots)
    assert isinstance(mixer, mix.Softmax)
    made = linear(x, part.qkv.weight, part.qkv.whole_bias(), norm=norm)
    q, k, v = (
        piece.view(len(x), -1, 1, part.d_k) for piece in made.split(part.qkv.parts, dim=-1)
    )  # [rows, H or G, 1, K]
    seen = None if sight.all or sight.bounded else sight.additive
    mixed = attend(
        q, past.k[:, :, :, 0], past.v[:, :, :, 0], seen, mixer.scale, last=past.place, new=(k, v),
        angles=sight.angles if attention.rope is not None else None, settled=True,
    )  # fmt: skip
    return linear(mixed.view(len(x), -1), attention.output.weight, attention.output.whole_bias(), rest=rest)


def _cross(
    attention: Attention, x: Tensor, norm: Told | None, rest: Tensor, sight: Sight | None, state: LayerState
) -> Tensor:
    from regard.core.step_kernel import attend, linear

    part, memory, mixer = attention.project, state.memory, attention.mixer
    assert isinstance(part, CrossProjection)
    assert isinstance(mixer, mix.Softmax)
    assert memory is not None
    assert sight is not None
    q = linear(x, part.q.weight, part.q.whole_bias(), norm=norm).view(len(x), -1, 1, part.d_k)
    mixed = attend(q, memory.k, memory.v, None if sight.all else sight.additive, mixer.scale, settled=True)
    return linear(mixed.view(len(x), -1), attention.output.weight, attention.output.whole_bias(), rest=rest)


def _feed(part: Plain | Gated, x: Tensor, norm: Told | None, rest: Tensor) -> Tensor:
    from regard.core.step_kernel import linear

    inner, outer = part.inner, part.outer
    hidden = linear(
        x, inner.weight, inner.whole_bias(), norm=norm, activation=_NAMES[part.activation],
        gated=isinstance(part, Gated),
    )  # fmt: skip
    return linear(hidden, outer.weight, outer.whole_bias(), rest=rest)


def _norm(norm: Norm) -> Told:
    if isinstance(norm, LayerNorm):
        return "layer", norm.weight, norm.bias, norm.eps, 0.0
    assert isinstance(norm, RmsNorm)
    return "rms", norm.weight, None, norm.eps, norm.offset


def scores(x: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    """x [.., D] times a vocabulary's table: of few rows by the kernel that takes any number of words."""
    if not few(x):
        return functional.linear(x, table, bias)
    from regard.core.step_kernel import linear

    return linear(x[:, 0], table, bias)[:, None]
