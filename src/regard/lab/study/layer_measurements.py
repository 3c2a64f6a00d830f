"""Layers of Table 1 (recurrent, convolutional, full and restricted self-attention), measured.

Each is the part of this package: its floating-point operations, the operations that wait for each
other, and the path of the gradient between the first and the last position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import spec
from regard.core.context import Context, LayerContext
from regard.core.convolution import DilatedConvolution
from regard.lab.measure.instruments import count_flops, fastest
from regard.lab.study.training_run import build_seeded

KERNEL = 3  # k of convolutions
WINDOW = 8  # r of restricted self-attention: so many positions on each side
NAMES = ("self-attention", "recurrent", "convolutional", "dilated", "restricted")
Layer = Callable[[Tensor], Tensor]  # [1, n, d] → [1, n, d]


def layer(
    name: str,
    width: int,
    *,
    seed: int = 0,
    dilation: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Layer:
    """One layer of this kind: without positions, norms and residual connections."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "recurrent":
            cell = nn.RNN(width, width, batch_first=True)
            return lambda x: cell(x)[0]
        if name in ("convolutional", "dilated"):
            convolution = DilatedConvolution(width, width, KERNEL, dilation).to(dtype)
            # Causal, as in ByteNet's decoder: with these dilations it reaches every distance once.
            return lambda x: convolution(x, convolution.start(1, x))
    pattern = spec.WindowMask(WINDOW) if name == "restricted" else spec.FullMask()
    block = spec.Block(spec.Attention(1, width, width), spec.FeedForward(1), dropout=0.0)
    description = spec.Encoder(width, spec.Tokens(4, None), spec.Stack.of(1, block, pattern))
    stack: Any = build_seeded(description, seed).stack.to(dtype)

    def attend(x: Tensor) -> Tensor:
        inputs = stack.layer_inputs(x, None, Context())[0]
        return stack.block(0).attention(x, inputs.mask, None, LayerContext())

    return attend


# ------------------------------------------------------------------ operations and time


@torch.no_grad()
def flops(name: str, length: int, width: int) -> float:
    """The operations of one forward pass that Table 1 counts.

    For self-attention these are the products of queries, keys and values; the four projections,
    which every position has by itself, are left out, as in the paper.
    """
    one = layer(name, width)
    x = torch.randn(1, length, width)
    total = count_flops(lambda: one(x))
    if name in ("self-attention", "restricted"):
        total -= 4 * 2 * length * width**2
    return total


@torch.no_grad()
def seconds(name: str, length: int, width: int, repeats: int = 3) -> float:
    """The time of one forward pass: the fastest of several."""
    one = layer(name, width)
    x = torch.randn(1, length, width)
    return fastest(lambda: one(x), repeats)


# ------------------------------------------------------------------ sequential operations


def sequential_operations(name: str, length: int, width: int = 8) -> int:
    """The longest chain in the graph of one forward pass: operations that wait for each other.

    A recurrent layer is run step by step here, as its kernel does inside.
    """
    x = torch.randn(1, length, width).requires_grad_()
    if name == "recurrent":
        state = torch.zeros(1, width)
        cell = nn.RNNCell(width, width)
        for step in range(length):
            state = cell(x[:, step], state)
        return _depth(state)
    return _depth(layer(name, width)(x))


def _depth(tensor: Tensor) -> int:
    """The length of the longest path from a tensor to a leaf of its autograd graph."""
    depths: dict[Any, int] = {}
    pending: list[Any] = [tensor.grad_fn]
    while pending:
        # Depth first without recursion: chains are longer than Python's stack.
        node = pending[-1]
        inputs = [function for function, _ in node.next_functions if function is not None]
        open_inputs = [function for function in inputs if function not in depths]
        if open_inputs:
            pending += open_inputs
            continue
        depths[node] = 1 + max((depths[function] for function in inputs), default=0)
        pending.pop()
    return depths[tensor.grad_fn]


# ------------------------------------------------------------------ path length

# A gradient shrinks with each layer: through a hundred of them float32 would call it zero.
PRECISE = torch.float64


def path_length(name: str, length: int, width: int = 4) -> int:
    """The fewest layers, or recurrent steps, through which a gradient joins both ends."""
    if name == "recurrent":
        return _recurrent_path(length, width)
    depth = 1
    # Stacks grow until a gradient arrives.
    while not _connects(name, depth, length, width):
        depth += 1
    return depth


def _connects(name: str, depth: int, length: int, width: int) -> bool:
    """Whether the last output of a stack of layers depends on the first input."""
    x = _inputs(1, length, width).requires_grad_()
    hidden = x
    for number in range(depth):
        # Dilations grow with the kernel, so that no position is met twice (ByteNet).
        dilation = KERNEL**number if name == "dilated" else 1
        hidden = layer(name, width, seed=number, dilation=dilation, dtype=PRECISE)(hidden)
    (gradient,) = torch.autograd.grad(hidden[0, -1].sum(), x)
    return bool(gradient[0, 0].abs().sum() > 0)


def _recurrent_path(length: int, width: int) -> int:
    """How many states the gradient of the last output passes on its way to the first input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        cell = nn.RNNCell(width, width).to(PRECISE)
    states = [torch.zeros(1, width, dtype=PRECISE)]
    for x in _inputs(length, 1, width).requires_grad_():
        states.append(cell(x, states[-1]))
    # A state through which no gradient passes is no part of the path.
    gradients = torch.autograd.grad(states[-1].sum(), states[1:])
    return sum(bool(gradient.abs().sum() > 0) for gradient in gradients)


def _inputs(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=PRECISE)
