"""Memory of attention over the length: explicit weights and the fused kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from regard.lab.measure.instruments import growth_exponent, peak_bytes
from regard.lab.study.figure import Table
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.look.drawing import Axis, Chart, Figure, Series

HEADS = 8
D_K = 16


class AttentionMemory(Study):
    name = "attention_memory"
    claim = (
        "The weights of attention take h·n² numbers a layer, 33 MB at n = 1,024 with 8 heads in "
        "float32; a fused kernel (FlashAttention) never stores them and needs O(n)."
    )
    source = "Dao et al. 2022, Section 2; Vaswani et al. 2017, Table 1"
    measurement = (
        f"The peak of the tensors that one attention with {HEADS} heads of width {D_K} makes in a "
        "forward and backward pass, in float32, over n: softmax(QKᵀ)V with its weights, and "
        "PyTorch's fused kernel; and the size of the weights alone, h·n²·4 bytes."
    )
    rule = (
        "Holds if the peak grows with an exponent of n of at least 1.7 with explicit weights and "
        "of at most 1.2 with the fused kernel, and the explicit peak is at least the size of the "
        "weights. Within limits if the fused kernel only needs less than half at the largest n."
    )
    quick_seeds = 1  # bytes do not depend on chance
    full_seeds = 1

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        lengths = effort.choose([128, 256, 512, 1024], [128, 256, 512, 1024, 2048, 4096])
        peaks: dict[str, list[int]] = {"explicit": [], "fused": []}
        for n in progress.over(lengths, lambda n: f"n = {n}"):
            for name, values in peaks.items():
                # Scores, weights and their gradients: about three times the weights at the peak.
                values.append(_peak(n, fused=name == "fused"))
        weights = [HEADS * n * n * 4 for n in lengths]  # bytes, in float32
        return {"lengths": lengths, **peaks, "weights": weights}

    def verdict(self, numbers: Numbers) -> Verdict:
        lengths = numbers["lengths"]
        explicit = growth_exponent(lengths, numbers["explicit"])
        fused = growth_exponent(lengths, numbers["fused"])
        ratio = numbers["explicit"][-1] / numbers["fused"][-1]
        reason = (
            f"The peak grows as n^{explicit:.2f} with explicit weights and as n^{fused:.2f} with "
            f"the fused kernel; at n = {lengths[-1]} they take "
            f"{numbers['explicit'][-1] / 1e6:.1f} and {numbers['fused'][-1] / 1e6:.1f} MB, the "
            f"weights alone {numbers['weights'][-1] / 1e6:.1f} MB."
        )
        # A peak below that would mean that something was not seen.
        holds_weights = numbers["explicit"][-1] >= numbers["weights"][-1]
        holds = explicit >= 1.7 and fused <= 1.2 and holds_weights
        return judge(holds, holds or ratio > 2, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        lengths = numbers["lengths"]
        curves = {"explicit": "explicit", "fused": "fused", "weights": "h·n²·4 bytes"}
        series = []
        for key, name in curves.items():
            style: Any = "dashed" if key == "weights" else "line"
            megabytes = [value / 1e6 for value in numbers[key]]
            series.append(Series(name, lengths, megabytes, style=style))
        x = Axis("n", log=True, ticks=tuple(lengths))
        return [Chart("Peak memory of one attention", x, Axis("MB", log=True), series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for index, n in enumerate(numbers["lengths"]):
            keys = ("weights", "explicit", "fused")
            rows.append([f"{n:,}", *(f"{numbers[key][index] / 1e6:,.2f}" for key in keys)])
        columns = ["n", "h·n²·4 bytes, MB", "explicit, MB", "fused, MB"]
        return [Table("Peak of one attention, forward and backward", columns, rows)]


def _peak(length: int, *, fused: bool) -> int:
    shape = (1, HEADS, length, D_K)
    # [1, H, n, K]: made before, so they do not count.
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))

    def step() -> None:
        if fused:
            out = functional.scaled_dot_product_attention(q, k, v)
        else:
            out = torch.softmax(q @ k.mT * D_K**-0.5, dim=-1) @ v
        out.sum().backward()  # type: ignore[no-untyped-call]

    return peak_bytes(step)
