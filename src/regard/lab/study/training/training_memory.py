"""Mixed precision, gradient accumulation, activation checkpointing: time and memory of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.stack import Stack
from regard.lab.measure.instruments import fastest, peak_bytes
from regard.lab.study.figure import Shown, Table, cells, column, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import Batch, build_seeded, language_model, logits, mean_loss
from regard.look.drawing import Axis, BarChart, Bars

ROWS = 16
LENGTH = 64
MICRO_BATCHES = 4
VARIANTS = ("float32", "bfloat16", "accumulation", "checkpointing")


class TrainingMemory(Study):
    """Mixed precision halves memory and is two to three times faster; gradient accumulation divides
    the memory of activations by the number of micro-batches; activation checkpointing trades a
    second forward pass for most of them.

    One training step of a language model of 4 layers on {ROWS} rows of {LENGTH} tokens: seconds,
    and the peak of the tensors that the step makes (weights and their gradients left out), in
    float32, under bfloat16 autocast, in {MICRO_BATCHES} micro-batches and with checkpointing; and
    by how much the gradient differs from that of the plain step.
    """

    name = "training_memory"
    source = "Micikevicius et al. 2018; Chen et al. 2016, Section 4"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        repeats = effort.choose(2, 8)
        return {"device": "cpu", "runs": effort.each_seed(lambda seed: _steps(seed, repeats))}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if bfloat16 needs at most 70 % of the bytes and at most 60 % of the time,
        accumulation at most 32 % of the bytes with the same gradient (1e-4), and checkpointing at
        most half of the bytes in at most 1.8 times the time. Within limits if everything holds but
        the speed of bfloat16, which is the hardware's."""
        ratios = {name: _ratios(numbers, name) for name in VARIANTS}
        difference = max(run["accumulation"]["difference"] for run in numbers["runs"])
        # Half of the bytes are those of float32 parts: norms, softmax, the loss.
        small = ratios["bfloat16"]["bytes"] <= 0.7
        fast = ratios["bfloat16"]["seconds"] <= 0.6
        accumulates = ratios["accumulation"]["bytes"] <= 1.3 / MICRO_BATCHES and difference < 1e-4
        recomputes = (
            ratios["checkpointing"]["bytes"] <= 0.5 and ratios["checkpointing"]["seconds"] <= 1.8
        )
        listed = ", ".join(
            f"{name} {of['bytes']:.0%} of the bytes in {of['seconds']:.2f} × time"
            for name, of in ratios.items()
            if name != "float32"
        )
        reason = (
            f"Against float32 on {numbers['device']}: {listed}; the accumulated gradient differs "
            f"by {difference:.0e}."
        )
        return judge(fast, small and accumulates and recomputes, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        runs = {name: column(numbers["runs"], name) for name in VARIANTS}
        megabytes = [[size / 1e6 for size in column(each, "bytes")] for each in runs.values()]
        seconds = [column(each, "seconds") for each in runs.values()]
        rows = [
            [
                name,
                mean_text(sizes),
                *cells(each, ["seconds"]),
                f"{max(column(each, 'difference')):.1e}",
            ]
            for (name, each), sizes in zip(runs.items(), megabytes, strict=True)
        ]
        columns = ["", "MB at the peak", "seconds a step", "gradient differs by"]
        return [
            *(
                BarChart(title, Axis(unit, low=0.0), VARIANTS, [Bars(title, values)])
                for title, unit, values in (
                    ("Memory of a step", "MB at the peak", megabytes),
                    ("Time of a step", "seconds", seconds),
                )
            ),
            Table("One training step", columns, rows),
        ]


def _ratios(numbers: Numbers, name: str) -> dict[str, float]:
    """Bytes and seconds of a variant, as shares of those of float32."""
    return {
        key: mean(run[name][key] / run["float32"][key] for run in numbers["runs"])
        for key in ("bytes", "seconds")
    }


def _steps(seed: int, repeats: int) -> dict[str, dict[str, float]]:
    vocabulary = 64
    description = language_model(vocabulary, LENGTH, layers=4)
    model = build_seeded(description, seed).train()
    generator = torch.Generator().manual_seed(seed)
    # Random tokens: cost does not depend on what is said.
    tokens = torch.randint(3, vocabulary, (ROWS, LENGTH + 1), generator=generator)
    batch = Batch(tokens[:, :-1], tokens[:, 1:])

    def step(rows: int) -> None:
        """A step in micro-batches of so many rows, which each count by their share."""
        for part in range(0, ROWS, rows):
            piece = Batch(batch.tokens[part : part + rows], batch.targets[part : part + rows])
            loss = mean_loss(logits(model, piece), piece.targets)
            (loss * rows / ROWS).backward()  # type: ignore[no-untyped-call]

    def mixed() -> None:
        # Backward stands outside: it takes the types of the forward pass.
        with torch.autocast("cpu", torch.bfloat16):
            loss = mean_loss(logits(model, batch), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]

    results = {}
    plain = _cost(model, partial(step, ROWS), repeats, None)
    # The gradient of the plain step is what the others are compared with.
    gradient = plain.pop("gradient")
    results["float32"] = plain
    results["bfloat16"] = _cost(model, mixed, repeats, gradient)
    micro_batches = partial(step, ROWS // MICRO_BATCHES)
    results["accumulation"] = _cost(model, micro_batches, repeats, gradient)
    for module in model.modules():
        if isinstance(module, Stack):
            module.activation_checkpointing = True
    results["checkpointing"] = _cost(model, partial(step, ROWS), repeats, gradient)
    return results


def _cost(
    model: nn.Module, step: Callable[[], None], repeats: int, gradient: Tensor | None
) -> dict[str, Any]:
    """Bytes, seconds (the fastest of several), and the largest difference of the gradient."""
    step()  # gradients exist from now on: they are the same for all variants
    model.zero_grad(set_to_none=False)
    sizes = peak_bytes(step)
    current = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    # Timed without the tracker, which slows every operation down; gradients grow, and no time goes
    # into making them.
    seconds = fastest(step, repeats)
    result: dict[str, Any] = {"bytes": float(sizes), "seconds": seconds, "difference": 0.0}
    if gradient is None:
        result["gradient"] = current
    else:
        result["difference"] = float((current - gradient).abs().max() / gradient.abs().max())
    return result
