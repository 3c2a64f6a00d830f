"""Head importance by gradients: how the loss would change if a head were dimmed, to first order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.probe import Edit, Probe
from regard.look import drawing
from regard.look.arguments import require_texts
from regard.look.drawing import terminal
from regard.look.forward import evaluation_mode, forward
from regard.look.inspectable import Inspectable
from regard.look.model_inputs import IGNORED, LabelledBatch, batch
from regard.look.probe_names import Head, attentions
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array
from regard.look.views import require_view
from regard.wirings.core_model import CoreModel

ROWS = 32  # texts in a batch


@dataclass(frozen=True)
class Importance(AnalysisResult):
    """Σ |ξ ∂loss/∂ξ| over all positions, where ξ = 1 is a gate on a head's output (Michel 2019).

    The heads of each attention are scaled to a norm of 1 together, so that layers can be compared.
    """

    names: tuple[str, ...]
    values: Array  # [attentions, heads]

    note = (
        "An estimate to first order, of all heads in one backward pass. "
        "`ablation` removes each one instead."
    )

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
        """The least important heads, ascending; one head of each attention is spared."""
        rows = [i for i, name in enumerate(self.names) if names(name)]
        remaining = {i: int(np.isfinite(self.values[i]).sum()) for i in rows}
        ranked = sorted(
            (self.values[row, head], row, head) for row in rows for head in range(remaining[row])
        )
        least: list[Head] = []
        for _, row, head in ranked:
            if len(least) < count and remaining[row] > 1:
                remaining[row] -= 1
                least.append((self.names[row], head))
        return least


def importance(
    model: Inspectable, texts: Sequence[str], targets: Sequence[str] | None = None
) -> Importance:
    """The importance of each head on these texts.

    The loss is that of the targets, of a language model that of the texts, and of other models
    that of their own predictions. A block that several layers share counts once, under the name of
    its first application.
    """
    require_view(model, "ablation")
    require_texts(texts, targets)
    core = model.model
    modules = attentions(core)
    totals = {
        name: torch.zeros(module.heads, dtype=torch.float64, device=model.device)
        for name, module in modules.items()
    }
    for first in range(0, len(texts), ROWS):
        rows = slice(first, first + ROWS)
        data = batch(model, texts[rows], None if targets is None else targets[rows])
        # The loss is a sum, so batches of any size add up to the same.
        for name, value in _gate_gradients(core, data).items():
            totals[name] += value
    first_name: dict[int, str] = {}  # of each module
    # Shared modules (ALBERT) are pruned together, so their importance is summed.
    for name, module in modules.items():
        first_name.setdefault(id(module), name)
        if first_name[id(module)] != name:
            totals[first_name[id(module)]] += totals.pop(name)
    values = np.full((len(totals), max(len(total) for total in totals.values())), np.nan)
    for row, total in zip(values, totals.values(), strict=True):
        norm = torch.linalg.vector_norm(total).clamp_min(1e-30)
        row[: len(total)] = array(total / norm)
    return Importance(tuple(totals), values)


def _gate_gradients(model: CoreModel, data: LabelledBatch) -> dict[str, Tensor]:
    """Of each attention [H]: Σ |∂loss/∂gate|, where each head and position has a gate of 1.

    The derivative by such a gate is the output of the head times the gradient of that output.
    """
    outputs: dict[str, Tensor] = {}  # [B, H, T, E] each

    def record(name: str) -> Edit:
        def edit(mixed: Tensor) -> Tensor:
            outputs[name] = mixed
            return mixed

        return edit

    probe = Probe(edits={f"{name}.mixed": record(name) for name in attentions(model)})
    # Tensors made in inference mode cannot take part in autograd: hence the clones.
    with torch.inference_mode(False), evaluation_mode(model, gradients=True):
        decoder_inputs = None
        if data.decoder_inputs is not None:
            decoder_inputs = data.decoder_inputs.clone()
        padding_mask = data.padding_mask.clone()
        logits = forward(model, data.inputs.clone(), decoder_inputs, padding_mask, probe)
        labels = data.labels
        if not model.writes:
            labels = _predicted_labels(logits, data)
        loss = functional.cross_entropy(
            logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        gradients = torch.autograd.grad(loss, list(outputs.values()))
    sums = {}
    for (name, output), gradient in zip(outputs.items(), gradients, strict=True):
        gates = (output.detach() * gradient).sum(dim=-1)  # [B, H, T]
        sums[name] = gates.abs().sum(dim=(0, 2)).double()
    return sums


def _predicted_labels(logits: Tensor, data: LabelledBatch) -> Tensor:
    """The model's own predictions: [B] of a classifier, [B, T] with padding left out."""
    best = logits.detach().argmax(dim=-1)
    if best.ndim == 1:
        return best
    return best.masked_fill(~data.padding_mask, IGNORED)
