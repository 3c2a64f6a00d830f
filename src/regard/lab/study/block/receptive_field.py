"""Receptive fields: how far a position sees through layers of each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from regard import spec
from regard.families.presets import preset
from regard.lab.study.figure import Table
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import build_seeded, with_block
from regard.look.drawing import Axis, Chart, Figure, Series

LENGTH = 65  # tokens, with one in the middle
MIDDLE = LENGTH // 2
WINDOW = 3  # positions to each side
UNITS = {
    "1×1 convolution": spec.GatedUnit(kernel=1),
    "convolution": spec.GatedUnit(kernel=3),
    "dilated convolution": spec.BottleneckUnit(kernel=3, dilations=(1, 2, 4, 8, 16)),
}
# The field through L layers that the formulas predict.
PREDICTIONS: dict[str, Callable[[int], int]] = {
    "1×1 convolution": lambda layers: 1,
    # Kernel 3: one more on each side
    "convolution": lambda layers: 2 * layers + 1,
    # Dilations 1, 2, 4, …: 1 + 2 · (2^L − 1)
    "dilated convolution": lambda layers: 2 ** (layers + 1) - 1,
    "window attention": lambda layers: 2 * WINDOW * layers + 1,
    "attention": lambda layers: LENGTH,
}


class ReceptiveField(Study):
    name = "receptive_field"
    claim = (
        "A 1×1 convolution (the feed-forward network) sees one position, a convolution of width k "
        "grows by k − 1 a layer, a dilated one exponentially, and self-attention sees everything "
        "in one layer."
    )
    source = "Vaswani et al. 2017, Section 4 and Table 1; Kalchbrenner et al. 2016, Section 3"
    measurement = (
        f"Networks with random weights over {LENGTH} tokens, 1 to 5 layers: each token in turn is "
        "replaced, and the positions whose replacement changes the output in the middle are "
        "counted. For comparison the fields that the formulas predict."
    )
    rule = (
        "Holds if every measured field is the predicted one, up to the length of the sequence; "
        "within limits if attention and the 1×1 convolution are as predicted; else it "
        "does not hold."
    )
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        depths = [1, 2, 3, 4, 5]
        fields = effort.each(
            progress,
            PREDICTIONS,
            lambda kind, seed: [_field(kind, depth, seed) for depth in depths],
        )
        return {"depths": depths, "fields": fields, "length": LENGTH}

    def verdict(self, numbers: Numbers) -> Verdict:
        wrong = []
        for kind, runs in numbers["fields"].items():
            # No field is larger than the sequence.
            expected = [
                min(numbers["length"], PREDICTIONS[kind](depth)) for depth in numbers["depths"]
            ]
            if any(run != expected for run in runs):
                wrong.append(kind)
        # All fields at the largest depth are listed, right and wrong ones.
        last = numbers["depths"][-1]
        measured = ", ".join(f"{kind} {runs[0][-1]}" for kind, runs in numbers["fields"].items())
        reason = f"Positions seen through {last} layers of {numbers['length']}: {measured}."
        if wrong:
            reason += f" Not as predicted: {', '.join(wrong)}."
        return judge(not wrong, not {"attention", "1×1 convolution"} & {*wrong}, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        depths = numbers["depths"]
        series = [Series.over_seeds(kind, depths, runs) for kind, runs in numbers["fields"].items()]
        return [
            Chart(
                "Receptive field over depth",
                Axis("layers", ticks=tuple(depths)),
                Axis("positions seen", log=True, ticks=(1, 3, 7, 15, 31, 65)),
                series,
                note=f"Sequences have {numbers['length']} tokens, more cannot be seen.",
            )
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = [[kind, *map(str, runs[0])] for kind, runs in numbers["fields"].items()]
        columns = ["layers", *map(str, numbers["depths"])]
        return [Table("Positions that the output in the middle depends on", columns, rows)]


@torch.no_grad()
def _field(kind: str, depth: int, seed: int) -> int:
    """The number of positions that change the middle of the output."""
    model: Any = build_seeded(_model(kind, depth), seed).eval()
    generator = torch.Generator().manual_seed(seed)
    # In float64, where a weak influence is not lost in rounding.
    model.double()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)
    tokens = torch.randint(0, 20, (LENGTH,), generator=generator)
    # Row j has another token at position j; the last row is the original.
    batch = tokens.repeat(LENGTH + 1, 1)
    batch[:-1].diagonal().add_(1)
    # A convolutional network here is the encoder of an encoder–decoder.
    hidden = model.encode(batch).hidden if kind in UNITS else model(batch)[0]
    middle = hidden[:, MIDDLE]  # [LENGTH + 1, D]
    return int((middle[:-1] != middle[-1]).any(-1).sum())


def _model(kind: str, depth: int) -> Any:
    if kind in UNITS:
        model: Any = preset("convs2s", 24, LENGTH, d_model=8)
        return replace(model, encoder=replace(model.encoder, layers=depth, unit=UNITS[kind]))
    sizes = {"d_model": 8, "heads": 2, "d_ff": 16, "layers": depth}
    wide: Any = preset("bert", 24, LENGTH, position="none", **sizes)
    if kind == "attention":
        return wide
    return with_block(wide, pattern=spec.WindowMask(WINDOW))
