"""How much each head matters, to first order: by how much the loss would change if what it finds were dimmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.probe import Edit, Probe
from regard.look import drawing, terminal
from regard.look.recording import array
from regard.look.result import Array, Result
from regard.look.target import (
    Batch,
    Head,
    Holds,
    Model,
    Subject,
    at_rest,
    attentions,
    batch,
    run,
    subject_of,
)
from regard.model import Decoder, EncoderDecoder

ROWS = 32  # texts at once


@dataclass(frozen=True)
class Importance(Result):
    """Σ |ξ ∂loss/∂ξ| over all places, ξ being what scales a head's finding there, and 1 in the model as it is; each attention's
    heads have the length 1 together, so that layers can be compared (Michel et al. 2019)."""

    names: tuple[str, ...]
    values: Array  # [attentions, heads]

    note = "An estimate to first order, of all heads in one backward pass. `ablation` switches each off instead."

    @property
    def title(self) -> str:
        return "importance of heads: |∂loss / ∂head|"

    def numpy(self) -> Array:
        return self.values

    def scene(self) -> drawing.Scene:
        columns = [str(head) for head in range(self.values.shape[1])]
        inside = [
            ["" if np.isnan(value) else f"{value:.2f}" for value in row] for row in self.values
        ]
        return drawing.heat(
            np.nan_to_num(self.values), self.names, columns, title=self.title, inside=inside
        )

    def lines(self, width: int = 100) -> list[str]:
        return terminal.by_head(self.names, self.values, ".3f", width=width)

    def least(self, count: int, names: Callable[[str], bool] = lambda name: True) -> list[Head]:
        """The heads that matter least, first; of each attention one is left."""
        rows = [i for i, name in enumerate(self.names) if names(name)]
        left = {i: int(np.isfinite(self.values[i]).sum()) for i in rows}
        known = sorted((self.values[i, h], i, h) for i in rows for h in range(left[i]))
        chosen: list[Head] = []
        for _, i, head in known:
            if len(chosen) < count and left[i] > 1:
                left[i] -= 1
                chosen.append((self.names[i], head))
        return chosen


def importance(
    held: Subject | Holds, texts: Sequence[str], targets: Sequence[str] | None = None
) -> Importance:
    """On these texts. The loss of a model that writes is that of the targets, or of the texts themselves; that of others is of
    what they say themselves. A block that is applied in several layers is one, under the name of the first."""
    subject = subject_of(held)
    parts = attentions(subject.model)
    totals = {
        name: torch.zeros(part.heads, dtype=torch.float64, device=subject.device)
        for name, part in parts.items()
    }
    for i in range(0, len(texts), ROWS):
        few = batch(
            subject, texts[i : i + ROWS], None if targets is None else targets[i : i + ROWS]
        )
        for name, value in _sums(subject.model, few).items():
            totals[name] += value
    first: dict[int, str] = {}
    for name, part in parts.items():
        first.setdefault(id(part), name)
        if first[id(part)] != name:
            totals[first[id(part)]] += totals.pop(name)
    values = np.full((len(totals), max(len(total) for total in totals.values())), np.nan)
    for row, total in zip(values, totals.values(), strict=True):
        row[: len(total)] = array(total / torch.linalg.vector_norm(total).clamp_min(1e-30))
    return Importance(tuple(totals), values)


def _sums(model: Model, data: Batch) -> dict[str, Tensor]:
    """Of each attention, [H]: the gradient times what it is of is the derivative by a scale at that place."""
    found: dict[str, Tensor] = {}

    def seen(name: str) -> Edit:
        def edit(mixed: Tensor) -> Tensor:
            found[name] = mixed
            return mixed

        return edit

    edits = {f"{name}.mixed": seen(name) for name in attentions(model)}
    with torch.inference_mode(False), torch.enable_grad(), at_rest(model, gradients=True):
        given = [
            None if part is None else part.clone()
            for part in (data.inputs, data.outputs, data.padding_mask)
        ]
        assert given[0] is not None
        said = run(model, given[0], given[1], given[2], Probe(edits=edits))
        asked = data.asked if isinstance(model, EncoderDecoder | Decoder) else _own(said, data)
        loss = functional.cross_entropy(
            said.float().flatten(0, -2), asked.flatten(), ignore_index=-1, reduction="sum"
        )
        names = list(found)
        gradients = torch.autograd.grad(loss, [found[name] for name in names])
    return {
        name: (found[name].detach() * gradient).sum(dim=-1).abs().sum(dim=(0, 2)).double()
        for name, gradient in zip(names, gradients, strict=True)
    }


def _own(said: Tensor, data: Batch) -> Tensor:
    """The likeliest answer, for the input or for each real place of it."""
    best = said.detach().argmax(dim=-1)
    return best if best.ndim == 1 else best.masked_fill(~data.padding_mask, -1)
