"""Positional encodings: sinusoids and their wavelengths, and how positions break a symmetry."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from regard.core.positions.positional_encoding import sinusoids
from regard.families.presets import preset
from regard.lab.study.figure import (
    OVER_SEEDS,
    Shown,
    Table,
    chart,
    column,
    mean,
    measured_bars,
    table,
    table_of_columns,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import POSITIONS, as_after_training, build_seeded, seeded
from regard.look.drawing import HeatMap

D_MODEL = 128
BASE = 10_000.0  # of the paper's formula
SHIFT = 5  # the offset whose matrix is shown


class Sinusoids(Study):
    """Sinusoidal encodings are unique for each position and bounded, and for any fixed offset k,
    PE(pos + k) is a linear function of PE(pos).

    The table of the paper's formula with d_model = {D_MODEL}: its largest value, the norm of its
    rows, and the smallest distance between any two; PE(pos + k) against M_k PE(pos), where M_k are
    blocks of rotations by k·ω_i, and against the matrix that least squares finds from the table
    alone. The formula has no chance in it, so there is one seed.
    """

    source = "Vaswani et al. 2017, Section 3.5"
    seeds = (1, 1)

    def measure(self, effort: Effort) -> Numbers:
        length = effort.choose(2048, 8192)
        table = sinusoids(torch.arange(length), D_MODEL, "interleaved", BASE)  # [length, D_MODEL]
        # The distance of two positions depends on their offset alone, because a shift is rotation.
        distances = (table[1:] - table[0]).norm(dim=-1)
        offsets = [1, 2, 5, 10, 50, 100, 500, 1000]
        return {
            "length": length,
            "largest": float(table.abs().max()),
            "norm": [float(table.norm(dim=-1).min()), float(table.norm(dim=-1).max())],
            "neighbour": float(distances[0]),
            "nearest": float(distances.min()),
            "nearest_offset": int(distances.argmin()) + 1,
            "distances": distances[:256].tolist(),
            "offsets": offsets,
            "shift_errors": [_shift_error(table, offset) for offset in offsets],
            "fitted_error": _fitted_error(table, SHIFT),
            "table": table[:64].tolist(),
            "matrix": rotation(SHIFT, 16).tolist(),
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if no value exceeds 1, no two positions are nearer than a tenth of neighbours, and
        both matrices reach every row to 1e-6; within limits if two positions come nearer than that
        without being equal; else it does not hold."""
        # The derived matrix and the fitted one.
        worst = max(*numbers["shift_errors"], numbers["fitted_error"])
        # In units of the distance of neighbours, which depends on d_model.
        nearest = numbers["nearest"] / numbers["neighbour"]
        # 1e-12: rounding of float64, in which the table is computed.
        is_linear = numbers["largest"] <= 1 + 1e-12 and worst <= 1e-6 and nearest >= 1e-6
        return judge(
            nearest > 0.1,
            is_linear,
            f"Among {numbers['length']:,} positions the largest value is {numbers['largest']:.4g}, "
            f"the nearest two are {numbers['nearest_offset']} apart ({nearest:.3g} of the distance "
            f"of neighbours), and the linear map of a shift misses by at most {worst:.1e}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        errors = map("{:.1e}".format, numbers["shift_errors"])
        low, high = numbers["norm"]
        # sin² + cos² = 1 for each of the d_model/2 frequencies: all rows have one norm.
        facts = [
            ["largest absolute value", f"{numbers['largest']:.6g}"],
            ["norm of a row", f"{low:.6g} to {high:.6g} = √(d_model/2)"],
            ["distance of neighbours", f"{numbers['neighbour']:.4g}"],
            ["least distance", f"{numbers['nearest']:.4g}, {numbers['nearest_offset']} apart"],
            [f"matrix by least squares, k = {SHIFT}", f"error {numbers['fitted_error']:.1e}"],
        ]
        # Two dimensions for each frequency: a block on the diagonal.
        names = [f"{'sin' if index % 2 == 0 else 'cos'} {index // 2}" for index in range(16)]
        return [
            HeatMap(
                "The encodings of 64 positions",
                numbers["table"],
                x_label=f"dimension, 0 to {D_MODEL - 1}",
                y_label="position",
                signed=True,
                note="Fast on the left, slow on the right: the high dimensions hardly change.",
            ),
            HeatMap(
                f"The matrix of a shift by {SHIFT}, first 16 dimensions",
                numbers["matrix"],
                names,
                names,
                signed=True,
                note="Each pair of sine and cosine is rotated by its own angle.",
            ),
            chart(
                "Distance of two positions",
                "offset",
                "‖PE(pos + k) − PE(pos)‖",
                range(1, len(numbers["distances"]) + 1),
                {"": [numbers["distances"]]},
                low=0.0,
            ),
            Table("The table of encodings", ["property", "value"], facts),
            table_of_columns(
                "PE(pos + k) − M_k PE(pos), largest component",
                {"k": map(str, numbers["offsets"]), "error": errors},
            ),
        ]


def rotation(offset: int, width: int = D_MODEL) -> Tensor:
    """M_k of the first `width` dimensions: rotations by k·ω_i on the diagonal.

    sin(a + b) = cos b · sin a + sin b · cos a, and cos(a + b) = −sin b · sin a + cos b · cos a.
    """
    angles = offset * BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / D_MODEL)
    sine = angles.sin()
    cosine = angles.cos()
    rows = torch.stack([cosine, sine, -sine, cosine], dim=-1)  # [width / 2, 4]
    return torch.block_diag(*rows.view(-1, 2, 2))


