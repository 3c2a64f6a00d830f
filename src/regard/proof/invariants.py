"""Two ways, one answer: what must be true of every model, whatever its weights."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.build import Model
from regard.core import mix
from regard.interop import folder as folders
from regard.interop.write import write_model
from regard.model import Decoder, EncoderDecoder
from regard.proof.batch import Batch, Found, front_end, padding, random_batch, run

TOLERANCE = 1e-5  # times the mean of what is compared, if that is above 1
# Long sums of products in float32, or angles that other libraries round otherwise.
WIDER = {"deberta-v2", "whisper", "clip", "clip_text_model", "clip_vision_model", "wav2vec2", "gemma"}


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

    def data(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def findings(model: Model, opened: folders.Opened, seed: int = 0) -> Iterator[Finding]:
    """One after the other; `model` is what `opened` describes, in evaluation mode."""
    pad = padding(opened.config)
    batch = random_batch(opened.spec, pad, seed).to(next(model.parameters()).device)
    compare = Comparison(opened.kind)
    yield _cached(model, batch, compare)
    yield compare("batched = single", *_one_by_one(model, batch))
    reason = _why_not_padded(opened.spec)
    if reason:
        yield Finding("padded = unpadded", None, 0.0, reason)
    else:
        yield compare("padded = unpadded", *_one_by_one(model, batch.padded(pad)))
    asked = batch if reason else batch.padded(pad)
    with _kernel(model, mix.explicit):
        written_out = run(model, asked)
    fused = run(model, asked)
    yield compare("fused = explicit", *_pairs(fused, written_out))
    yield _saved(opened)


class Comparison:
    """Largest difference against the tolerance of a family."""

    def __init__(self, kind: str) -> None:
        self.relative = TOLERANCE * (2 if kind in WIDER else 1)

    def __call__(self, name: str, *pairs: tuple[str, Tensor, Tensor]) -> Finding:
        """`pairs` are (what it is, found, wanted). The finding is the one that comes closest to its tolerance, or goes
        farthest beyond."""
        worst: Finding | None = None
        for what, found, wanted in pairs:
            tolerance = self.relative * max(1.0, wanted.abs().double().mean().item())
            if found.shape != wanted.shape:
                return Finding(name, float("inf"), tolerance, f"{what}: {tuple(found.shape)} and {tuple(wanted.shape)}")
            difference = (found.double() - wanted.double()).abs().max().item()
            if worst is None or not difference / tolerance <= (worst.difference or 0.0) / worst.tolerance:
                worst = Finding(name, difference, tolerance, what)
        assert worst is not None, "nothing was compared"
        return worst


def _cached(model: Model, batch: Batch, compare: Comparison) -> Finding:
    """Token by token from a cache, in pieces of one, two and the rest, against all at once."""
    name = "cached = uncached"
    if not isinstance(model, (EncoderDecoder, Decoder)):
        return Finding(name, None, 0.0, "this model does not decode")
    with torch.inference_mode():
        if isinstance(model, Decoder):
            tokens = batch.given["input_ids"]
            state = model.start(model.encode(tokens[:, :1]), capacity=tokens.shape[1])
        else:
            tokens = batch.given["decoder_input_ids"]
            state = model.start(model.encode(batch.given[batch.main]), capacity=tokens.shape[1])
        pieces = [model.step(piece, state) for piece in tokens.split(_pieces(tokens.shape[1]), dim=1)]
    return compare(name, ("logits", torch.cat(pieces, 1), run(model, batch)["logits"].tensor))


def _pieces(length: int) -> list[int]:
    pieces: list[int] = []
    for wanted in (1, 2, length):
        left = length - sum(pieces)
        pieces += [min(wanted, left)] if left else []
    return pieces


def _one_by_one(model: Model, batch: Batch) -> list[tuple[str, Tensor, Tensor]]:
    """All rows together, against each alone."""
    together, compared = run(model, batch), []
    for row in range(len(batch.lengths)):
        alone = run(model, batch.alone(row))
        names = [name for name in together if not name.startswith("logits_per")]  # these are of pairs of rows
        compared += [(f"{name}, row {row + 1}", together[name].row(row), alone[name].row(0)) for name in names]
    return compared


def _pairs(found: dict[str, Found], wanted: dict[str, Found]) -> list[tuple[str, Tensor, Tensor]]:
    return [(name, found[name].seen, wanted[name].seen) for name in found]


def _why_not_padded(model: kinds.Model) -> str:
    front = front_end(model)
    if isinstance(front, kinds.Patches):
        return "images have no padding"
    if isinstance(front, kinds.Frames):
        return "sound is filled with silence to one length, which this model hears"
    if isinstance(front, kinds.Waves) and any(isinstance(c.norm, kinds.TimeNorm) for c in front.convolutions):
        return "this model normalises over time, padding included: give it one recording at a time"
    return ""


@contextmanager
def _kernel(model: Model, kernel: mix.Kernel) -> Iterator[None]:
    parts = [part for part in model.modules() if isinstance(part, mix.Softmax)]
    before: list[Callable[..., Tensor]] = [part.kernel for part in parts]
    for part in parts:
        part.kernel = kernel
    try:
        yield
    finally:
        for part, old in zip(parts, before, strict=True):
            part.kernel = old


def _saved(opened: folders.Opened) -> Finding:
    """Written and read again, every tensor has the same bytes."""
    with tempfile.TemporaryDirectory(prefix="regard-verify-") as place:
        write_model(Path(place), opened)
        again = folders.read(place)
        different = 0.0 if again.spec == opened.spec and again.ids == opened.ids else float("inf")
        for name, tensor in opened.weights.items():
            other = again.weights.get(name)
            if other is None or other.dtype != tensor.dtype or not torch.equal(_bits(other), _bits(tensor)):
                return Finding("saved = loaded", float("inf"), 0.0, name)
    return Finding("saved = loaded", different, 0.0, f"{len(opened.weights)} tensors, byte for byte")


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
