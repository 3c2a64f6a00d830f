"""Wavelengths of sinusoidal encodings, and their dot product over distance."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from regard.core.positions.positional_encoding import sinusoids
from regard.lab.study.figure import Table
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.look.drawing import Axis, Chart, Figure, Series

D_MODEL = 128
BASE = 10_000.0  # of the paper's formula


class Wavelengths(Study):
    name = "wavelengths"
    claim = (
        "The wavelengths of the dimensions form a geometric progression from 2π to 10000·2π, so "
        "the high dimensions are the slow ones; the dot product of two encodings depends on their "
        "distance alone and falls with it."
    )
    source = "Vaswani et al. 2017, Section 3.5"
    measurement = (
        f"The table of d_model = {D_MODEL}: the wavelength of each sine from its zero crossings, "
        "PE(pos)·PE(pos + k) for many positions and all distances k, and how often it rises where "
        "the distance grows. The formula has no chance in it, so there is one seed."
    )
    rule = (
        "Holds if wavelengths grow with the dimension within 5 % of 2π·10000^(2i/d), the dot "
        "product varies by less than 1e-6 over positions, and it never rises with the distance; "
        "within limits if it falls up to some distance only; else it does not hold."
    )
    quick_seeds = 1
    full_seeds = 1

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        length = effort.choose(20_000, 200_000)
        table = sinusoids(torch.arange(length), D_MODEL, "interleaved", BASE)
        progress(0.5, "zero crossings")
        dimensions = []
        measured = []
        for index in range(0, D_MODEL, 2):
            wave = table[1:, index]  # the sine at position 0 is 0
            crossings = (wave[1:] * wave[:-1] < 0).nonzero()[:, 0]
            if len(crossings) >= 3:  # slower ones have no full wave within the table
                dimensions.append(index)
                half_waves = len(crossings) - 1
                measured.append(2 * int(crossings[-1] - crossings[0]) / half_waves)
        progress(0.8, "dot products")
        distances = range(256)
        # Many positions, to see whether the product depends on them.
        starts = torch.arange(0, 1000, 50)
        # [distances, starts]
        products = torch.stack([(table[starts] * table[starts + k]).sum(-1) for k in distances])
        progress(1.0)
        return {
            "dimensions": dimensions,
            "wavelengths": measured,
            "products": products.mean(-1).tolist(),
            "variation": float((products.amax(-1) - products.amin(-1)).max()),
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        # Relative to the formula.
        errors = [
            abs(length / wavelength(index) - 1)
            for index, length in zip(numbers["dimensions"], numbers["wavelengths"], strict=True)
        ]
        products = numbers["products"]
        falling = first_rise(products)
        # Slow dimensions are the high ones if wavelengths are sorted already.
        grows = numbers["wavelengths"] == sorted(numbers["wavelengths"])
        first = numbers["dimensions"][0]
        last = numbers["dimensions"][-1]
        reason = (
            f"Measured wavelengths go from {numbers['wavelengths'][0]:.2f} (dimension {first}) to "
            f"{numbers['wavelengths'][-1]:,.0f} (dimension {last}), within "
            f"{100 * max(errors):.1f} % of the formula: the slow sinusoids are the high "
            f"dimensions. The dot product varies by {numbers['variation']:.1e} over positions"
        )
        if max(errors) > 0.05 or not grows or numbers["variation"] > 1e-6:
            return Verdict(Outcome.FAILS, reason + ".")
        if falling < len(products) - 1:
            rises = sum(b > a for a, b in pairwise(products))
            return Verdict(
                Outcome.LIMITED,
                f"{reason}, and falls without a rise up to a distance of {falling} only; of "
                f"{len(products) - 1} steps {rises} go up.",
            )
        return Verdict(Outcome.HOLDS, f"{reason}, and falls at every one of {falling} steps.")

    def figures(self, numbers: Numbers) -> list[Figure]:
        dimensions = numbers["dimensions"]
        # The formula goes on where the table is too short to measure a wave.
        every = list(range(0, D_MODEL, 2))
        distances = list(range(len(numbers["products"])))
        return [
            Chart(
                "Wavelength of each dimension",
                Axis("dimension"),
                Axis("positions", log=True),
                [
                    Series("measured", dimensions, numbers["wavelengths"], style="points"),
                    Series(
                        "2π · 10000^(2i/d)", every, [wavelength(i) for i in every], style="dashed"
                    ),
                ],
            ),
            Chart(
                "Dot product over distance",
                Axis("distance k"),
                Axis("PE(pos) · PE(pos + k)"),
                [Series("", distances, numbers["products"])],
                note=f"At distance 0 it is d_model/2 = {D_MODEL // 2}.",
            ),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        # Every sixth frequency is enough for a table.
        chosen = range(0, len(numbers["dimensions"]), 6)
        rows = []
        for place in chosen:
            index = numbers["dimensions"][place]
            cells = [f"{numbers['wavelengths'][place]:,.2f}", f"{wavelength(index):,.2f}"]
            rows.append([str(index), *cells])
        return [Table("Wavelengths in positions", ["dimension", "measured", "formula"], rows)]


def wavelength(index: int) -> float:
    """2π · 10000^(2i/d) of the sine at dimension 2i."""
    return float(2 * math.pi * BASE ** (index / D_MODEL))


def first_rise(values: list[float]) -> int:
    """How far the values fall without a rise."""
    for index in range(1, len(values)):
        if values[index] > values[index - 1]:
            return index - 1
    return len(values) - 1
