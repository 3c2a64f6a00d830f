"""Training speed: real target tokens a second, forward, loss with label smoothing, backward and Adam.

Sentences of natural lengths (8 to 64 tokens, the target near the source) or of equal length. Peers get batches as their own
trainers make them (so many sentences in random order, padded to the longest), and ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import size, spec
from regard.bench.measure import matrix_rate, turns
from regard.bench.peers import TRAINED, Forward
from regard.bench.report import Report, machine, row
from regard.build import build
from regard.data.batch import IGNORED, Batch, plan
from regard.family import vaswani
from regard.training.loss import over_vocabulary
from regard.training.optimizer import Updater
from regard.training.schedule import Constant
from regard.training.step import Step


@dataclass(frozen=True)
class Case:
    """`lengths`: natural or equal; `batch_tokens` is our budget, and about what the peers' batches hold."""

    preset: str
    lengths: str
    vocabulary: int = 8000
    batch_tokens: int = 2048
    batches: int = 4
    rounds: int = 5

    def __str__(self) -> str:
        return f"train {self.preset}, {self.lengths} lengths"


def run(case: Case, against: list[str], device: torch.device, command: str) -> Report:
    model_spec = vaswani.preset(case.preset, case.vocabulary, case.vocabulary, share="all")
    lengths = _lengths(case)
    ours = [_batch(lengths, rows, case.vocabulary) for rows in _bucketed(lengths, case)]
    theirs = [_batch(lengths, rows, case.vocabulary) for rows in _shuffled(lengths, case)]
    contenders: dict[str, Callable[[], float]] = {"regard": _rounds(_ours(model_spec, device), ours)}
    for name in against:
        step = _theirs(*TRAINED[name](model_spec, device))
        contenders[f"{name}, our batches"] = _rounds(step, ours)
        if case.lengths == "natural":
            contenders[f"{name}, its batches"] = _rounds(step, theirs)
    timings = turns(contenders, case.rounds, device)
    ceiling = matrix_rate(device)
    work = 6.0 * size.parameters(model_spec)  # a token's multiplications and additions, without attention's
    rows = [row(name, t, ours=name == "regard", share=t.rate * work / ceiling) for name, t in timings.items()]
    notes = {
        "matrix rate": f"{ceiling / 1e9:,.0f} GFLOP/s",
        "padding": f"{100 * _padding(ours):.0f} % in our batches, {100 * _padding(theirs):.0f} % in theirs",
    }
    return Report(command, str(case), machine(device), "target tokens/s", tuple(rows), notes)


def _ours(model_spec: spec.EncoderDecoder, device: torch.device) -> Callable[[Batch], None]:
    torch.manual_seed(0)
    model = build(model_spec).to(device).train()

    def loss(tensors: Any) -> tuple[Tensor, Tensor]:
        hidden, _ = model(tensors["source"], tensors["target"], tensors.get("real"))
        return over_vocabulary(model.head, hidden, tensors["labels"], 0.1)

    step = Step(loss, Updater(model.named_parameters(), Constant(1e-4, 1)), nullcontext, record=True)
    count = itertools.count(1)

    def once(batch: Batch) -> None:
        step([batch], next(count), 1)  # the device's verdict is not waited for

    return once


def _theirs(model: nn.Module, forward: Forward) -> Callable[[Batch], None]:
    model.train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    device = next(model.parameters()).device

    def step(batch: Batch) -> None:
        tensors = batch.to(device).tensors
        logits = forward(tensors).flatten(0, 1)
        loss = functional.cross_entropy(logits, tensors["labels"].flatten(), ignore_index=IGNORED, label_smoothing=0.1)
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
    count = 40 * case.batches * case.batch_tokens // 64
    if case.lengths == "equal":
        return np.full((count, 2), 32)
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


def _batch(lengths: Any, rows: Any, vocabulary: int) -> Batch:
    chance = np.random.default_rng(int(rows[0]))
    part = lengths[rows]
    source_width, target_width = part.max(axis=0)
    real = np.arange(source_width) < part[:, :1]
    used = np.arange(target_width) < part[:, 1:]
    target = chance.integers(4, vocabulary, used.shape)
    tensors = {
        "source": np.where(real, chance.integers(4, vocabulary, real.shape), 0),
        "target": np.where(used, np.roll(target, 1, axis=1), 0),
        "labels": np.where(used, target, IGNORED),
        **({} if real.all() else {"real": real}),
    }
    return Batch({name: torch.from_numpy(array) for name, array in tensors.items()}, int(used.sum()), np.asarray(rows))


def _padding(batches: list[Batch]) -> float:
    cells = sum(b.tensors["target"].numel() for b in batches)
    return 1 - sum(b.tokens for b in batches) / cells
