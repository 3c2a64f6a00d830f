"""How the cost of each attention grows with the length: seconds and bytes of mixing, and the exponents fitted to them.

What is measured is what differs: queries, keys and values are given, and the projections around them, which all kinds
share, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.bench.report import Report, Row
from regard.bench.timing import turns
from regard.build import build
from regard.core.context import Context
from regard.families.transformer import looking
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


def _softmax(pattern: spec.MaskPattern) -> tuple[spec.Mixer, spec.MaskPattern]:
    return spec.SoftmaxAttention(), pattern


def _bigbird(case: Case, length: int) -> tuple[spec.Mixer, spec.MaskPattern]:
    """Blocks of 64 as published: neighbours, the first and the last, three drawn ones."""
    near = spec.Or(spec.BlockLocalMask(64, 1), spec.GlobalMask(1, 1, 64))
    return _softmax(spec.Or(near, spec.RandomBlockMask(64, 3)))


def _reformer(case: Case, length: int) -> tuple[spec.Mixer, spec.MaskPattern]:
    """Twice as many buckets as chunks of 64, told by two hashes, as published."""
    power = max(2, (2 * length // 64).bit_length() - 1)
    return spec.LshAttention((2 ** (power // 2), 2 ** (power - power // 2))), spec.FullMask()


Chosen = Callable[[Case, int], tuple[spec.Mixer, spec.MaskPattern]]
KINDS: dict[str, Chosen] = {
    "full": lambda case, length: _softmax(spec.FullMask()),
    "window": lambda case, length: _softmax(spec.WindowMask(case.window)),
    "longformer": lambda case, length: _softmax(
        spec.Or(spec.WindowMask(case.window), spec.GlobalMask(1))
    ),
    "bigbird": _bigbird,
    "linear": lambda case, length: (spec.LinearAttention(), spec.FullMask()),
    "performer": lambda case, length: (spec.LinearAttention(spec.FavorFeatures()), spec.FullMask()),
    "linformer": lambda case, length: (spec.Linformer(length, case.window), spec.FullMask()),
    "reformer": _reformer,
}


def choose(names: Sequence[str]) -> tuple[str, ...]:
    """Those above as the case has them, and every word that training knows, with its numbers: `window:128`."""
    for name in names:
        if name not in KINDS:
            looking(name)
    return tuple(names) or tuple(KINDS)


def _chosen(case: Case, kind: str, length: int) -> tuple[spec.Mixer, spec.MaskPattern]:
    if kind in KINDS:
        return KINDS[kind](case, length)
    mixer, pattern = looking(kind)
    return replace(mixer, length=length) if isinstance(mixer, spec.Linformer) else mixer, pattern


def run(case: Case, device: torch.device) -> Iterator[dict[str, Any]]:
    """A line for each length, direction and kind, all kinds of one length taking turns, and a last one for each kind."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in case.kinds}
    for length in case.lengths:
        for backward in (False, True):
            calls = _calls(case, case.kinds, length, backward, device)
            for kind, timing in turns(calls, case.rounds, device, slow=SLOW).items():
                one = {
                    "kind": kind,
                    "n": length,
                    "backward": backward,
                    "seconds": timing.median,
                    "spread": timing.spread,
                }
                one |= {"peak_bytes": peak(calls[kind], device), "rounds": len(timing.seconds)}
                found[kind].append(one)
                yield one
    for kind, lines in found.items():
        whole = [line for line in lines if line["backward"]]
        yield {
            "kind": kind,
            "exponent": _exponent(whole, "seconds"),
            "forward_exponent": _exponent(
                [line for line in lines if not line["backward"]], "seconds"
            ),
            "memory_exponent": _exponent(whole, "peak_bytes"),
        }


def reports(
    case: Case, found: Sequence[dict[str, Any]], command: str, machine: str
) -> list[Report]:
    """One for each length, of forward and backward: places a second, beside full attention by PyTorch's kernel."""
    grown = {line["kind"]: line for line in found if "n" not in line}
    return [
        Report(
            command,
            f"attention, {length:,} places, {case.heads} heads of {case.d_k}, window {case.window}, forward + backward",
            machine,
            "places/s",
            tuple(
                Row(
                    line["kind"],
                    length / line["seconds"],
                    line["spread"],
                    line["kind"] != "full",
                    line["peak_bytes"],
                )
                for line in found
                if line.get("n") == length and line["backward"]
            ),
            {f"{kind} grows as": _grown(line) for kind, line in grown.items()},
        )
        for length in case.lengths
    ]


def _grown(found: dict[str, Any]) -> str:
    told = {
        "time": found["exponent"],
        "forward": found["forward_exponent"],
        "memory": found["memory_exponent"],
    }
    return "  ".join(f"{name} n^{value:.2f}" for name, value in told.items() if value is not None)


def line(found: dict[str, Any]) -> str:
    """A measurement, or what a kind's measurements say, for people."""
    if "n" not in found:
        return f"{found['kind']:<11} grows as  {_grown(found)}"
    what = "forward + backward" if found["backward"] else "forward"
    return f"{found['kind']:<11} {found['n']:>7}  {what:<18}  {found['seconds']:>9.4f} s  {amount(found['peak_bytes']):>9}"


def _exponent(lines: Sequence[dict[str, Any]], what: str) -> float | None:
    """The slope of the straight line through logarithms; of one length there is none."""
    points = [(math.log(line["n"]), math.log(line[what])) for line in lines if line[what]]
    x, y = (
        (sum(values) / len(points) for values in zip(*points, strict=True))
        if points
        else (0.0, 0.0)
    )
    across = sum((a - x) ** 2 for a, _ in points)
    return sum((a - x) * (b - y) for a, b in points) / across if across else None


def _calls(
    case: Case, kinds: Sequence[str], length: int, backward: bool, device: torch.device
) -> dict[str, Callable[[], float]]:
    """What each kind does once, all with the same queries, keys and values."""
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32  # as each is trained
    chance = torch.Generator().manual_seed(0)
    shape = (1, case.heads, length, case.d_k)
    q, k, v, above = (torch.randn(shape, generator=chance).to(device, precision) for _ in range(4))
    given = tuple(x.requires_grad_(backward) for x in (q, k, v))
    return {kind: _call(case, kind, given, above if backward else None) for kind in kinds}


def _call(
    case: Case, kind: str, given: tuple[Tensor, ...], above: Tensor | None
) -> Callable[[], float]:
    """`above`: the gradient that comes back, if one does."""
    q, k, v = given
    length = q.shape[2]
    mixer, pattern = _chosen(case, kind, length)
    shared = isinstance(mixer, spec.LshAttention)
    attention = spec.Attention(
        case.heads, case.d_k, case.d_k, mixer=mixer, projection="shared" if shared else "apart"
    )
    stack = spec.Stack(1, spec.Block(attention, spec.FeedForward(1)), pattern)
    made = build(spec.Encoder(1, spec.Tokens(1, None), stack)).to(q.device, q.dtype).eval().stack
    mix = made.blocks[0].attention.mixer  # type: ignore[union-attr]

    shape = torch.empty(1, length, 1, device=q.device)

    def once() -> float:
        with torch.set_grad_enabled(above is not None):
            keys: Tensor = torch.nn.functional.normalize(q, dim=-1) if shared else k
            out: Tensor = mix(q, keys, v, made.layer_inputs(shape, None, Context()).mask)  # type: ignore[operator]
            if above is not None:
                out.backward(above)
        for x in (*given, *mix.parameters()):  # type: ignore[union-attr]
            x.grad = None
        return length

    return once


def peak(once: Callable[[], object], device: torch.device) -> int:
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
