"""Checks of weights: not finite, erased, altered after they were written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote

import torch
from torch import Tensor

from regard.lab.doctor.run_evidence import RunEvidence
from regard.training.diagnostics.finding import Finding

NAMED = 3  # tensors that a finding names


def check_stored_weights(run: RunEvidence) -> Iterator[Finding]:
    yield from altered_weights(run)
    yield from nonfinite_weights(run)


def check_weights(run: RunEvidence) -> Iterator[Finding]:
    yield from check_stored_weights(run)
    yield from zero_weights(run)


def altered_weights(run: RunEvidence) -> Iterator[Finding]:
    """Weights that do not have the hash that was written with them."""
    if run.is_altered:
        yield Finding(
            "altered_weights",
            f"the hash of {run.run_folder.weights.name} differs from the recorded one",
            "the file was changed or damaged after it was written",
            "resume the run, which writes the file again: "
            f"regard train --resume {quote(str(run.run_folder.folder))}",
            0.8,
        )


def nonfinite_weights(run: RunEvidence) -> Iterator[Finding]:
    """NaN or infinity in stored weights, wherever they are stored."""
    stores: list[tuple[str, Mapping[str, Tensor]]] = [
        (run.run_folder.weights.name, run.exported_file)
    ]
    if run.saved is not None:
        stores.append((f"the checkpoint of step {run.saved.step}", run.saved.groups["weights"]))
    for place, tensors in stores:
        bad = [
            name
            for name, tensor in tensors.items()
            if tensor.is_floating_point() and not tensor.isfinite().all()
        ]
        if bad:
            yield Finding(
                "nonfinite_weights",
                f"{len(bad)} tensors of {place} contain NaN or infinity: {', '.join(bad[:NAMED])}",
                "the weights are damaged",
                "go back to an earlier checkpoint, or start again from an intact base model",
                0.97,
            )
            return
    yield from _nonfinite_while_training(run)


def _nonfinite_while_training(run: RunEvidence) -> Iterator[Finding]:
    """A skipped update whose trace ends in a weight: an update cannot have made it so.

    The optimizer leaves weights alone where gradients are not finite.
    """
    origins = [str(record["origin"]) for record in run.log.skipped if record.get("origin")]
    if not origins or not origins[0].startswith("the weights"):
        return
    step = int(run.log.skipped[0]["step"])
    yield Finding(
        "nonfinite_weights",
        f"from step {step} on, {origins[0]} contain NaN or infinity, "
        "which the optimizer never writes",
        "something other than the optimizer changed the weights: a callback, a file, or memory",
        "find the code that writes to parameters; continue from a checkpoint before that step",
        0.95,
        step,
    )


def zero_weights(run: RunEvidence) -> Iterator[Finding]:
    """Matrices that are zero for the most part and did not begin so."""
    erased = []
    for name, tensor in (run.weights or {}).items():
        began = run.initial.get(name)
        # Biases and gains begin at zero or one, and may stay there.
        if tensor.ndim < 2 or began is None:
            continue
        # Pruning leaves zeros on purpose, and seldom more than half before it is retrained.
        is_erased = _zero_share(tensor) > 0.5 and _zero_share(began) < 0.5
        # Queries, keys and values are one matrix here, and three in the files of others.
        has_lost_rows = _zero_rows(tensor) > 0.25 and _zero_rows(began) == 0
        if is_erased or has_lost_rows:
            erased.append(name)
    if erased:
        yield Finding(
            "zero_weights",
            f"{len(erased)} matrices are zero: {', '.join(erased[:NAMED])}",
            "the weights are damaged: training does not set matrices to zero",
            "go back to an earlier checkpoint, or to intact weights",
            0.95,
        )


def _zero_rows(tensor: Tensor) -> float:
    """The share of rows that are zero throughout."""
    return float((tensor == 0).flatten(1).all(dim=1).to(torch.float32).mean())


def _zero_share(tensor: Tensor) -> float:
    return float((tensor == 0).to(torch.float32).mean())
