"""Head ablation: what each attention head is worth, measured by zeroing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.probe import Probe
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.forward import evaluation_mode, forward
from regard.look.inspectable import Inspectable
from regard.look.model_inputs import IGNORED, LabelledBatch, batch
from regard.look.probe_names import Head, heads, switched_off
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array
from regard.look.views import require_view
from regard.system.errors import SettingError
from regard.wirings.core_model import CoreModel


@dataclass(frozen=True)
class Ablation(AnalysisResult):
    """What is lost when each head alone is ablated.

    Of a model that writes, the rise of its loss in nats a token; of others, the distance by which
    the output moves, relative to its norm.
    """

    names: tuple[str, ...]
    effect: Array  # [attentions, heads]
    measure: str
    baseline: float | None  # the loss with all heads

    note = (
        "Each head is zeroed separately, without retraining. Heads can replace each other, so a "
        "small effect does not mean that a head is useless."
    )

    @property
    def title(self) -> str:
        title = f"effect of ablating each head: {self.measure}"
        if self.baseline is not None:
            title += f", {self.baseline:.3f} with all heads"
        return title

    def numpy(self) -> Array:
        return self.effect

    def scene(self) -> drawing.Scene:
        columns = [str(head) for head in range(self.effect.shape[1])]
        inside = [[f"{value:+.3f}" for value in row] for row in self.effect]
        return drawing.heat(
            np.nan_to_num(self.effect),
            self.names,
            columns,
            title=self.title,
            signed=True,
            inside=inside,
        )

    def lines(self, width: int = 100) -> list[str]:
        return terminal.by_head(self.names, self.effect, "+.3f", width=width)


def ablation(
    model: Inspectable,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    names: Callable[[str], bool] = lambda name: True,
) -> Ablation:
    """The effect of ablating each head on these texts.

    An encoder–decoder's loss is that of the targets, a language model's that of the texts. `names`
    filters the attentions by their name.
    """
    require_view(model, "ablation")
    core = model.model
    data = batch(model, texts, targets)
    ablated_heads = heads(core, names)
    if not ablated_heads:
        raise SettingError(
            "the filter `names` selects no attention",
            "remove `names`, or let it accept at least one name",
        )
    attention_names = list(dict.fromkeys(name for name, _ in ablated_heads))
    head_count = max(head for _, head in ablated_heads) + 1
    # Layers may have different numbers of heads: what is missing stays NaN.
    effect = np.full((len(attention_names), head_count), np.nan)
    if core.writes:
        measure = "increase of the loss (nats per token)"
        baseline = loss(model, data)
        for name, head in ablated_heads:
            row = attention_names.index(name)
            effect[row, head] = loss(model, data, [(name, head)]) - baseline
        return Ablation(tuple(attention_names), effect, measure, baseline)
    measure = "relative change of the output"
    output = ablated_logits(model, data)
    for name, head in ablated_heads:
        row = attention_names.index(name)
        changed = ablated_logits(model, data, [(name, head)])
        effect[row, head] = _relative_distance(output, changed)
    return Ablation(tuple(attention_names), effect, measure, None)


def ablated_logits(model: Inspectable, data: LabelledBatch, off: Sequence[Head] = ()) -> Tensor:
    """The output of a model on a batch with some heads ablated; zero at padding."""
    core = model.model
    with evaluation_mode(core):
        probe = ablation_probe(core, off)
        logits = forward(core, data.inputs, data.decoder_inputs, data.padding_mask, probe)
    if data.decoder_inputs is None and logits.ndim == 3:
        logits = logits * data.padding_mask[..., None]  # [B, T, V]
    return logits


def ablation_probe(model: CoreModel, off: Sequence[Head]) -> Probe | None:
    """The probe that ablates heads; none is needed where no head is off."""
    if not off:
        return None
    return Probe(edits=switched_off(model, off))


def _relative_distance(output: Tensor, changed: Tensor) -> float:
    norm = torch.linalg.vector_norm(output).clamp_min(1e-30)
    return (torch.linalg.vector_norm(changed - output) / norm).item()


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
