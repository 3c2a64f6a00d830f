"""Numbers and statements that teaching texts print, computed again: which of them stand?

What is in quotation marks is printed so, word for word. Each is computed by the formula, by
counting, or by running a small model. Run it: python examples/printed_numbers.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from regard import preset
from regard.builder import build
from regard.core.positions.positional_encoding import sinusoids

TOLERANCE = 0.02  # relative; of a printed zero, absolute


@dataclass(frozen=True)
class Statement:
    text: str
    printed: tuple[float, ...]  # as the text has it
    compute: Callable[[], list[float]]
    computation: str  # the same in words


def softmax_example() -> list[float]:
    return _list(torch.tensor([2.1, 0.3, -0.5, 1.8], dtype=torch.float64).softmax(0))


def forward_flop() -> list[float]:
    # A multiplication and an addition for each parameter and token.
    return [2 * 175e9 * 2048]


def training_flop() -> list[float]:
    # The backward pass takes twice the forward one: 6 in all (Kaplan et al. 2020, Section 2.1).
    return [6 * 110e6 * 10e9]


def gpt3_training_flop() -> list[float]:
    return [6 * 175e9 * 300e9]


def smoothed_targets() -> list[float]:
    """The targets of the third of four classes with ε = 0.1, as cross-entropy has them."""
    # Its gradient at equal logits is softmax − target.
    logits = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    functional.cross_entropy(logits, torch.tensor([2]), label_smoothing=0.1).backward()
    assert logits.grad is not None
    return _list(0.25 - logits.grad[0])


def slowest_dimension() -> list[float]:
    table = sinusoids(torch.arange(512), 512, "interleaved", 10_000.0)
    steps = (table[1:] - table[:-1]).abs().mean(0)  # [512]: how much each dimension changes
    slowest = int(steps[0::2].argmin())  # among the sines
    return [2.0 * slowest]


def second_divisor() -> list[float]:
    """What d = 4 divides the position by, in the third and fourth dimension."""
    third = sinusoids(torch.tensor([1]), 4, "interleaved", 10_000.0)[0, 2]
    return [1 / math.asin(float(third))]


def score_bytes(length: int) -> list[float]:
    """The memory of the weights of 8 heads in float32, of a tensor that is really made."""
    return [float(torch.empty(8, length, length).nbytes)]


def head_width() -> list[float]:
    # All stacks of it have the same heads.
    base = preset("transformer:base")
    return [float(next(iter(base.stacks.values())).block.attention.d_k)]


@torch.no_grad()
def permuted_difference() -> list[float]:
    """How far the representation of each place is from what it was before the permutation."""
    sizes = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 128}
    torch.manual_seed(1)
    encoder = build(preset("bert", 50, 16, position="none", **sizes)).eval()
    x = torch.arange(3, 15)[None]
    hidden, _ = encoder(x)
    permuted, _ = encoder(x.flip(1))
    # At the same places other words stand now; the words themselves have the same vectors.
    same_places = float((permuted - hidden).norm() / hidden.norm())
    same_words = float((permuted - hidden.flip(1)).norm() / hidden.norm())
    return [same_places, same_words]


def convolution_layers() -> list[float]:
    """Causal layers of width 3 that join 1,024 positions: contiguous, dilated by 1, 3, 9, …"""
    return [float(_layers_to_join(1024, dilated)) for dilated in (False, True)]


def _layers_to_join(positions: int, dilated: bool) -> int:
    reached = torch.zeros(1, 1, positions)
    reached[..., 0] = 1.0  # the first position, from which all must be reached
    kernel = torch.ones(1, 1, 3)
    layers = 0
    while not reached.bool().all():
        dilation = 3**layers if dilated else 1
        causal = functional.pad(reached, (2 * dilation, 0))
        reached = functional.conv1d(causal, kernel, dilation=dilation).sign()
        layers += 1
    return layers


def small_scores() -> list[float]:
    """The largest weight of four scores, multiplied by 0.001."""
    scores = torch.tensor([2.1, 0.3, -0.5, 1.8], dtype=torch.float64)
    return [float((0.001 * scores).softmax(0).max())]


@torch.no_grad()
def attention_shape() -> list[float]:
    """The shape of what an attention block gives for 12 tokens of width 64."""
    shapes: list[float] = []

    def record(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        shapes.extend(output.shape[1:])

    encoder: Any = build(preset("bert", 50, 16, d_model=64, heads=4, layers=1, d_ff=128))
    encoder.stack.blocks[0].attention.register_forward_hook(record)
    encoder(torch.arange(3, 15)[None])
    return shapes


def linear_attention_exponent() -> list[float]:
    """The exponent of d in the operations of φ(Q) (φ(K)ᵀ V)."""
    counts = []
    for width in (64, 128):
        with torch.device("meta"):
            x = torch.empty(1024, width)
            with FlopCounterMode(display=False) as counter:
                x @ (x.T @ x)
        counts.append(counter.get_total_flops())
    return [math.log2(counts[1] / counts[0])]


@torch.no_grad()
def residual_of_feedforward() -> list[float]:
    """The root mean square of an encoder layer's output if its feed-forward network gives zero."""
    model: Any = build(preset("transformer:tiny", 50, 16))
    block = model.encoder.blocks[0]
    torch.nn.init.zeros_(block.feedforward.outer.weight)
    torch.nn.init.zeros_(block.feedforward.outer.bias)
    output = model.eval().encode(torch.arange(3, 15)[None]).hidden
    return [float(output.square().mean().sqrt())]


