"""Checks of a forward pass: dead units, and attention that is one-hot or uniform."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from regard.core.context import Context
from regard.core.probe import AttentionCall, Probe
from regard.lab.doctor.run_evidence import RunEvidence
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.information_flow import ROWS, forward
from regard.training.diagnostics.nonfinite import ModelTracker
from regard.training.objectives.objective import CarriesState

DEAD_SHARE = 0.8  # of a layer's units; half of those of a ReLU are off at any one token
BATCHES = 4  # whose activations are counted
SATURATED = 1e-8  # the second largest attention weight, where the softmax has no gradient
# How much of its earlier deviation from uniform weights an attention has left. The deviation goes
# with the square of the scores, so that these are a tenth of what they were.
UNIFORM = 1e-2
# 1 − entropy / log n that counts as uniform. Weights of deviation 0.02 begin with 1e-5 to 1e-3, and
# heads that have learnt anything have 0.1 and more.
NEARLY_UNIFORM = 1e-2


def check_activations(run: RunEvidence) -> Iterator[Finding]:
    if run.weights is not None and all(t.isfinite().all() for t in run.weights.values()):
        yield from dead_units(run)
        yield from attention_weights(run)


# --- dead units -----------------------------------------------------------------------------------


_ACTIVATIONS = ("relu", "gelu", "silu")


class _UnitActivity(TorchDispatchMode):
    """The largest activation of each unit of the feed-forward layers, by module."""

    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.largest: dict[str, Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _ACTIVATIONS:
            names = [name for name in self.tracker.parents if "feedforward" in name]
            if names:
                module = max(names, key=len).partition(".")[2]
                size = result.abs().reshape(-1, result.shape[-1]).amax(dim=0)  # [F]
                before = self.largest.get(module)
                self.largest[module] = size if before is None else torch.maximum(before, size)
        return result


def _dead_shares(run: RunEvidence) -> dict[str, float]:
    """The share of units that no position of some batches activates, by module."""
    tracker = ModelTracker(run.objective.model)
    activity = _UnitActivity(tracker)
    # With gradients: the tracker asks for those of parameters that are inputs of modules (DeBERTa).
    with torch.enable_grad(), tracker, activity:
        list(run.losses(BATCHES))
    return {
        # GELU and SiLU come close to zero, and never reach it.
        module: float((largest < 1e-6).to(torch.float32).mean())
        for module, largest in activity.largest.items()
    }


def dead_units(run: RunEvidence) -> Iterator[Finding]:
    """Units of a feed-forward layer that nothing activates, and that were alive at the start."""
    assert run.weights is not None
    with run.loaded(run.weights):
        now = _dead_shares(run)
    worst = max(now, key=lambda module: now[module], default=None)
    if worst is None or now[worst] < DEAD_SHARE:
        return
    # Some activations are never positive by chance, even of new weights.
    with run.loaded(run.initial):
        began = _dead_shares(run)
    yield Finding(
        "dead_units",
        f"{100 * now[worst]:.0f} % of the units of {worst} are zero for every token, "
        f"{100 * began.get(worst, 0.0):.0f} % at initialization",
        "the units of a feed-forward layer are dead: no gradient reaches them",
        "lower learning_rate, use activation = gelu, or reinitialize that layer",
        0.9,
    )


# --- attention ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionSummary:
    """One attention over some rows, the median over positions; of all its heads the extreme."""

    deviation: float  # 1 − entropy / log n of the head that is farthest from uniform
    second: float  # the largest, over heads, of the second largest weight


def _summaries(run: RunEvidence) -> dict[str, AttentionSummary]:
    probe = Probe(["*.weights"])
    objective = run.objective
    objective.model.eval()
    with torch.no_grad():
        model = objective.trained_model
        tensors = {
            key: tensor[:ROWS].to(model.device)
            for key, tensor in run.batches[0].tensors.items()
            if tensor.ndim
        }
        # A language model that carries its state on has as many rows as its batches.
        if isinstance(objective, CarriesState) and model.model.writes:
            return {}
        forward(model, tensors, Context(probe=probe))
        summaries = {}
        for name, call in probe.attentions.items():
            summary = _summary(call)
            if summary is not None:
                summaries[name] = summary
    return summaries


def _summary(call: AttentionCall) -> AttentionSummary | None:
    rows = torch.arange(call.q.shape[2], device=call.q.device)
    # In float64: saturated weights differ by less than float32 can tell.
    weights = call.weights().double().clamp_min(0)  # [B, H, T, S]
    # Not every kernel's weights sum to one.
    weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-30)
    visible = call.visible(rows).expand(weights.shape).sum(dim=-1)  # [B, H, T]
    counted = (visible >= 4).all(dim=1)  # [B, T]: positions with a choice
    if not counted.any():
        return None
    entropy = -torch.xlogy(weights, weights).sum(dim=-1) / visible.clamp_min(2).double().log()
    second = weights.topk(2, dim=-1).values[..., 1]  # [B, H, T]
    return AttentionSummary(
        deviation=float((1 - entropy).transpose(1, 2)[counted].median(dim=0).values.max()),
        second=float(second.transpose(1, 2)[counted].median(dim=0).values.max()),
    )


def _earlier_summaries(run: RunEvidence) -> dict[str, AttentionSummary]:
    """What attention was: as training began, or in an earlier checkpoint if that is sharper.

    New weights of a small deviation attend to all positions almost alike. Whether a head has lost
    what it had learnt shows only beside a checkpoint from between.
    """
    with run.loaded(run.initial):
        began = _summaries(run)
    if run.earlier is None:
        return began
    with run.loaded(run.earlier.groups["weights"]):
        between = _summaries(run)
    return {
        name: AttentionSummary(
            max(began[name].deviation, between[name].deviation),
            # Saturation is judged against the start: there it was not.
            began[name].second,
        )
        for name in began
    }


def _still_learns(run: RunEvidence) -> bool:
    """Whether the weights are better than in the earlier checkpoint: damaged ones are not."""
    assert run.weights is not None
    if run.earlier is None:
        return False
    losses = []
    for weights in (run.weights, run.earlier.groups["weights"]):
        with torch.no_grad(), run.loaded(weights):
            losses.append(float(torch.stack(list(run.losses(BATCHES)))[:, 1].mean()))
    return losses[0] < losses[1]


def attention_weights(run: RunEvidence) -> Iterator[Finding]:
    """Attention that has become one-hot in all heads, or uniform, compared with the start."""
    assert run.weights is not None
    with run.loaded(run.weights):
        now = _summaries(run)
    began = _earlier_summaries(run)
    saturated = [
        name
        for name, summary in now.items()
        if summary.second < SATURATED and began[name].second > SATURATED
    ]
    uniform = [
        name
        for name, summary in now.items()
        if summary.deviation < min(NEARLY_UNIFORM, UNIFORM * began[name].deviation)
    ]
    if saturated:
        yield Finding(
            "saturated_attention",
            f"all heads of {', '.join(saturated[:3])} attend to one position only",
            "attention has collapsed: the softmax is saturated and has no gradient",
            "scale down or reinitialize its query and key weights; lower learning_rate",
            0.85,
        )
    # Before a translator has learnt where to look, its random cross-attention becomes uniform.
    if all(name.endswith(".cross") for name in uniform) and _still_learns(run):
        return
    if uniform:
        yield Finding(
            "uniform_attention",
            f"all heads of {', '.join(uniform[:3])} attend almost equally to all positions, "
            "more than at initialization",
            "attention is uniform: queries or keys carry no information",
            "reinitialize the query and key weights of these layers; check for zeroed weights",
            0.85,
        )
