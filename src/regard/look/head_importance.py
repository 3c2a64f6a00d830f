"""What each attention head is worth: by ablation, and by gradients (Michel et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.probe import Probe
from regard.look.forward import evaluation_mode, forward
from regard.look.inspectable import Inspectable
from regard.look.model_inputs import IGNORED, LabelledBatch, batch
from regard.look.probe_names import Head, attentions, heads, require_texts, switched_off
from regard.look.recording import array
from regard.look.result import Array, HeadNumbers, Names, by_attention
from regard.look.views import require_view
from regard.wirings.core_model import CoreModel


@dataclass(frozen=True)
class Ablation(HeadNumbers):
    """What is lost when each head alone is ablated.

    Of a model that writes, the rise of its loss in nats a token; of others, the distance by which
    the output moves, relative to its norm.
    """

    names: Names
    effect: Array  # [attentions, heads]
    measure: str
    baseline: float | None  # the loss with all heads

    note = (
        "Each head is zeroed separately, without retraining. Heads can replace each other, so a "
        "small effect does not mean that a head is useless."
    )

    numbers = "effect"
    form = "+.3f"
    signed = True

    @property
    def title(self) -> str:
        title = f"effect of ablating each head: {self.measure}"
        return title if self.baseline is None else f"{title}, {self.baseline:.3f} with all heads"


def ablation(
    model: Inspectable,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
) -> Ablation:
    """The effect of ablating each head on these texts.

    An encoder–decoder's loss is that of the targets, a language model's that of the texts.
    """
    require_view(model, "ablation")
    core = model.model
    data = batch(model, texts, targets)
    effects: dict[str, list[float]] = {}
    baseline = None
    measure = "relative change of the output"
    if core.writes:
        baseline = loss(model, data)
        measure = "increase of the loss (nats per token)"
    output = ablated_logits(model, data)
    norm = torch.linalg.vector_norm(output).clamp_min(1e-30)
    for name, head in heads(core):
        off = [(name, head)]
        if baseline is None:
            distance = torch.linalg.vector_norm(ablated_logits(model, data, off) - output)
            value = (distance / norm).item()
        else:
            value = loss(model, data, off) - baseline
        effects.setdefault(name, []).append(value)
    effect = by_attention(list(map(np.array, effects.values())))
    return Ablation(tuple(effects), effect, measure, baseline)


def ablated_logits(model: Inspectable, data: LabelledBatch, off: Sequence[Head] = ()) -> Tensor:
    """The output of a model on a batch with some heads ablated; zero at padding."""
    core = model.model
    with evaluation_mode(core):
        logits = forward(core, data.named, Probe(edits=switched_off(core, off)))
    if data.decoder_inputs is None and logits.ndim == 3:
        logits = logits * data.padding_mask[..., None]  # [B, T, V]
    return logits


def loss(model: Inspectable, data: LabelledBatch, off: Sequence[Head] = ()) -> float:
    """The cross-entropy of the labels in nats a token, with some heads ablated."""
    logits = ablated_logits(model, data, off).float()
    return functional.cross_entropy(
        logits.flatten(0, 1), data.labels.flatten(), ignore_index=IGNORED
    ).item()


def right(model: Inspectable, data: LabelledBatch, off: Sequence[Head] = ()) -> Array:
    """[B] whether greedy decoding writes each target exactly, found by one forward pass.

    It does if at every position of the target its next token has the highest logit of those that
    decoding may choose.
    """
    logits = ablated_logits(model, data, off)
    banned_ids = model.special_tokens.banned if model.special_tokens else ()
    banned = torch.tensor(banned_ids, dtype=torch.long, device=logits.device)
    # By teacher forcing: a wrong token ends the agreement, whatever would follow it.
    predictions = logits.index_fill(-1, banned, float("-inf")).argmax(dim=-1)  # [B, T]
    correct = (predictions == data.labels) | (data.labels == IGNORED)
    return array(correct.all(dim=1))


ROWS = 32  # texts in a batch


@dataclass(frozen=True)
class Importance(HeadNumbers):
    """Σ |ξ ∂loss/∂ξ| over all positions, where ξ = 1 is a gate on a head's output (Michel 2019).

    The heads of each attention are scaled to a norm of 1 together, so that layers can be compared.
    """

    names: Names
    values: Array  # [attentions, heads]

    note = (
        "An estimate to first order, of all heads in one backward pass. "
        "`ablation` removes each one instead."
    )

    title = "importance of heads: |∂loss / ∂head|"
    numbers = "values"

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
    norms = [torch.linalg.vector_norm(total).clamp_min(1e-30) for total in totals.values()]
    scaled = [array(total / norm) for total, norm in zip(totals.values(), norms, strict=True)]
    return Importance(tuple(totals), by_attention(scaled))


def _gate_gradients(model: CoreModel, data: LabelledBatch) -> dict[str, Tensor]:
    """Of each attention [H]: Σ |∂loss/∂gate|, where each head and position has a gate of 1.

    The derivative by such a gate is the output of the head times the gradient of that output.
    """
    probe = Probe([f"{name}.mixed" for name in attentions(model)], gradients=True)
    # Tensors made in inference mode cannot take part in autograd: hence the clones.
    with torch.inference_mode(False), evaluation_mode(model, gradients=True):
        logits = forward(model, {name: one.clone() for name, one in data.named.items()}, probe)
        labels = data.labels if model.writes else _predicted_labels(logits, data)
        loss = functional.cross_entropy(
            logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        outputs = probe.tensors  # [B, H, T, E] each
        gradients = torch.autograd.grad(loss, [*outputs.values()])
    sums = {}
    for (name, output), gradient in zip(outputs.items(), gradients, strict=True):
        gates = (output.detach() * gradient).sum(dim=-1)  # [B, H, T]
        sums[name.removesuffix(".mixed")] = gates.abs().sum(dim=(0, 2)).double()
    return sums


def _predicted_labels(logits: Tensor, data: LabelledBatch) -> Tensor:
    """The model's own predictions: [B] of a classifier, [B, T] with padding left out."""
    best = logits.detach().argmax(dim=-1)
    return best if best.ndim == 1 else best.masked_fill(~data.padding_mask, IGNORED)
