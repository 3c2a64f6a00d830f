"""Sinusoidal positional encodings: unique, bounded, and a shift is a linear map."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.core.positions.positional_encoding import sinusoids
from regard.lab.study.figure import Table
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.look.drawing import Axis, Chart, Figure, HeatMap, Series

D_MODEL = 128
BASE = 10_000.0  # of the paper's formula
SHIFT = 5  # the offset whose matrix is shown


class Sinusoids(Study):
    name = "sinusoids"
    claim = (
        "Sinusoidal encodings are unique for each position and bounded, and for any fixed offset "
        "k, PE(pos + k) is a linear function of PE(pos)."
    )
    source = "Vaswani et al. 2017, Section 3.5"
    measurement = (
        f"The table of the paper's formula with d_model = {D_MODEL}: its largest value, the norm "
        "of its rows, and the smallest distance between any two; PE(pos + k) against M_k PE(pos), "
        "where M_k are blocks of rotations by k·ω_i, and against the matrix that least squares "
        "finds from the table alone. The formula has no chance in it, so there is one seed."
    )
    rule = (
        "Holds if no value exceeds 1, no two positions are nearer than a tenth of neighbours, and "
        "both matrices reach every row to 1e-6; within limits if two positions come nearer than "
        "that without being equal; else it does not hold."
    )
    quick_seeds = 1
    full_seeds = 1

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        length = effort.choose(2048, 8192)
        table = sinusoids(torch.arange(length), D_MODEL, "interleaved", BASE)  # [length, D_MODEL]
        progress(0.2, "distances")
        # The distance of two positions depends on their offset alone, because a shift is rotation.
        distances = (table[1:] - table[0]).norm(dim=-1)
        offsets = [1, 2, 5, 10, 50, 100, 500, 1000]
        errors = [_shift_error(table, offset) for offset in offsets]
        progress(0.6, "least squares")
        fitted = _fitted_error(table, SHIFT)
        progress(1.0)
        return {
            "length": length,
            "largest": float(table.abs().max()),
            "norm": [float(table.norm(dim=-1).min()), float(table.norm(dim=-1).max())],
            "neighbour": float(distances[0]),
            "nearest": float(distances.min()),
            "nearest_offset": int(distances.argmin()) + 1,
            "distances": [float(distance) for distance in distances[:256]],
            "offsets": offsets,
            "shift_errors": errors,
            "fitted_error": fitted,
            "table": table[:64].tolist(),
            "matrix": rotation(SHIFT, 16).tolist(),
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        # The derived matrix and the fitted one.
        worst = max(*numbers["shift_errors"], numbers["fitted_error"])
        # In units of the distance of neighbours, which depends on d_model.
        nearest = numbers["nearest"] / numbers["neighbour"]
        reason = (
            f"Among {numbers['length']:,} positions the largest value is {numbers['largest']:.4g}, "
            f"the nearest two are {numbers['nearest_offset']} apart ({nearest:.3g} of the distance "
            f"of neighbours), and the linear map of a shift misses by at most {worst:.1e}."
        )
        # 1e-12: rounding of float64, in which the table is computed.
        if numbers["largest"] > 1 + 1e-12 or worst > 1e-6 or nearest < 1e-6:
            return Verdict(Outcome.FAILS, reason)
        return Verdict(Outcome.HOLDS if nearest > 0.1 else Outcome.LIMITED, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        offsets = list(range(1, len(numbers["distances"]) + 1))
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
            Chart(
                "Distance of two positions",
                Axis("offset"),
                Axis("‖PE(pos + k) − PE(pos)‖", low=0.0),
                [Series("", offsets, numbers["distances"])],
            ),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = [
            [str(offset), f"{error:.1e}"]
            for offset, error in zip(numbers["offsets"], numbers["shift_errors"], strict=True)
        ]
        low, high = numbers["norm"]
        # sin² + cos² = 1 for each of the d_model/2 frequencies: all rows have one norm.
        facts = [
            ["largest absolute value", f"{numbers['largest']:.6g}"],
            ["norm of a row", f"{low:.6g} to {high:.6g} = √(d_model/2)"],
            ["distance of neighbours", f"{numbers['neighbour']:.4g}"],
            ["least distance", f"{numbers['nearest']:.4g}, {numbers['nearest_offset']} apart"],
            [f"matrix by least squares, k = {SHIFT}", f"error {numbers['fitted_error']:.1e}"],
        ]
        return [
            Table("The table of encodings", ["property", "value"], facts),
            Table("PE(pos + k) − M_k PE(pos), largest component", ["k", "error"], rows),
        ]


def rotation(offset: int, width: int = D_MODEL) -> Tensor:
    """M_k of the first `width` dimensions: rotations by k·ω_i on the diagonal.

    sin(a + b) = cos b · sin a + sin b · cos a, and cos(a + b) = −sin b · sin a + cos b · cos a.
    """
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for index in range(0, width, 2):
        angle = torch.tensor(offset * BASE ** (-index / D_MODEL), dtype=torch.float64)
        matrix[index, index] = angle.cos()
        matrix[index, index + 1] = angle.sin()
        matrix[index + 1, index] = -angle.sin()
        matrix[index + 1, index + 1] = angle.cos()
    return matrix


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
