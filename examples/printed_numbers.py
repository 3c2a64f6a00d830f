"""Numbers and statements that teaching texts print, computed again: which of them stand?

Each by the formula, by counting, or by running a small model. Run it:
python examples/printed_numbers.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from regard import preset
from regard.builder import build
from regard.core.context import Context
from regard.core.positions.positional_encoding import sinusoids
from regard.core.probe import Probe

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
    """The targets of a class of four with ε = 0.1, as cross-entropy has them, summed."""
    smoothing = 0.1
    target = torch.full((4,), smoothing / 3, dtype=torch.float64)
    target[1] = 1 - smoothing
    return [float(target.sum())]


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


def attention_to_recurrent() -> list[float]:
    """Multiplications of self-attention (n²·d) over those of a recurrent layer (n·d²)."""
    n = 1024
    d = 512
    with torch.device("meta"):
        x = torch.empty(n, d)
        recurrent = torch.empty(d, d)
        with FlopCounterMode(display=False) as attention_flops:
            (x @ x.T) @ x  # scores, then values: 2·n²·d multiplications
        with FlopCounterMode(display=False) as step_flops:
            # Input and recurrent product of one step: 2·d² multiplications
            x[:1] @ recurrent + x[:1] @ recurrent
    return [attention_flops.get_total_flops() / (n * step_flops.get_total_flops())]


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


def visible_tokens() -> list[float]:
    """How many tokens the fourth of a causal language model attends to, by its own weights."""
    probe = Probe(["*.weights"])
    sizes = {"d_model": 32, "heads": 2, "layers": 1, "d_ff": 64}
    with torch.no_grad():
        build(preset("gpt2", 20, 8, **sizes)).eval()(torch.arange(8)[None], None, Context(probe))
    weights = probe.attentions["decoder.0.self"].weights()  # [1, H, 8, 8]
    return [float((weights[0, 0, 3] > 0).sum())]


def small_scores() -> list[float]:
    """The largest weight of four scores, multiplied by 0.001 and by 1,000."""
    scores = torch.tensor([2.1, 0.3, -0.5, 1.8], dtype=torch.float64)
    return [float((factor * scores).softmax(0).max()) for factor in (0.001, 1000.0)]


def _list(tensor: torch.Tensor) -> list[float]:
    values: list[float] = tensor.tolist()
    return values


STATEMENTS = (
    Statement(
        "softmax of [2.1, 0.3, −0.5, 1.8]", (0.58, 0.10, 0.04, 0.28), softmax_example,
        "exp of each, divided by their sum",
    ),
    Statement(
        "a GPT-3 forward over 2,048 tokens takes 700 GFLOP", (7e11,), forward_flop,
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
        "smoothed targets with ε = 0.1 are [.025, .9, .025, .025]", (0.975,), smoothed_targets,
        "a distribution sums to 1: 1 − ε and ε/(K−1) each, [.033, .9, .033, .033]",
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
        "attention of 512 tokens and 8 heads needs 512 MB a layer", (512e6,),
        lambda: score_bytes(512), "8 · 512² · 4 bytes, 8.4 MB",
    ),
    Statement(
        "attention of 2,048 tokens and 8 heads needs 8 GB a layer", (8e9,),
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
        "self-attention costs no more than a recurrent layer, n = 1,024, d = 512", (1.0,),
        attention_to_recurrent,
        "FLOPs n²·d over n·d², counted: recurrent layers cost less where n > d",
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
        "token i attends to tokens 1 … i − 1, so the fourth to 3", (3.0,), visible_tokens,
        "weights above zero in row 4 of a causal model: it attends to itself too",
    ),
    Statement(
        "as scores go to 0 the softmax becomes one-hot", (1.0, 0.25), small_scores,
        "largest weight of scores · 0.001 and · 1000: it is the other way round",
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
