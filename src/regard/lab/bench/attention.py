"""Attention scaling: time and memory of each kind of attention by length, and fitted exponents.

Only what differs is measured: queries, keys and values are there already, and the projections
around them, which all kinds share, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.builder import build
from regard.core.context import Context
from regard.families.attention_options import MASK_PATTERNS, MIXERS, parse_attention
from regard.lab.bench.report import BenchmarkReport, BenchmarkRow
from regard.lab.bench.timing import time_in_turns
from regard.lab.measure.instruments import allocated_peak, growth_exponent
from regard.system.errors import SettingError, did_you_mean
from regard.system.memory import amount

SLOW = 20.0  # seconds: a contender that needs more is measured once

Measurement = dict[str, Any]  # one line of the JSON output
AttentionKind = tuple[spec.Mixer, spec.MaskPattern]


@dataclass(frozen=True)
class AttentionCase:
    """One sequence with `heads` heads of d_k dimensions.

    `window`: how many positions are attended to on each side, or how many keys Linformer projects
    the sequence to.
    """

    kinds: tuple[str, ...]
    lengths: tuple[int, ...] = (2048, 4096, 8192, 16384, 32768)
    heads: int = 8
    d_k: int = 64
    window: int = 256  # on each side: 512 in all, as Longformer has
    rounds: int = 5


# --- kinds of attention ---


# Their words in recipes, with the window of a case.
KINDS = {
    "full": "softmax",
    "window": "window:{}",
    "longformer": "global:{}",
    "bigbird": "bigbird:64:3",  # block_size and num_random_blocks as published
    "linear": "linear",
    "performer": "performer",
    "linformer": "linformer:{}",
    "reformer": "reformer",
}


def choose(names: Sequence[str]) -> tuple[str, ...]:
    """The kinds to measure, all of `KINDS` if none is named; an unknown one is an error.

    Besides these, every kind that `regard train` takes, with its numbers: `window:128`.
    """
    all_kinds = {*KINDS, *MASK_PATTERNS, *MIXERS}
    for name in names:
        word = name.partition(":")[0]
        if word not in all_kinds:
            raise SettingError(f"unknown attention {name!r}", did_you_mean(word, all_kinds))
        if name not in KINDS:  # parsed for its errors only
            parse_attention(name)
    return tuple(names) or tuple(KINDS)


def attention_kind(case: AttentionCase, kind: str, length: int) -> AttentionKind:
    """The mixer and the mask pattern of a kind, for sequences of this length."""
    mixer, pattern = parse_attention(KINDS.get(kind, kind).format(case.window))
    if isinstance(mixer, spec.Linformer):
        mixer = replace(mixer, length=length)
    if kind == "reformer":
        # Twice as many buckets as chunks of 64, as the product of two hashes, as published: the
        # power of two at or below 2 · length / 64, split into two factors.
        power = max(2, (2 * length // 64).bit_length() - 1)
        mixer = spec.LshAttention((2 ** (power // 2), 2 ** (power - power // 2)))
    return mixer, pattern


# --- measuring ---


def run(case: AttentionCase, device: torch.device) -> Iterator[Measurement]:
    """A measurement for each length, direction and kind, and at last the exponents of each kind.

    All kinds take turns at one length.
    """
    measurements: dict[str, list[Measurement]] = {kind: [] for kind in case.kinds}
    for length in case.lengths:
        for backward in (False, True):
            calls = _calls(case, case.kinds, length, backward, device)
            timings = time_in_turns(calls, case.rounds, device, slow=SLOW)
            for kind, timing in timings.items():
                measurement = {
                    "kind": kind,
                    "n": length,
                    "backward": backward,
                    "seconds": timing.median,
                    "spread": timing.spread,
                    "peak_bytes": peak(calls[kind], device),
                    "rounds": len(timing.seconds),
                }
                measurements[kind].append(measurement)
                yield measurement
    for kind, lines in measurements.items():
        yield {
            "kind": kind,
            "exponent": _exponent(lines, "seconds", backward=True),
            "forward_exponent": _exponent(lines, "seconds", backward=False),
            "memory_exponent": _exponent(lines, "peak_bytes", backward=True),
        }


def _exponent(lines: Sequence[Measurement], what: str, *, backward: bool) -> float | None:
    """The exponent of growth; None if there is only one length."""
    points = [(one["n"], one[what]) for one in lines if one[what] and one["backward"] == backward]
    return growth_exponent(*zip(*points, strict=True)) if len(points) > 1 else None


def _calls(
    case: AttentionCase, kinds: Sequence[str], length: int, backward: bool, device: torch.device
) -> dict[str, Callable[[], float]]:
    """One call of each kind, all with the same queries, keys and values."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # as each is trained
    generator = torch.Generator().manual_seed(0)
    shape = (1, case.heads, length, case.d_k)  # [B, H, T, K]
    *qkv, gradient = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(4))
    for x in qkv:
        x.requires_grad_(backward)
    return {kind: _call(case, kind, qkv, gradient if backward else None) for kind in kinds}


