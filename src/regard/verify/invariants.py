"""Two ways, one answer: what must be true of every model, whatever its weights."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.build import CoreModel
from regard.core import softmax_attention
from regard.families import folder as folders
from regard.families.folder_write import write_model
from regard.model import Decoder, EncoderDecoder
from regard.model_variants import TokenHistory
from regard.verify.random_inputs import Batch, Found, front_end, padding, random_batch, run

# Times the mean of what is compared, if that is above 1. The invariants are of the mathematics, not of its rounding, so
# float64 is the precision to see them in; deep models lose four digits of float32 on the way.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(frozen=True)
class Finding:
    """`difference` is None where there is nothing to compare; `note` says why, or what was largest."""

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
    def ratio(self) -> float:
        return (self.difference or 0.0) / max(self.tolerance, 1e-300)

    def data(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def findings(model: CoreModel, opened: folders.ModelFolder, seed: int = 0) -> Iterator[Finding]:
    """One after the other; `model` is what `opened` describes, in evaluation mode and in float64 or float32."""
    pad = padding(opened.config)
    batch = random_batch(opened.spec, pad, seed).like(model)
    compare = Comparison(TOLERANCES[next(model.parameters()).dtype])
    yield _cached(model, batch, compare)
    yield compare("batched = single", *_one_by_one(model, batch))
    reason = _why_not_padded(opened.spec)
    if reason:
        yield Finding("padded = unpadded", None, 0.0, reason)
    else:
        yield compare("padded = unpadded", *_one_by_one(model, batch.padded(pad)))
    asked = batch if reason else batch.padded(pad)
    with with_kernel(model, softmax_attention.explicit):
        written_out = run(model, asked)
    fused = run(model, asked)
    yield compare("fused = explicit", *_pairs(fused, written_out))
    yield _saved(opened)


class Comparison:
    """The largest difference between outputs, against a relative tolerance; `rounding` is what each output is allowed at
    least."""

    def __init__(self, relative: float, rounding: Mapping[str, float] | None = None) -> None:
        self.relative = relative
        self.rounding = rounding or {}

    def __call__(self, name: str, *pairs: tuple[str, Tensor, Tensor]) -> Finding:
        """`pairs` are (which output, found, wanted). The finding is of the one that goes farthest beyond what is allowed, or
        comes closest to it."""
        found = [self._one(name, *pair) for pair in pairs]
        return max(found, key=lambda one: math.inf if math.isnan(one.ratio) else one.ratio)

    def _one(self, name: str, what: str, found: Tensor, wanted: Tensor) -> Finding:
        tolerance = self.relative * max(1.0, wanted.abs().double().mean().item())
        tolerance = max(tolerance, 4 * self.rounding.get(what, 0.0))
        if found.shape != wanted.shape:
            return Finding(
                name, math.inf, tolerance, f"{what}: {tuple(found.shape)} and {tuple(wanted.shape)}"
            )
        return Finding(name, (found.double() - wanted.double()).abs().max().item(), tolerance, what)


def _cached(model: CoreModel, batch: Batch, compare: Comparison) -> Finding:
    """Token by token from a cache, in pieces of one, two and the rest, against all at once."""
    name = "cached = uncached"
    if not isinstance(model, (EncoderDecoder, Decoder)):
        return Finding(name, None, 0.0, "this model does not decode")
    with torch.inference_mode():
        if isinstance(model, Decoder):
            tokens = batch.given["input_ids"]
            state = model.start(model.encode(tokens[:, :1]), capacity=tokens.shape[1])
            if isinstance(state.layers[0].self_attention, TokenHistory):
                return Finding(
                    name, None, 0.0, "this model reads the whole text anew for each token"
                )
        else:
            tokens = batch.given["decoder_input_ids"]
            state = model.start(model.encode(batch.given[batch.main]), capacity=tokens.shape[1])
        pieces = [
            model.step(piece, state) for piece in tokens.split(_pieces(tokens.shape[1]), dim=1)
        ]
    return compare(name, ("logits", torch.cat(pieces, 1), run(model, batch)["logits"].tensor))


def _pieces(length: int) -> list[int]:
    pieces: list[int] = []
    for wanted in (1, 2, length):
        left = length - sum(pieces)
        pieces += [min(wanted, left)] if left else []
    return pieces


def _one_by_one(model: CoreModel, batch: Batch) -> list[tuple[str, Tensor, Tensor]]:
    """All rows together, against each alone."""
    together, compared = run(model, batch), []
    for row in range(len(batch.lengths)):
        alone = run(model, batch.alone(row))
        names = [
            name for name in together if not name.startswith("logits_per")
        ]  # these are of pairs of rows
        compared += [
            (f"{name}, row {row + 1}", together[name].row(row), alone[name].row(0))
            for name in names
        ]
    return compared


def _pairs(found: dict[str, Found], wanted: dict[str, Found]) -> list[tuple[str, Tensor, Tensor]]:
    return [(name, found[name].seen, wanted[name].seen) for name in found]


def _why_not_padded(model: kinds.Model) -> str:
    if isinstance(model, kinds.MemoryNetwork):
        return ""
    front = front_end(model)
    if isinstance(front, kinds.Patches):
        return "images have no padding"
    if isinstance(front, kinds.Spectrogram):
        return "sound is filled with silence to one length, which this model hears"
    if isinstance(front, kinds.Waveform) and any(
        isinstance(c.norm, kinds.TimeNorm) for c in front.convolutions
    ):
        return "this model normalises over time, padding included: give it one recording at a time"
    if (
        isinstance(model, kinds.Encoder | kinds.Decoder)
        and isinstance(model.stack, kinds.Stack)
        and model.stack.rings
    ):
        return "chunks on a ring meet the padding at its end"
    return ""


@contextmanager
def with_kernel(model: CoreModel, kernel: softmax_attention.Kernel) -> Iterator[None]:
    parts = [
        part for part in model.modules() if isinstance(part, softmax_attention.SoftmaxAttention)
    ]
    before: list[Callable[..., Tensor]] = [part.kernel for part in parts]
    for part in parts:
        part.kernel = kernel
    try:
        yield
    finally:
        for part, old in zip(parts, before, strict=True):
            part.kernel = old


def _saved(opened: folders.ModelFolder) -> Finding:
    """Written and read again, every tensor has the same bytes."""
    with tempfile.TemporaryDirectory(prefix="regard-verify-") as place:
        write_model(Path(place), opened)
        again = folders.read(place)
        different = 0.0 if again.spec == opened.spec and again.ids == opened.ids else math.inf
        for name, tensor in opened.weights.items():
            other = again.weights.get(name)
            if (
                other is None
                or other.dtype != tensor.dtype
                or not torch.equal(_bits(other), _bits(tensor))
            ):
                return Finding("saved = loaded", math.inf, 0.0, name)
    return Finding(
        "saved = loaded", different, 0.0, f"{len(opened.weights)} tensors, byte for byte"
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
