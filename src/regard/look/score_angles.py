"""Lengths and angles of queries and keys: a score is q · k = |q| |k| cos θ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from regard.core.projection import per_query_head
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.probe_names import require_indices
from regard.look.recording import Look, array
from regard.look.result import AnalysisResult, Array, Names


@dataclass(frozen=True)
class Angles(AnalysisResult):
    """The scores of one head, taken apart: how long queries and keys are, and how they point.

    `by_angle` and `by_length` are shares of the scores' variance over the keys of a query (what
    softmax sees): of cos θ with keys of one length, and of the lengths of keys at one angle. They
    do not add up to 1, and a negative one is worse than a constant.
    """

    name: str
    head: int
    queries: Names
    keys: Names
    cosines: Array  # [queries, keys]; NaN where a query may not attend
    query_lengths: Array  # [queries]
    key_lengths: Array  # [keys]
    by_angle: float
    by_length: float

    note = (
        "q · k = |q| |k| cos θ, before it is divided by √d. The length of a query sharpens all of "
        "its attention; the length of a key, where cos θ > 0, draws every query to it."
    )
    numbers = "cosines"

    @property
    def title(self) -> str:
        return f"{self.name}, head {self.head}: cos θ of queries and keys"

    def scene(self) -> drawing.Scene:
        cosines = drawing.heat(
            self.cosines, self.queries, self.keys, title=self.title, signed=True, most=1.0
        )
        lengths = []
        for title, values, names in (
            ("|q|, the lengths of queries", self.query_lengths, self.queries),
            ("|k|, the lengths of keys", self.key_lengths, self.keys),
        ):
            labels = [f"{value:.2f}" for value in values]
            lengths.append(drawing.bars(values.tolist(), names, title=title, labels=labels))
        return drawing.below([cosines, drawing.tiles(lengths, title="")])

    def lines(self, width: int = 100) -> list[str]:
        # Shades begin at 0, but cosines may be negative.
        cosines = np.nan_to_num(self.cosines, nan=-1.0)
        shades = np.clip((cosines + 1) / 2, 0, 1)
        lines = terminal.heat(cosines, self.queries, self.keys, width=width, shades=shades)
        rows = [["", "shortest", "mean", "longest", "of"]]
        for what, values, names in (
            ("|q|", self.query_lengths, self.queries),
            ("|k|", self.key_lengths, self.keys),
        ):
            longest = drawing.shown(names[int(values.argmax())])
            numbers = (values.min(), values.mean(), values.max())
            rows.append([what, *(f"{value:.2f}" for value in numbers), longest])
        shares = f"by angle {self.by_angle:.2f}, by the length of keys {self.by_length:.2f}"
        # The last line explains the shades of attention.
        scale = "from blank (cos θ = −1, or not visible) to full (cos θ = 1)"
        return [*lines[:-1], scale, "", *terminal.table(rows), "", f"variance of scores: {shares}"]


def angles(run: Look, name: str | None = None, head: int = 0) -> Angles:
    """The lengths and angles of one head of a recorded attention, by default of the last one."""
    name = name or list(run.probe.attentions)[-1]
    call = run.call(name)
    heads = call.q.shape[1]
    require_indices("head", [head], heads)
    q = call.q[0, head].float()  # [T, K]
    k = per_query_head(call.k, heads)[0, head].float()  # [S, K]
    q_lengths = torch.linalg.vector_norm(q, dim=-1)
    k_lengths = torch.linalg.vector_norm(k, dim=-1)
    products = q @ k.mT
    cosines = products / (q_lengths[:, None] * k_lengths).clamp_min(1e-30)  # [T, S]
    rows = torch.arange(len(q), device=q.device)
    visible = call.visible(rows)[0]  # [H or 1, T, S]
    visible = visible[head % len(visible)].expand_as(cosines)
    counts = visible.sum(dim=-1, keepdim=True).clamp_min(1)

    def mean(values: torch.Tensor) -> torch.Tensor:
        """The mean over the visible keys of each query: [T, 1]."""
        return torch.where(visible, values, 0.0).sum(dim=-1, keepdim=True) / counts

    def explained(guess: torch.Tensor) -> float:
        """The share of the variance over keys that a guess of the scores [T, S] explains."""
        spread = torch.where(visible, products - mean(products), 0.0).square().sum()
        rest = products - guess
        rest = torch.where(visible, rest - mean(rest), 0.0).square().sum()
        return 1.0 - (rest / spread.clamp_min(1e-30)).item()

    query_names, key_names = run.labels(name)
    return Angles(
        name,
        head,
        query_names,
        key_names,
        array(cosines.masked_fill(~visible, torch.nan)),
        array(q_lengths),
        array(k_lengths),
        explained(q_lengths[:, None] * mean(k_lengths.expand_as(cosines)) * cosines),
        explained(q_lengths[:, None] * k_lengths * mean(cosines)),
    )
