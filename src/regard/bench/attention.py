"""How the cost of each attention grows with the length: seconds and bytes of mixing, and the exponents fitted to them.

What is measured is what differs: queries, keys and values are given, and the projections around them, which all kinds
share, are left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.build import build
from regard.core.pattern import Everything
from regard.family.vaswani import looking
from regard.memory import amount

SLOW = 20.0  # seconds: a case that needs more is measured once


@dataclass(frozen=True)
class Case:
    """One row of `heads` of d_k dimensions; `window` places are seen on each side, or as many keys made by Linformer."""

    kinds: tuple[str, ...]
    lengths: tuple[int, ...] = (2048, 4096, 8192, 16384, 32768)
    heads: int = 8
    d_k: int = 64
    window: int = 256
    rounds: int = 5


def _softmax(pattern: spec.Pattern) -> tuple[spec.Mixer, spec.Pattern]:
    return spec.Softmax(), pattern


def _bigbird(case: Case, length: int) -> tuple[spec.Mixer, spec.Pattern]:
    """Blocks of 64 as published: neighbours, the first and the last, three drawn ones."""
    near = spec.Either(spec.BlockLocal(64, 1), spec.Global(1, 1, 64))
    return _softmax(spec.Either(near, spec.RandomBlocks(64, 3)))


def _reformer(case: Case, length: int) -> tuple[spec.Mixer, spec.Pattern]:
    """Twice as many buckets as chunks of 64, told by two hashes, as published."""
    power = max(2, (2 * length // 64).bit_length() - 1)
    return spec.Lsh((2 ** (power // 2), 2 ** (power - power // 2))), spec.Everything()


Chosen = Callable[[Case, int], tuple[spec.Mixer, spec.Pattern]]
KINDS: dict[str, Chosen] = {
    "full": lambda case, length: _softmax(spec.Everything()),
    "window": lambda case, length: _softmax(spec.Window(case.window)),
    "longformer": lambda case, length: _softmax(spec.Either(spec.Window(case.window), spec.Global(1))),
    "bigbird": _bigbird,
    "linear": lambda case, length: (spec.Linear(), spec.Everything()),
    "performer": lambda case, length: (spec.Linear(spec.Favor()), spec.Everything()),
    "linformer": lambda case, length: (spec.Linformer(length, case.window), spec.Everything()),
    "reformer": _reformer,
}


def choose(names: Sequence[str]) -> tuple[str, ...]:
    """Those above as the case has them, and every word that training knows, with its numbers: `window:128`."""
    for name in names:
        if name not in KINDS:
            looking(name)
    return tuple(names) or tuple(KINDS)


def _chosen(case: Case, kind: str, length: int) -> tuple[spec.Mixer, spec.Pattern]:
    if kind in KINDS:
        return KINDS[kind](case, length)
    mixer, pattern = looking(kind)
    return replace(mixer, length=length) if isinstance(mixer, spec.Linformer) else mixer, pattern


def run(case: Case, device: torch.device) -> Iterator[dict[str, Any]]:
    """A line for each kind, length and direction as soon as it is known, and a last one for each kind."""
    for kind in case.kinds:
        found = []
        for length in case.lengths:
            for backward in (False, True):
                found.append(
                    {"kind": kind, "n": length, "backward": backward, **_measured(case, kind, length, backward, device)}
                )
                yield found[-1]
        whole = [line for line in found if line["backward"]]
        yield {
            "kind": kind,
            "exponent": _exponent(whole, "seconds"),
            "forward_exponent": _exponent([line for line in found if not line["backward"]], "seconds"),
            "memory_exponent": _exponent(whole, "peak_bytes"),
        }


def line(found: dict[str, Any]) -> str:
    """A measurement, or what a kind's measurements say, for people."""
    if "n" not in found:
        told = {"time": found["exponent"], "forward": found["forward_exponent"], "memory": found["memory_exponent"]}
        grown = "  ".join(f"{name} n^{value:.2f}" for name, value in told.items() if value is not None)
        return f"{found['kind']:<11} grows as  {grown}\n"
    what = "forward + backward" if found["backward"] else "forward"
    return (
        f"{found['kind']:<11} {found['n']:>7}  {what:<18}  {found['seconds']:>9.4f} s  {amount(found['peak_bytes']):>9}"
    )


def _exponent(lines: Sequence[dict[str, Any]], what: str) -> float | None:
    """The slope of the straight line through logarithms; of one length there is none."""
    points = [(math.log(line["n"]), math.log(line[what])) for line in lines if line[what]]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True)) if points else (0.0, 0.0)
    across = sum((a - x) ** 2 for a, _ in points)
    return sum((a - x) * (b - y) for a, b in points) / across if across else None


def _measured(case: Case, kind: str, length: int, backward: bool, device: torch.device) -> dict[str, Any]:
    once = _call(case, kind, length, backward, device)
    seconds = [_seconds(once, device)]
    if seconds[0] < SLOW:
        seconds = [_seconds(once, device) for _ in range(case.rounds)]
    return {"seconds": median(seconds), "peak_bytes": peak(once, device), "rounds": len(seconds)}


def _call(case: Case, kind: str, length: int, backward: bool, device: torch.device) -> Callable[[], None]:
    mixer, pattern = _chosen(case, kind, length)
    shared = isinstance(mixer, spec.Lsh)
    attention = spec.Attention(case.heads, case.d_k, case.d_k, mixer=mixer, projection="shared" if shared else "apart")
    stack = spec.Stack(1, spec.Block(attention, spec.Plain(1)), pattern)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32  # as each is trained
    made = build(spec.Encoder(1, spec.Tokens(1, None), stack)).to(device, precision).eval().stack
    mix = made.blocks[0].attention.mixer  # type: ignore[union-attr]
    chance = torch.Generator().manual_seed(0)
    shape = (1, case.heads, length, case.d_k)
    q, k, v, above = (torch.randn(shape, generator=chance).to(device, precision) for _ in range(4))
    given = [x.requires_grad_(backward) for x in (q, k, v)]

    def once() -> None:
        with torch.set_grad_enabled(backward):
            keys: Tensor = torch.nn.functional.normalize(q, dim=-1) if shared else k
            out: Tensor = mix(q, keys, v, made.sight(0, length, 1, Everything()))  # type: ignore[operator]
            if backward:
                out.backward(above)
        for x in (*given, *mix.parameters()):  # type: ignore[union-attr]
            x.grad = None

    return once


def _seconds(once: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    once()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak(once: Callable[[], None], device: torch.device) -> int:
    """The most bytes of tensors that one call holds besides its inputs; on a CPU each allocation is counted."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        return torch.cuda.max_memory_allocated() - before
    with torch.autograd.profiler.profile(profile_memory=True) as watched:
        once()
    events = [event for event in watched.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
