"""Checks of an update: the sign of the loss, parts without gradient, weights that stay."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from regard.lab.doctor.information_checks import order_tells
from regard.lab.doctor.run_evidence import RunEvidence
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.information_flow import forward

BLOCK_NAME = re.compile(r"^(.*?)\.(\d+)\.")  # encoder.blocks.3.… → encoder.blocks, 3
BATCHES = 3  # whose gradients are summed: a part may be unused by one
# The initial gradient of the first layer, as a share of the last one's. Four post-norm layers keep
# about a half; 24 keep 0.001 to 0.2, by seed. Twelve train, eighteen diverge (Liu et al., 2020,
# Understanding the Difficulty of Training Transformers). At a typical 15 % a layer the bound
# is reached after 19. Pre-norm has more in its first layers than in its last.
FADED = 0.05
# The other way round, an excess of the first layer is usual with pre-norm, by the root of depth.
EXPLODED = 300.0
SMALL_STEP = 1e-3  # of the weights' own size, down the gradient
MOSTLY_SMOOTHED = 0.5  # the loss asks more for the other labels than for the right one
FEW_STEPS = 20  # of a run, in which its weights may be where they were
STAYED = 0.01  # of the way that training went: what was exported has not gone along
LAGS = 0.3  # the same of an average


def check_gradients(run: RunEvidence) -> Iterator[Finding]:
    if not run.batches:
        return
    with run.loaded(run.initial):
        gradients = _gradients(run)
        if gradients:
            yield from wrong_sign(run, gradients)
            yield from order_unseen(run)
    yield from parts_without_gradient(run, gradients)
    # A healthy run proves that its gradients arrive.
    if run.is_weak or not run.has_run:
        yield from gradient_by_layer(gradients)
    yield from unmoved_weights(run)


def _gradients(run: RunEvidence) -> dict[str, Tensor]:
    """The gradient of each parameter that gets one, over some batches, without dropout."""
    model = run.objective.model
    for loss, _ in run.losses(BATCHES):
        if loss.requires_grad:
            loss.backward()
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return gradients


def _stacks(names: Mapping[str, Tensor]) -> dict[str, dict[int, list[Tensor]]]:
    """Tensors by stack and layer."""
    stacks: dict[str, dict[int, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for name, tensor in names.items():
        match = BLOCK_NAME.match(name)
        if match is not None:
            stacks[match[1]][int(match[2])].append(tensor)
    return stacks


# --- the sign -------------------------------------------------------------------------------------


@torch.no_grad()
def wrong_sign(run: RunEvidence, gradients: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Whether a small step down the loss makes the labels likelier, as it should."""
    if run.recipe.train.label_smoothing > MOSTLY_SMOOTHED:
        return
    objective = run.objective
    parameters = dict(objective.model.named_parameters())
    loss, nll = _losses(run)
    size = math.sqrt(sum(float(p.double().square().sum()) for p in parameters.values()))
    length = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
    if not math.isfinite(length) or length == 0:
        return
    for name, gradient in gradients.items():
        parameters[name].sub_(gradient, alpha=SMALL_STEP * size / length)
    lower_loss, other_nll = _losses(run)
    fallen = loss - lower_loss
    is_negative = objective.labels_are_classes and nll < 0
    if is_negative or (fallen > 0 and other_nll - nll > fallen / 2):
        evidence = (
            f"a small step down the loss raises −log p of the labels by {other_nll - nll:.1e}"
        )
        if is_negative:
            evidence = f"−log p of the labels is {nll:.2f}, which no probability has"
        yield Finding(
            "wrong_sign",
            evidence,
            "the loss has the wrong sign: training makes the labels less likely",
            "minimize −log p, not log p",
            0.97,
        )


def _losses(run: RunEvidence) -> tuple[float, float]:
    """The loss and −log p of the first batches, by the same random numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss, nll = torch.stack(list(run.losses(BATCHES))).double().mean(dim=0).tolist()
    return loss, nll


# --- parts without gradient -----------------------------------------------------------------------


def parts_without_gradient(run: RunEvidence, gradients: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Layers that no gradient reaches, or that are where they were when all others have moved."""
    tune = run.recipe.tune
    if tune.freeze is not None or tune.lora:
        return
    parameters = dict(run.objective.model.named_parameters())
    nothing = torch.zeros(1)
    reached = {name: gradients.get(name, nothing).abs().max() for name in parameters}
    silent = _silent_layers(reached)
    evidence = "no parameter of {} gets a gradient"
    if not silent and run.saved is not None and run.log.last_step > FEW_STEPS:
        weights = run.saved.groups["weights"]
        moved = {name: (weights[name] - began).abs().max() for name, began in run.initial.items()}
        silent = _silent_layers(moved)
        evidence = f"no parameter of {{}} has moved in {run.log.last_step:,} steps"
    if silent:
        yield Finding(
            "no_gradient",
            evidence.format(", ".join(silent[:3])),
            f"{len(silent)} layers are not trained: the loss is detached from them",
            "look for detach(), no_grad() and requires_grad_(False) on the way to the loss",
            0.92,
        )


