"""Training speed: real target tokens a second, forward, loss with label smoothing, backward and Adam.

Sentences of natural lengths (8 to 64 tokens, the target near the source) or of equal length. Peers get batches as their own
trainers make them (so many sentences in random order, padded to the longest), and ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import edit, spec
from regard.bench import published
from regard.bench.models import Measured, measured
from regard.bench.peers import TRAINED, Forward
from regard.bench.report import Report, accelerator, machine, row
from regard.bench.timing import matrix_rate, turns
from regard.data.batching import IGNORED, Batch, plan
from regard.errors import SettingError
from regard.parameter_count import parameter_count
from regard.training.engine.lr_schedule import ConstantRate
from regard.training.engine.optimizer import Optimizer
from regard.training.engine.step import Step
from regard.training.objectives.loss import over_vocabulary


@dataclass(frozen=True)
class Case:
    """`lengths`: natural, or equal: `length` tokens each, source and target; `batch_tokens` is our budget, and about what the
    peers' batches hold. A language model is trained on windows of `length`."""

    model: str
    lengths: str
    length: int = 32
    batch_tokens: int = 2048
    batches: int = 4
    rounds: int = 5
    precision: str = "float32"  # or bf16, with weights in float32
    compile: bool = False

    def __str__(self) -> str:
        lengths = (
            f"{self.lengths} lengths" if self.lengths == "natural" else f"{self.length} tokens each"
        )
        how = f", {self.precision}" if self.precision != "float32" else ""
        return f"train {self.model}, {lengths}{how}{', compiled' if self.compile else ''}"


def run(case: Case, against: list[str], device: torch.device, command: str) -> Report:
    told, against = published.split(against, case, accelerator(device))
    model = measured(case.model)
    kind = {"float32": torch.float32, "bf16": torch.bfloat16}[case.precision]
    lengths = _lengths(case)
    ours = [_batch(lengths, rows, model) for rows in _bucketed(lengths, case)]
    theirs = [_batch(lengths, rows, model) for rows in _shuffled(lengths, case)]
    contenders: dict[str, Callable[[], float]] = {}
    with ExitStack() as inside:
        contenders["regard"] = _rounds(_ours(model, device, kind, case.compile, inside), ours)
        for name in against:
            if not isinstance(model.spec, spec.EncoderDecoder):
                raise SettingError(
                    f"{name} has no adapter for {case.model}", "compare tiny, small or base"
                )
            step = _theirs(*TRAINED[name](model.spec, device), kind)
            contenders[f"{name}, our batches"] = _rounds(step, ours)
            if case.lengths == "natural":
                contenders[f"{name}, its batches"] = _rounds(step, theirs)
        timings = turns(contenders, case.rounds, device)
    ceiling = matrix_rate(device, kind)
    work = _work(model.spec, case.length)
    rows = [
        row(name, t, ours=name == "regard", share=t.rate * work / ceiling)
        for name, t in timings.items()
    ]
    notes = {
        "matrix rate": f"{ceiling / 1e9:,.0f} GFLOP/s",
        "padding": f"{100 * _padding(ours):.0f} % in our batches, {100 * _padding(theirs):.0f} % in theirs",
    }
    return Report(command, str(case), machine(device), "target tokens/s", (*rows, *told), notes)


def _work(description: Any, length: int) -> float:
    """A target token's multiplications and additions, forward and backward: 6 for each parameter that is multiplied by, and
    in a language model 12 · layers · d_model · length for its scores, as nanoGPT counts them (in short sentences they are
    few, and left out)."""
    if isinstance(description, spec.Decoder):
        positions = description.tokens.position
        looked_up = (
            positions.length * description.d_model
            if isinstance(positions, spec.LearnedPosition)
            else 0
        )
        scores = 12 * description.stack.layers * description.d_model * length
        return 6.0 * (parameter_count(description) - looked_up) + scores
    return 6.0 * parameter_count(description)


