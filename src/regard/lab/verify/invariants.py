"""What must be true of every model, whatever its weights: two ways, one answer."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import spec as specs
from regard.core.mixers import scaled_dot_product_attention
from regard.core.output import Outputs
from regard.families import folder as folders
from regard.families.folder import write_model
from regard.lab.verify.outputs import run
from regard.lab.verify.random_inputs import RandomBatch, pad_token_id, random_batch
from regard.wirings.core_model import CoreModel

# Relative to the mean of what is compared, if that is above 1. The invariants are of the
# mathematics, not of its rounding, so float64 is the precision to see them in; deep models lose
# four digits of float32 on the way.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}

# The name of an output, with its value in one way and in the other.
OutputPair = tuple[str, Tensor, Tensor]


@dataclass(frozen=True)
class Finding:
    """The result of one check: the largest difference, and the tolerance for it.

    `difference` is None where there is nothing to compare. `note` says why, or which output
    differs most.
    """

    name: str
    difference: float | None
    tolerance: float
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.difference is None:
            return "skipped"
        return "holds" if self.difference <= self.tolerance else "fails"  # a NaN fails

    @property
    def severity(self) -> float:
        """The difference as a multiple of the tolerance; that of a NaN is infinite."""
        ratio = (self.difference or 0.0) / max(self.tolerance, 1e-300)
        return math.inf if math.isnan(ratio) else ratio

    def data(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {**asdict(self), "verdict": self.verdict}


class OutputComparison:
    """Compares outputs up to a relative tolerance.

    `rounding_errors` are the errors of float32 by the name of an output; four times as much is
    allowed in any case.
    """

    def __init__(
        self, relative_tolerance: float, rounding_errors: Mapping[str, float] | None = None
    ) -> None:
        self.relative_tolerance = relative_tolerance
        self.rounding_errors = rounding_errors or {}

    def __call__(self, name: str, *pairs: OutputPair) -> Finding:
        """The finding of the pair that goes farthest beyond its tolerance, or comes closest."""
        findings = [self._compare(name, *pair) for pair in pairs]
        return max(findings, key=lambda finding: finding.severity)

    def _compare(self, name: str, output: str, actual: Tensor, expected: Tensor) -> Finding:
        magnitude = max(1.0, expected.abs().double().mean().item())
        tolerance = self.relative_tolerance * magnitude
        tolerance = max(tolerance, 4 * self.rounding_errors.get(output, 0.0))
        if actual.shape != expected.shape:
            shapes = f"{output}: {tuple(actual.shape)} and {tuple(expected.shape)}"
            return Finding(name, math.inf, tolerance, shapes)
        difference = (actual.double() - expected.double()).abs().max().item()
        return Finding(name, difference, tolerance, output)


def check_invariants(
    model: CoreModel, opened: folders.ModelFolder, seed: int = 0
) -> Iterator[Finding]:
    """Checks one invariant after the other.

    `model` is that of the folder `opened`, in evaluation mode and in float64 or float32.
    """
    pad = pad_token_id(opened.config)
    batch = random_batch(opened.spec, pad, seed).like(model)
    compare = OutputComparison(TOLERANCES[next(model.parameters()).dtype])
    yield _cached_is_uncached(model, batch, compare)
    yield compare("batched = single", *_rows_together_and_alone(model, batch))
    reason = _why_not_padded(opened.spec)
    if reason:
        yield Finding("padded = unpadded", None, 0.0, reason)
    else:
        batch = batch.padded(pad)
        yield compare("padded = unpadded", *_rows_together_and_alone(model, batch))
    with with_kernel(model, scaled_dot_product_attention.explicit):
        explicit = run(model, batch)
    fused = run(model, batch)
    yield compare("fused = explicit", *_output_pairs(fused, explicit))
    yield _saved_is_loaded(opened)


# ------------------------------------------------------------------ the invariants


def _cached_is_uncached(model: CoreModel, batch: RandomBatch, compare: OutputComparison) -> Finding:
    """Decoding from the KV cache, in pieces of 1, 2 and all other tokens, against one call."""
    name = "cached = uncached"
    with torch.inference_mode():
        cached = model.step_by_step(batch.inputs, _pieces)
    if not cached:
        return Finding(name, None, 0.0, "this model does not decode from a cache")
    uncached = run(model, batch)
    return compare(name, *((key, one.tensor, uncached[key].tensor) for key, one in cached.items()))


def _pieces(sequence: Tensor) -> tuple[Tensor, ...]:
    """1, 2 and the rest, as far as there are so many positions."""
    return sequence.split(_piece_lengths(sequence.shape[1]), dim=1)


def _piece_lengths(length: int) -> list[int]:
    lengths: list[int] = []
    for wanted in (1, 2, length):
        left = length - sum(lengths)
        if left:
            lengths.append(min(wanted, left))
    return lengths


def _rows_together_and_alone(model: CoreModel, batch: RandomBatch) -> list[OutputPair]:
    """Each row of the batch, as computed with the others and by itself."""
    together = run(model, batch)
    # The logits of a dual encoder are of pairs of rows: they have no counterpart in one alone.
    names = [name for name in together if not name.startswith("logits_per")]
    pairs = []
    for row in range(len(batch.lengths)):
        alone = run(model, batch.alone(row))
        for name in names:
            pairs.append((f"{name}, row {row + 1}", together[name].row(row), alone[name].row(0)))
    return pairs


def _output_pairs(actual: Outputs, expected: Outputs) -> list[OutputPair]:
    return [(name, actual[name].without_padding, expected[name].without_padding) for name in actual]


_UNPADDED: dict[str, str] = {
    "values": "windows of time series have no padding",
    "pixels": "images have no padding",
    "nodes": "batches of graphs are not padded",
    "frames": "audio is padded with silence to a fixed length, which this model reads",
}


def _why_not_padded(model: specs.Model) -> str:
    """The reason why a batch of this model cannot be padded; "" if it can."""
    front = next(iter(model.front_ends.values()), None)
    if isinstance(front, specs.Waveform) and front.normalizes_over_time:
        # The group norm of wav2vec 2.0 base takes its mean over all samples of a row.
        return "this model normalizes over time, including padding: pass one recording at a time"
    if model.pool is not None and model.pool.which == "final":
        return "texts are padded to a fixed length, and the model reads the padding"
    if any(stack.rings for stack in model.stacks.values()):
        return "circular chunked attention reads the padding"
    return _UNPADDED.get(model.inputs[0].kind, "")


def _saved_is_loaded(opened: folders.ModelFolder) -> Finding:
    """Writing the model and reading it again gives every tensor with the same bytes."""
    name = "saved = loaded"
    with tempfile.TemporaryDirectory(prefix="regard-verify-") as folder:
        write_model(Path(folder), opened)
        loaded = folders.read(folder, kinds=specs.own_kinds(opened.spec))
        for tensor_name, tensor in opened.weights.items():
            if not _same_bytes(tensor, loaded.weights.get(tensor_name)):
                return Finding(name, math.inf, 0.0, tensor_name)
        same_config = loaded.spec == opened.spec and loaded.ids == opened.ids
    difference = 0.0 if same_config else math.inf
    return Finding(name, difference, 0.0, f"{len(opened.weights)} identical tensors")


def _same_bytes(tensor: Tensor, other: Tensor | None) -> bool:
    if other is None or other.dtype != tensor.dtype:
        return False
    return torch.equal(_as_bytes(other), _as_bytes(tensor))


def _as_bytes(tensor: Tensor) -> Tensor:
    # Not the numbers, because a NaN does not equal itself.
    return tensor.contiguous().reshape(-1).view(torch.uint8)


# ------------------------------------------------------------------ attention kernels


@contextmanager
def with_kernel(model: CoreModel, kernel: scaled_dot_product_attention.Kernel) -> Iterator[None]:
    """Lets all softmax attention of the model run with this kernel."""
    mixers = [
        m for m in model.modules() if isinstance(m, scaled_dot_product_attention.SoftmaxAttention)
    ]
    before = [mixer.kernel for mixer in mixers]
    for mixer in mixers:
        mixer.kernel = kernel
    try:
        yield
    finally:
        for mixer, old in zip(mixers, before, strict=True):
            mixer.kernel = old
