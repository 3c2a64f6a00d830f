"""The plan as text, and as plain data for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from regard.lab.plan.accelerators import (
    BANDWIDTH_EFFICIENCY,
    KERNEL_SECONDS,
    MATRIX_EFFICIENCY,
    PRICES_OF,
)
from regard.lab.plan.compute_optimal import Optimum
from regard.lab.plan.failures import DEVICE_HOURS_PER_FAILURE
from regard.lab.plan.latency import Latency
from regard.lab.plan.measurement import Measurement
from regard.lab.plan.planner import Plan
from regard.lab.plan.sharding import Parallel
from regard.lab.show.modules import summarize
from regard.system.memory import amount

_WIDTH = 26  # of the column of names


def lines(plan: Plan) -> Iterator[str]:
    """The page that `regard plan` prints."""
    subject = plan.subject
    yield f"{subject.name}  {_batch(plan)}"
    for note in subject.notes:
        yield f"  assumed: {note}"
    yield ""
    yield from _parameters(plan)
    yield ""
    yield from _flops(plan)
    yield ""
    yield from _memory(plan)
    yield from _remedies(plan)
    yield ""
    yield from _time(plan)
    if plan.devices > 1:
        yield ""
        yield from _devices(plan)


def _batch(plan: Plan) -> str:
    sizes = plan.subject.sizes
    settings = plan.subject.settings
    text = f"{plan.subject.objective}, {sizes.rows} rows × {sizes.length:,} positions"
    if settings.accumulate > 1:
        text += f" × {settings.accumulate} micro-batches"
    text += f", {settings.precision}"
    return text + (", activations recomputed" if settings.recompute else "")


def _line(name: str, value: str, note: str = "") -> str:
    return f"  {name:<{_WIDTH}} {value:>12}  {note}".rstrip()


def _parameters(plan: Plan) -> Iterator[str]:
    yield f"parameters  {plan.trace.parameters:,}"
    for name, count in _parts(plan).items():
        yield _line(name, f"{count:,}", f"{100 * count / plan.trace.parameters:.1f} %")
    if plan.subject.generator is not None:
        yield "  (the total includes the generator without its own embeddings)"


def _parts(plan: Plan) -> dict[str, int]:
    """The parameters of the modules of the model and of those in them, by name."""
    counts: Counter[str] = Counter()
    for part in summarize(plan.subject.description):
        counts[part.name] += part.copies * part.own_parameters
        for child in part.children:
            counts[f"{part.name}: {child.name}"] += part.copies * child.parameters
    return {name: count for name, count in counts.items() if count}


def _flops(plan: Plan) -> Iterator[str]:
    trace = plan.trace
    positions = plan.subject.sizes.positions
    # 2 N forward and 6 N with backward: Kaplan et al. 2020, Section 2.1.
    yield "FLOPs, summed over all operations (a multiply-add counts as two)"
    yield _line("forward", f"{trace.forward_flops:.4g}",
                f"{trace.forward_flops / positions:.4g} per position; 2 N = "
                f"{2 * trace.parameters:.4g}")  # fmt: skip
    yield _line("forward and backward", f"{trace.flops:.4g}",
                f"{trace.flops / positions:.4g} per position; 6 N = "
                f"{6 * trace.parameters:.4g}")  # fmt: skip
    yield _line("update", f"{plan.flops_per_step:.4g}")
    if plan.total_flops is not None and plan.six_n_d is not None:
        tokens = plan.subject.tokens or 0.0
        yield _line(
            "training",
            f"{plan.total_flops:.3g}",
            f"{tokens:.4g} tokens; 6 N D = {plan.six_n_d:.3g}",
        )


def _memory(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    yield f"peak memory of an update on {plan.device.name}"
    yield _line("weights", amount(memory.weights))
    yield _line("gradients", amount(memory.gradients), "at the peak")
    yield _line("optimizer", amount(memory.optimizer), "Adam's two moments")
    yield _line("activations", amount(memory.activations), "kept for backward, at the peak")
    yield _line("temporary", amount(memory.temporary))
    # cuBLAS and cuDNN allocate these themselves, outside of the tensors that are traced.
    extra = plan.needed - memory.total
    if extra:
        yield _line("workspaces", amount(extra), "of cuBLAS and cuDNN")
    yield _line("peak", amount(plan.needed), _verdict(plan))
    yield _line("after forward", amount(plan.trace.saved), "activations stored for backward")
    if plan.attention_bytes_per_layer:
        yield _line(
            "attention weights",
            amount(plan.attention_bytes_per_layer),
            "per layer in float32, if stored; fused kernels do not store them",
        )
    if plan.kv_cache_bytes:
        yield _line(
            "KV cache", amount(plan.kv_cache_bytes), "for decoding this batch at this length"
        )


def _verdict(plan: Plan) -> str:
    if plan.fits is None or plan.device.memory is None:
        return ""
    of = f"of {amount(plan.device.memory)}"
    return f"{of}: fits" if plan.fits else f"{of}: does not fit"


def _remedies(plan: Plan) -> Iterator[str]:
    if not plan.remedies:
        return
    yield ""
    yield "changes to make it fit, cumulative"
    for remedy in plan.remedies:
        mark = "fits" if remedy.fits else "does not fit"
        # Below one per cent it is rounding: only recomputation costs operations.
        cost = "" if remedy.flops < 1.01 else f", {remedy.flops:.2f} × the FLOPs"
        yield f"  {remedy.change}: {amount(remedy.memory)}, {mark}{cost}"
    if not plan.remedies[-1].fits:
        yield "  use a smaller model or a device with more memory"


def _time(plan: Plan) -> Iterator[str]:
    yield f"time on {plan.device.name}"
    if plan.seconds is None:
        yield "  not calibrated"
        return
    positions = plan.subject.positions_per_step
    yield _line("update", _duration(plan.seconds), f"{positions / plan.seconds:,.0f} positions/s, "
                f"{plan.flops_per_step / plan.seconds / 1e12:.3g} TFLOP/s")  # fmt: skip
    if plan.assumed_utilization is not None:
        yield f"  assumed: a model FLOPs utilization of {plan.assumed_utilization:.0%}"
    elif plan.device.accelerator is not None:
        yield (
            f"  assumed: {MATRIX_EFFICIENCY:.0%} of the peak rate in matrix products, "
            f"{BANDWIDTH_EFFICIENCY:.0%} of the memory bandwidth, {KERNEL_SECONDS * 1e6:.0f} µs "
            "per kernel"
        )
    else:
        yield "  sum of the times of all operations, each measured on this device"
    if plan.hours is not None and plan.steps is not None:
        yield _line("training", _duration(3600 * plan.hours), f"{plan.steps:,.0f} updates")
        if plan.cost is not None:
            yield _line("cost", f"${plan.cost:,.0f}", f"at ${plan.price:.2f} per device-hour; "
                        f"default prices are approximate, as of {PRICES_OF} (--price)")  # fmt: skip


def _devices(plan: Plan) -> Iterator[str]:
    yield f"{plan.devices:,} × {plan.device.name}, each with its own batch"
    for parallel in plan.parallel:
        fits = "" if plan.parallel_fits(parallel) else ", does not fit"
        yield (
            f"  {parallel.name}: {amount(parallel.memory)} per device{fits}; sends "
            f"{amount(parallel.traffic)} per update, {_duration(parallel.seconds)}; "
            f"{parallel.efficiency:.0%} of the time is computation without overlap"
            f"{_utilization(plan, parallel)}"
        )
    yield (
        "  (`regard train --processes N`, or torchrun on several machines; --strategy ddp is the "
        "first, fsdp the third)"
    )
    checkpoints = plan.checkpoints
    yield (
        f"  failures: one every {checkpoints.failure_hours:,.1f} h (a device fails every "
        f"{DEVICE_HOURS_PER_FAILURE:,.0f} h, as in Llama 3's training); a checkpoint takes "
        f"{_duration(checkpoints.write_seconds)}"
    )
    yield (
        f"  save every {_duration(checkpoints.interval_seconds)} (Young, Daly); saving and "
        f"failures lose {checkpoints.lost_hours_per_day:.2f} h per day"
    )


def _utilization(plan: Plan, parallel: Parallel) -> str:
    worst = plan.utilization(parallel.step_seconds)
    best = plan.utilization(parallel.overlapped_seconds)
    if worst is None or best is None:
        return ""
    return f"; MFU {worst:.0%}, {best:.0%} with full overlap"


def latency_lines(latency: Latency) -> Iterator[str]:
    """The latency of inference, of one input after the other."""
    yield (
        f"{latency.name}  inference of one input (batch 1) of {latency.length:,} positions on "
        f"{latency.device}, {latency.precision}"
    )
    yield f"  {latency.parameters:,} parameters"
    names = {"answer": latency.first}
    if latency.each is not None:
        names = {"first token": latency.first, "each further token": latency.each}
    for name, cost in names.items():
        work = f"{cost.flops:.3g} FLOPs, {amount(cost.bytes)} moved"
        yield _line(name, _duration(cost.seconds), work)
        if cost.measured is not None:
            note = f"predicted {100 * (cost.seconds / cost.measured - 1):+.1f} %"
            yield _line("  measured here", _duration(cost.measured), note)
    if latency.each is not None:
        yield _line("tokens a second", f"{1 / latency.each.seconds:,.0f}")


def comparison_lines(plan: Plan, measured: Measurement) -> Iterator[str]:
    """The prediction beside what was measured."""
    yield "predicted and measured"
    yield _compared("peak memory", plan.needed, measured.memory, amount)
    if plan.seconds is not None:
        yield _compared("update", plan.seconds, measured.seconds, _duration)


def _compared(name: str, predicted: float, measured: float, show: Callable[[float], str]) -> str:
    # Positive where the prediction was too high.
    difference = 100 * (predicted / measured - 1)
    return _line(name, show(predicted), f"measured {show(measured)}: {difference:+.1f} %")


def _duration(seconds: float) -> str:
    units = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
    for size, unit in units:
        # From two of a unit on: 90 min says more than 1.5 h, and 1.2 s more than 1,200 ms.
        if seconds >= 2 * size or (unit == "s" and seconds >= 1):
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


# --- plain data -----------------------------------------------------------------------------------


def data(plan: Plan) -> dict[str, Any]:
    """The same as one object for JSON; bytes, seconds and FLOPs are plain numbers."""
    trace = plan.trace
    memory = plan.memory
    return {
        "model": plan.subject.name,
        "objective": plan.subject.objective,
        "rows": plan.subject.sizes.rows,
        "length": plan.subject.sizes.length,
        "precision": plan.subject.settings.precision,
        "accumulate": plan.subject.settings.accumulate,
        "recompute": plan.subject.settings.recompute,
        "parameters": trace.parameters,
        "parts": _parts(plan),
        "flops": {
            "forward": trace.forward_flops,
            "backward": trace.backward_flops,
            "update": plan.flops_per_step,
            "training": plan.total_flops,
            "six_n_d": plan.six_n_d,
        },
        "memory": {
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "activations": memory.activations,
            "temporary": memory.temporary,
            "peak": plan.needed,
            "saved_for_backward": trace.saved,
            "attention_per_layer": plan.attention_bytes_per_layer,
            "kv_cache": plan.kv_cache_bytes,
        },
        "device": plan.device.name,
        "device_memory": plan.device.memory,
        "fits": plan.fits,
        "remedies": [vars(remedy) for remedy in plan.remedies],
        "seconds": plan.seconds,
        "steps": plan.steps,
        "hours": plan.hours,
        "cost": plan.cost,
        "devices": plan.devices,
        "parallel": [_parallel_data(plan, parallel) for parallel in plan.parallel],
        "checkpoints": vars(plan.checkpoints),
    }


def _parallel_data(plan: Plan, parallel: Parallel) -> dict[str, Any]:
    return {
        **vars(parallel),
        "fits": plan.parallel_fits(parallel),
        "overlapped_seconds": parallel.overlapped_seconds,
        "utilization": plan.utilization(parallel.step_seconds),
        "overlapped_utilization": plan.utilization(parallel.overlapped_seconds),
    }


def optimum_lines(flops: float, optima: list[Optimum]) -> Iterator[str]:
    """The compute-optimal sizes of a budget."""
    yield f"compute-optimal for {flops:.3g} FLOPs (Hoffmann et al. 2022, Chinchilla)"
    for optimum in optima:
        yield (
            f"  {optimum.rule:<26} {_count(optimum.parameters)} parameters, "
            f"{_count(optimum.tokens)} tokens, loss about {optimum.loss:.2f}"
        )


def _count(number: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
