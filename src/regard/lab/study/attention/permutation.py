"""Permutation equivariance of self-attention, and how positions break it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.families.presets import preset
from regard.lab.study.figure import Shown, bar_chart, column, mean, table
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import build_seeded

# Words of `families/preset_changes.parse_position`.
POSITIONS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "relative": "relative:16",
    "T5 bias": "buckets:32:128",
    "ALiBi": "alibi",
    "rotary": "rope",
}
LENGTH = 12  # tokens
WORDS = ("dog", "chased", "cat")
EQUAL = 1e-4  # relative difference that is rounding
DIFFERENT = 1e-3  # relative difference that is none


class Permutation(Study):
    """Without positions, self-attention is permutation equivariant: permuted words get permuted
    representations, so that “dog chased cat” and “cat chased dog” are the same bag of words.
    Positional encodings break the symmetry.

    Encoders of two layers with random weights, one for each kind of position. f(Px) against P f(x)
    for random token sequences x and random permutations P, and for the reversal of x; then the
    vector of “dog” in “dog chased cat” and in “cat chased dog”. Differences are relative to the
    norm.
    """

    name = "permutation"
    source = "Vaswani et al. 2017, Section 3.5; Yun et al. 2020, Claim 1"
    seeds = (3, 10)

    def measure(self, effort: Effort) -> Numbers:
        sequences = effort.choose(8, 64)
        runs = effort.each(
            POSITIONS, lambda name, seed: _differences(POSITIONS[name], seed, sequences)
        )
        return {"runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the difference without positions is below {EQUAL:g} and with every positional
        encoding above {DIFFERENT:g}, for permutations and reversals alike; within limits if an
        encoding does not tell a sequence from its reversal; else it does not hold."""
        permuted = _means(numbers, "permuted")
        reversed_ = _means(numbers, "reversed")
        # The kind that breaks the symmetry least decides.
        least = min((value, name) for name, value in permuted.items() if name != "none")
        # A reversal keeps all distances |i − j|, so that a symmetric bias cannot see it.
        blind = [name for name in reversed_ if name != "none" and reversed_[name] < DIFFERENT]
        reason = (
            f"Without positions f(Px) differs from P f(x) by {permuted['none']:.1e}; with "
            f"positions by at least {least[0]:.2g} ({least[1]})."
        )
        if blind:
            reason += (
                f" {', '.join(blind)} in an encoder knows distances only: a reversed sequence "
                f"gives reversed representations up to "
                f"{max(reversed_[name] for name in blind):.1e}, so it cannot tell who chased whom."
            )
        breaks = permuted["none"] <= EQUAL and least[0] >= DIFFERENT
        return judge(not blind, breaks, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        runs = numbers["runs"]
        label = "relative difference"
        moved = {"permuted": "random permutation", "reversed": "reversal"}
        columns = {"permuted": "permuted", "reversed": "reversed", "dog": "“dog”"}
        return [
            replace(
                bar_chart("How far f(Px) is from P f(x)", label, runs, moved, log=True),
                note="On a logarithmic scale; about 10⁻⁷ is rounding in float32.",
            ),
            bar_chart(
                "“dog” in “dog chased cat” and “cat chased dog”", label, runs, {"dog": ""}, log=True
            ),
            table(
                "positions",
                columns,
                runs,
                "Relative differences, mean ± standard deviation",
                ".1e",
            ),
        ]


@torch.no_grad()
def _differences(position: str, seed: int, sequences: int) -> dict[str, float]:
    """The three differences for one encoder with random weights."""
    vocabulary = 50
    # Dropout is off in evaluation mode: the function itself is compared.
    sizes = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 128}
    encoder = build_seeded(preset("bert", vocabulary, 64, position=position, **sizes), seed).eval()
    generator = torch.Generator().manual_seed(seed)
    # Weights as after training: the initial ones are so small that attention is uniform.
    for parameter in encoder.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
    # Ids below are those of the three words.
    x = torch.randint(len(WORDS), vocabulary, (sequences, LENGTH), generator=generator)
    # One permutation for all sequences.
    order = torch.randperm(LENGTH, generator=generator)
    backwards = torch.arange(LENGTH - 1, -1, -1)
    hidden, _ = encoder(x)  # [sequences, LENGTH, 64]
    permuted, _ = encoder(x[:, order])
    reversed_, _ = encoder(x[:, backwards])
    sentence = torch.arange(len(WORDS))[None]  # dog chased cat
    first, _ = encoder(sentence)
    second, _ = encoder(sentence.flip(1))  # cat chased dog
    return {
        "permuted": _difference(permuted, hidden[:, order]),
        "reversed": _difference(reversed_, hidden[:, backwards]),
        "dog": _difference(second[:, -1], first[:, 0]),
    }


def _difference(a: Tensor, b: Tensor) -> float:
    """The distance relative to the norm; at least the smallest difference of float32."""
    distance = (a - b).norm() / b.norm()
    return max(float(distance), torch.finfo(torch.float32).eps / 10)


def _means(numbers: Numbers, key: str) -> dict[str, float]:
    return {name: mean(column(runs, key)) for name, runs in numbers["runs"].items()}