def _ours(
    model: Measured, device: torch.device, kind: torch.dtype, compiled: bool, inside: ExitStack
) -> Callable[[Batch], None]:
    built: Any = model.build().to(device).train()
    if compiled:
        inside.enter_context(edit.compiled(built))

    def loss(tensors: Any) -> tuple[Tensor, Tensor]:
        given = [
            tensors[name]
            for name in ("source", "target", "tokens", "padding_mask")
            if name in tensors
        ]
        return over_vocabulary(built.head, built(*given)[0], tensors["labels"], 0.1)

    step = Step(
        loss,
        Optimizer(built.named_parameters(), ConstantRate(1e-4, 1)),
        _precision(device, kind),
        record=True,
    )
    count = itertools.count(1)

    def once(batch: Batch) -> None:
        step([batch], next(count), 1)  # the device's verdict is not waited for

    return once


def _precision(
    device: torch.device, kind: torch.dtype
) -> Callable[[], AbstractContextManager[Any]]:
    if kind == torch.float32:
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=kind)


def _theirs(model: nn.Module, forward: Forward, kind: torch.dtype) -> Callable[[Batch], None]:
    model.train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    device = next(model.parameters()).device
    precision = _precision(device, kind)

    def step(batch: Batch) -> None:
        tensors = batch.to(device).tensors
        with precision():
            logits = forward(tensors).flatten(0, 1)
        loss = functional.cross_entropy(
            logits, tensors["labels"].flatten(), ignore_index=IGNORED, label_smoothing=0.1
        )
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)

    return step


def _rounds(step: Callable[[Batch], None], batches: list[Batch]) -> Callable[[], float]:
    def run_all() -> float:
        for batch in batches:
            step(batch)
        return float(sum(batch.tokens for batch in batches))

    return run_all


# ------------------------------------------------------------------ sentences


def _lengths(case: Case) -> np.ndarray[Any, Any]:
    chance = np.random.default_rng(0)
    count = 40 * case.batches * case.batch_tokens // max(64, case.length)
    if case.lengths == "equal":
        return np.full((count, 2), case.length)
    source = np.clip(np.round(chance.lognormal(3.2, 0.5, count)), 8, 64).astype(int)
    target = np.clip(np.round(source * chance.normal(1.0, 0.15, count)), 8, 64).astype(int)
    return np.stack([source, target], axis=1)


def _bucketed(lengths: Any, case: Case) -> Iterator[Any]:
    batches = plan(lengths, case.batch_tokens, seed=0, epoch=0)
    return iter(batches[: case.batches])


def _shuffled(lengths: Any, case: Case) -> Iterator[Any]:
    """As many sentences a batch as fill the budget on average, in random order."""
    order = np.random.default_rng(1).permutation(len(lengths))
    count = max(1, round(case.batch_tokens / lengths.mean()))
    return iter([order[i * count : (i + 1) * count] for i in range(case.batches)])


def _batch(lengths: Any, rows: Any, model: Measured) -> Batch:
    chance = np.random.default_rng(int(rows[0]))
    part = lengths[rows]
    source_width, target_width = part.max(axis=0)
    padding_mask = np.arange(source_width) < part[:, :1]
    used = np.arange(target_width) < part[:, 1:]
    target = chance.integers(4, model.vocabulary, used.shape)
    shifted = np.where(used, np.roll(target, 1, axis=1), 0)
    source = np.where(padding_mask, chance.integers(4, model.vocabulary, padding_mask.shape), 0)
    pair = isinstance(model.spec, spec.EncoderDecoder)
    tensors = {
        **({"source": source, "target": shifted} if pair else {"tokens": shifted}),
        "labels": np.where(used, target, IGNORED),
        **({} if padding_mask.all() else {"padding_mask": padding_mask}),
    }
    made = Batch(
        {name: torch.from_numpy(array) for name, array in tensors.items()},
        int(used.sum()),
        np.asarray(rows),
    )
    return made.pin()


def _padding(batches: list[Batch]) -> float:
    cells = sum(b.tensors["labels"].numel() for b in batches)
    return 1 - sum(b.tokens for b in batches) / cells