def weight_of_padding() -> list[float]:
    """The weight of two tokens of padding, where the mask is 1 at padding and 0 is filled."""
    is_padding = torch.tensor([0, 0, 0, 1, 1])
    scores = torch.zeros(5).masked_fill(is_padding == 0, -math.inf)
    return [float(scores.softmax(0)[3:].sum())]


def text_bytes() -> list[float]:
    # A token of English is about four letters (of GPT-2's vocabulary and of later ones).
    return [4 * 10e9]


def _list(tensor: torch.Tensor) -> list[float]:
    values: list[float] = tensor.tolist()
    return values


STATEMENTS = (
    Statement(
        "softmax of [2.1, 0.3, −0.5, 1.8]", (0.58, 0.10, 0.04, 0.28), softmax_example,
        "exp of each, divided by their sum",
    ),
    Statement(
        "a forward of GPT-3 over 2,048 tokens: “~700 GFLOP”", (7e11,), forward_flop,
        "2 · 175e9 parameters · 2,048 tokens, about 717 TFLOP",
    ),
    Statement(
        "training 110 M parameters on 10 B tokens takes 1e20 FLOP", (1e20,), training_flop,
        "6 · 110e6 · 10e9",
    ),
    Statement(
        "training GPT-3 takes 3.14e23 FLOP", (3.14e23,), gpt3_training_flop,
        "6 · 175e9 · 300e9",
    ),
    Statement(
        "smoothed targets with ε = 0.1 are [.025, .025, .9, .025]", (0.025, 0.025, 0.9, 0.025),
        smoothed_targets, "a distribution sums to 1: 1 − ε + ε/K for the true class, ε/K else",
    ),
    Statement(
        "the slow sinusoids are the low dimensions", (0.0,), slowest_dimension,
        "the sine of d_model = 512 that changes least from position to position",
    ),
    Statement(
        "d = 4: the second pair is sin and cos of pos / 1000^½", (1000**0.5,), second_divisor,
        "10000^(2/4) = 100",
    ),
    Statement(
        "the memory of attention: “O(n² × d_model) … ~512 MB per batch element” at n = 512",
        (512e6,), lambda: score_bytes(512),
        "a weight for each of 8 heads, not for each of d_model = 512: 8 · 512² · 4 bytes, 8.4 MB",
    ),
    Statement(
        "the same at n = 2,048: 8 GB", (8e9,),
        lambda: score_bytes(2048), "8 · 2048² · 4 bytes, 134 MB",
    ),
    Statement(
        "attention of 1,024 tokens and 8 heads needs 33 MB a layer", (33e6,),
        lambda: score_bytes(1024), "8 · 1024² · 4 bytes",
    ),
    Statement(
        "d_k = h / d_model, for 8 heads and 512", (8 / 512,), head_width,
        "d_model / h, the width in the spec of transformer:base",
    ),
    Statement(
        "without positions, “cats love I” has the same representations as “I love cats”",
        (0.0, 0.0), permuted_difference,
        "relative difference at the same places, and of the same words: permuted, not equal",
    ),
    Statement(
        "convolutions of width 3 join 1,024 positions in log₃ n = 7 layers", (7.0, 7.0),
        convolution_layers, "layers needed, contiguous and dilated: only dilated ones do",
    ),
    Statement(
        "as scores go to 0 the softmax becomes one-hot", (1.0,), small_scores,
        "largest weight of scores · 0.001: it becomes uniform, and one-hot as they grow",
    ),
    Statement(
        "“output of the attention block is the (T, T) weight matrix”", (12.0, 12.0),
        attention_shape, "12 tokens of width 64: the weights are multiplied with the values",
    ),
    Statement(
        "linear attention costs “O(n·d)”", (1.0,), linear_attention_exponent,
        "the exponent of d, counted: O(n·d²), for the d × d sums of keys and values",
    ),
    Statement(
        "“EncoderLayer = FFN(LayerNorm(X + MH))”: where the FFN gives zero, so does the layer",
        (0.0,), residual_of_feedforward,
        "root mean square of the layer: the second residual connection is missing",
    ),
    Statement(
        "“1 = padding”, and “masked_fill(mask == 0)” hides padding", (0.0,),
        weight_of_padding, "the weight of padding: the two conventions are opposite",
    ),
    Statement(
        "“10 B tokens, ~10 GB text”", (10e9,), text_bytes, "about 4 bytes a token",
    ),
    Statement(
        "attention weights of one query, drawn beside its words, that sum to 1.5", (1.5,),
        lambda: [sum(softmax_example())], "a softmax sums to 1",
    ),
)  # fmt: skip


def stands(printed: tuple[float, ...], computed: list[float]) -> bool:
    """Whether all printed numbers are the computed ones, up to the tolerance."""
    return all(
        abs(a - b) <= TOLERANCE * (abs(b) if a else 1.0)
        for a, b in zip(printed, computed, strict=True)
    )


def _numbers(values: tuple[float, ...] | list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


if __name__ == "__main__":
    count = 0
    for statement in STATEMENTS:
        computed = statement.compute()
        right = stands(statement.printed, computed)
        count += right
        print(f"{'stands' if right else 'wrong'}: {statement.text}")
        print(f"    printed {_numbers(statement.printed)}, computed {_numbers(computed)}")
        print(f"    {statement.computation}")
    print(f"{count} of {len(STATEMENTS)} statements stand")