def _shift_error(table: Tensor, offset: int) -> float:
    """The largest component of PE(pos + k) − M_k PE(pos), over all positions."""
    return float((table[offset:] - table[:-offset] @ rotation(offset).T).abs().max())


def _fitted_error(table: Tensor, offset: int) -> float:
    """The same for the matrix that every second position gives, at the positions between."""
    before = table[:-offset]
    after = table[offset:]
    # The slow dimensions hardly change: least squares by singular values takes the least matrix.
    matrix = torch.linalg.lstsq(before[::2], after[::2], driver="gelsd").solution
    return float((after[1::2] - before[1::2] @ matrix).abs().max())


class Wavelengths(Study):
    """The wavelengths of the dimensions form a geometric progression from 2π to 10000·2π, so the
    high dimensions are the slow ones; the dot product of two encodings depends on their distance
    alone and falls with it.

    The table of d_model = {D_MODEL}: the wavelength of each sine from its zero crossings,
    PE(pos)·PE(pos + k) for many positions and all distances k, and how often it rises where the
    distance grows. The formula has no chance in it, so there is one seed.
    """

    source = "Vaswani et al. 2017, Section 3.5"
    seeds = (1, 1)

    def measure(self, effort: Effort) -> Numbers:
        length = effort.choose(20_000, 200_000)
        table = sinusoids(torch.arange(length), D_MODEL, "interleaved", BASE)
        measured = {}
        for index in range(0, D_MODEL, 2):
            wave = table[1:, index]  # the sine at position 0 is 0
            crossings = (wave[1:] * wave[:-1] < 0).nonzero()[:, 0].tolist()
            if len(crossings) >= 3:  # slower ones have no full wave within the table
                measured[index] = 2 * (crossings[-1] - crossings[0]) / (len(crossings) - 1)
        # Many positions, to see whether the product depends on them.
        starts = torch.arange(0, 1000, 50)
        # [distances, starts]
        products = torch.stack([(table[starts] * table[starts + k]).sum(-1) for k in range(256)])
        return {
            "dimensions": list(measured),
            "wavelengths": list(measured.values()),
            "products": products.mean(-1).tolist(),
            "variation": float((products.amax(-1) - products.amin(-1)).max()),
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if wavelengths grow with the dimension within 5 % of 2π·10000^(2i/d), the dot
        product varies by less than 1e-6 over positions, and it never rises with the distance;
        within limits if it falls up to some distance only; else it does not hold."""
        dimensions = numbers["dimensions"]
        measured = numbers["wavelengths"]
        # Relative to the formula.
        error = max(
            abs(length / wavelength(index) - 1)
            for index, length in zip(dimensions, measured, strict=True)
        )
        rises = [after > before for before, after in pairwise(numbers["products"])]
        falling = [*rises, True].index(True)
        # Slow dimensions are the high ones if wavelengths are sorted already.
        grows = measured == sorted(measured)
        as_stated = error <= 0.05 and grows and numbers["variation"] <= 1e-6
        return judge(
            not any(rises),
            as_stated,
            f"Measured wavelengths go from {measured[0]:.2f} (dimension {dimensions[0]}) to "
            f"{measured[-1]:,.0f} (dimension {dimensions[-1]}), within {100 * error:.1f} % of the "
            "formula: the slow sinusoids are the high dimensions. The dot product varies by "
            f"{numbers['variation']:.1e} over positions, and falls without a rise up to a distance "
            f"of {falling}; of {len(rises)} steps {sum(rises)} go up.",
        )

    def show(self, numbers: Numbers) -> Shown:
        dimensions = numbers["dimensions"]
        # Every sixth frequency is enough for a table.
        rows = [
            [str(index), f"{length:,.2f}", f"{wavelength(index):,.2f}"]
            for index, length in zip(dimensions, numbers["wavelengths"], strict=True)
        ][::6]
        return [
            chart(
                "Wavelength of each dimension",
                "dimension",
                "positions",
                dimensions,
                {"measured": [numbers["wavelengths"]]},
                theory={"2π · 10000^(2i/d)": [*map(wavelength, dimensions)]},
                log=True,
            ),
            chart(
                "Dot product over distance",
                "distance k",
                "PE(pos) · PE(pos + k)",
                range(len(numbers["products"])),
                {"": [numbers["products"]]},
                note=f"At distance 0 it is d_model/2 = {D_MODEL // 2}.",
            ),
            Table("Wavelengths in positions", ["dimension", "measured", "formula"], rows),
        ]


def wavelength(index: int) -> float:
    """2π · 10000^(2i/d) of the sine at dimension 2i."""
    return float(2 * math.pi * BASE ** (index / D_MODEL))


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

    source = "Vaswani et al. 2017, Section 3.5; Yun et al. 2020, Claim 1"
    seeds = (3, 10)

    def measure(self, effort: Effort) -> Numbers:
        sequences = effort.choose(8, 64)
        kinds = {"none": "none", **POSITIONS}
        runs = effort.each(kinds, lambda name, seed: _differences(kinds[name], seed, sequences))
        return {"runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the difference without positions is below {EQUAL:g} and with every positional
        encoding above {DIFFERENT:g}, for permutations and reversals alike; within limits if an
        encoding does not tell a sequence from its reversal; else it does not hold."""
        permuted, reversed_ = (
            {name: mean(column(runs, key)) for name, runs in numbers["runs"].items()}
            for key in ("permuted", "reversed")
        )
        without = permuted.pop("none")
        # The kind that breaks the symmetry least decides.
        least = min(permuted, key=permuted.__getitem__)
        # A reversal keeps all distances |i − j|, so that a symmetric bias cannot see it.
        blind = {name: reversed_[name] for name in permuted if reversed_[name] < DIFFERENT}
        reason = (
            f"Without positions f(Px) differs from P f(x) by {without:.1e}; with "
            f"positions by at least {permuted[least]:.2g} ({least})."
        )
        if blind:
            reason += (
                f" {', '.join(blind)} in an encoder knows distances only: a reversed sequence "
                f"gives reversed representations up to {max(blind.values()):.1e}, so it cannot "
                "tell who chased whom."
            )
        breaks = without <= EQUAL and permuted[least] >= DIFFERENT
        return judge(not blind, breaks, reason)

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        label = "relative difference"
        moved = {"permuted": "random permutation", "reversed": "reversal"}
        columns = {"permuted": "permuted", "reversed": "reversed", "dog": "“dog”"}
        return [
            measured_bars(
                "How far f(Px) is from P f(x)",
                label,
                runs,
                moved,
                note="On a logarithmic scale; about 10⁻⁷ is rounding in float32.",
                log=True,
            ),
            measured_bars(
                "“dog” in “dog chased cat” and “cat chased dog”", label, runs, {"dog": ""}, log=True
            ),
            table("positions", columns, runs, OVER_SEEDS, ".1e"),
        ]


@torch.no_grad()
def _differences(position: str, seed: int, sequences: int) -> Numbers:
    """The three differences for one encoder with random weights."""
    vocabulary = 50
    # Dropout is off in evaluation mode: the function itself is compared.
    sizes = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 128}
    encoder = build_seeded(preset("bert", vocabulary, 64, position=position, **sizes), seed).eval()
    with seeded(seed):
        as_after_training(encoder)
        # Ids below are those of the three words.
        x = torch.randint(len(WORDS), vocabulary, (sequences, LENGTH))
        # One permutation for all sequences.
        order = torch.randperm(LENGTH)
    sentence = torch.arange(len(WORDS))[None]  # dog chased cat

    def difference(tokens: Tensor, changed: Tensor, a: Any, b: Any) -> float:
        """The relative distance of places of both; at least the smallest difference of float32."""
        before = encoder(tokens)[0][:, a]
        after = encoder(changed)[0][:, b]
        distance = (after - before).norm() / before.norm()
        return max(float(distance), torch.finfo(torch.float32).eps / 10)

    places = torch.arange(LENGTH)
    return {
        "permuted": difference(x, x[:, order], order, places),
        "reversed": difference(x, x.flip(1), places.flip(0), places),
        # cat chased dog
        "dog": difference(sentence, sentence.flip(1), 0, -1),
    }