def _call(
    case: AttentionCase, kind: str, qkv: Sequence[Tensor], gradient: Tensor | None
) -> Callable[[], float]:
    """A call of one kind of attention; with a `gradient` of its output, the backward pass too."""
    q, k, v = qkv
    length = q.shape[2]
    mixer, pattern = attention_kind(case, kind, length)
    shared_qk = isinstance(mixer, spec.LshAttention)
    attention = spec.Attention(
        case.heads, case.d_k, case.d_k, mixer=mixer, projection="shared" if shared_qk else "apart"
    )
    # The smallest encoder around that attention: its stack makes the mask, its mixer is called.
    block = spec.Block(attention, spec.FeedForward(1))
    encoder = spec.Encoder(1, spec.Tokens(1, None), spec.Stack.of(1, block, pattern))
    stack: Any = build(encoder).to(q.device, q.dtype).eval().stack
    mix = stack.blocks[0].attention.mixer

    shape = torch.empty(1, length, 1, device=q.device)  # only its sizes matter

    def once() -> float:
        with torch.set_grad_enabled(gradient is not None):
            # Reformer's keys are its queries, at unit length.
            keys: Tensor = torch.nn.functional.normalize(q, dim=-1) if shared_qk else k
            out: Tensor = mix(q, keys, v, stack.layer_inputs(shape, None, Context())[0].mask)
            if gradient is not None:
                out.backward(gradient)
        # Gradients must not accumulate: that would be another operation, and more memory.
        for x in (*qkv, *mix.parameters()):
            x.grad = None
        return length

    return once


def peak(call: Callable[[], object], device: torch.device) -> int:
    """The peak memory in bytes of one call, besides its inputs."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()  # to what is allocated now
        call()
        return torch.cuda.max_memory_allocated() - before
    return allocated_peak(call)


# --- showing ---


def reports(
    case: AttentionCase, measurements: Sequence[Measurement], command: str, machine: str
) -> list[BenchmarkReport]:
    """A report for each length, of forward and backward; full attention is the peer."""
    exponents = {line["kind"]: line for line in measurements if "n" not in line}
    notes = {f"{kind} grows as": _growth(line) for kind, line in exponents.items()}
    sizes = f"{case.heads} heads of {case.d_k}, window {case.window}, forward + backward"
    all_reports: list[BenchmarkReport] = []
    for length in case.lengths:
        rows = tuple(
            BenchmarkRow(
                line["kind"],
                length / line["seconds"],
                line["spread"],
                line["kind"] != "full",
                line["peak_bytes"],
            )
            for line in measurements
            if line.get("n") == length and line["backward"]
        )
        title = f"attention, {length:,} positions, {sizes}"
        all_reports.append(BenchmarkReport(command, title, machine, "positions/s", rows, notes))
    return all_reports


def line(measurement: Measurement) -> str:
    """A measurement, or the exponents of a kind, for people."""
    if "n" not in measurement:
        return f"{measurement['kind']:<11} grows as  {_growth(measurement)}"
    direction = "forward + backward" if measurement["backward"] else "forward"
    return (
        f"{measurement['kind']:<11} {measurement['n']:>7}  {direction:<18}  "
        f"{measurement['seconds']:>9.4f} s  {amount(measurement['peak_bytes']):>9}"
    )


def _growth(exponents: Measurement) -> str:
    # The names of the exponents, as people read them.
    names = {"time": "exponent", "forward": "forward_exponent", "memory": "memory_exponent"}
    known = {name: exponents[key] for name, key in names.items() if exponents[key] is not None}
    return "  ".join(f"{name} n^{value:.2f}" for name, value in known.items())