def _silent_layers(sizes: Mapping[str, Tensor]) -> list[str]:
    """The layers all of whose sizes are zero, if others are not."""
    if not any(size > 0 for size in sizes.values()):
        return []
    return [
        f"{stack}.{number}"
        for stack, layers in _stacks(sizes).items()
        for number, values in layers.items()
        if all(value == 0 for value in values)
    ]


def gradient_by_layer(gradients: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Gradients of the first layers far from those of the last, as training began."""
    # Biases and norms have other sizes.
    matrices = {name: gradient for name, gradient in gradients.items() if gradient.ndim >= 2}
    for stack, layers in _stacks(matrices).items():
        if len(layers) < 3:
            continue  # two layers have no course
        first, last = (
            math.sqrt(sum(float(one.double().square().sum()) for one in layers[number]))
            for number in (min(layers), max(layers))
        )
        evidence = (
            f"at initialization the gradient norm of {stack}.{min(layers)} is {first:.1e}, "
            f"that of {stack}.{max(layers)} is {last:.1e}"
        )
        if first < FADED * last:
            yield Finding(
                "vanishing_gradients",
                evidence,
                f"gradients vanish in a stack of {len(layers)} layers",
                "use pre-norm (residual = pre), or fewer layers and a longer warmup",
                0.85,
            )
        elif first > EXPLODED * last:
            yield Finding(
                "exploding_gradients",
                evidence,
                f"gradients explode in a stack of {len(layers)} layers",
                "use pre-norm (residual = pre), smaller initial weights, or max_grad_norm = 1.0",
                0.85,
            )


# --- weights that stay ----------------------------------------------------------------------------


def unmoved_weights(run: RunEvidence) -> Iterator[Finding]:
    """Exported weights that are still those of the start, when training has gone on."""
    if run.weights is None or run.saved is None or run.log.last_step <= FEW_STEPS:
        return
    trained = _distance(run.saved.groups["weights"], run.initial)
    exported = _distance(run.weights, run.initial)
    least = STAYED
    if run.recipe.train.final_weights.startswith(("ema", "average")):
        least = LAGS
    if exported < least * trained:
        yield Finding(
            "unmoved_weights",
            f"the exported weights have gone {100 * exported / trained:.2g} % of the way that "
            f"training went in {run.log.last_step:,} steps",
            "what is exported is close to the initial weights: an average that had no time, or "
            "weights that were never updated",
            "set final_weights = best, or an average over fewer steps",
            0.93,
        )


def _distance(weights: Mapping[str, Tensor], began: Mapping[str, Tensor]) -> float:
    squares = sum(float((weights[n] - one).double().square().sum()) for n, one in began.items())
    return math.sqrt(squares)


# --- order ----------------------------------------------------------------------------------------


@torch.no_grad()
def order_unseen(run: RunEvidence) -> Iterator[Finding]:
    """A Transformer of texts to which a text and its reverse are the same."""
    objective = run.objective
    core = objective.trained_model.model
    name = "source" if "source" in run.batches[0].tensors else "tokens"
    tokens = run.batches[0].tensors.get(name)
    if tokens is None or tokens.ndim != 2 or core.writes != core.reads_target:
        return
    mask = run.batches[0].tensors.get("padding_mask")
    length = tokens.shape[1]
    if mask is not None:
        length = int(mask[0].sum())
    row = tokens[:1, :length].to(run.device)
    inputs = {name: row}
    if core.reads_target:
        inputs["target"] = run.batches[0].tensors["target"][:1].to(row.device)
    straight, _ = forward(objective.trained_model, inputs)
    backward, _ = forward(objective.trained_model, inputs | {name: row.flip(1)})
    if straight is None or backward is None or length < 4 or torch.equal(row, row.flip(1)):
        return
    if not core.reads_target:
        backward = backward.flip(1)
    if torch.allclose(straight, backward, rtol=1e-4, atol=1e-5) and order_tells(run):
        yield Finding(
            "order_unseen",
            "the model's output for a text read backwards is the same",
            "the model has no positions: a text is a bag of words to it",
            "set position, e.g. position = sinusoidal or rope",
            0.8,
        )
