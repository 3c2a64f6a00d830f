"""Training speed: target tokens a second of forward, smoothed loss, backward and Adam.

Sentences have natural lengths (8 to 64 tokens, the target's near the source's) or equal ones. Peers
get batches as their own trainers make them (so many sentences in random order, padded to the
longest), and ours. Padding does not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.builder import edit
from regard.builder.parameter_count import parameter_count
from regard.data.batching import Batch, batch_indices
from regard.data.padding import IGNORED
from regard.lab.bench import published
from regard.lab.bench.models import BenchmarkModel, benchmark_model
from regard.lab.bench.peers import TRAINABLE, Forward
from regard.lab.bench.report import BenchmarkReport, accelerator_name, machine_name, timing_row
from regard.lab.bench.timing import time_in_turns
from regard.lab.measure.instruments import matrix_rate
from regard.system.errors import SettingError
from regard.training.engine.optimizer import ConstantRate, Optimizer, autocast
from regard.training.engine.train_step import Step
from regard.training.objectives.losses import linear_cross_entropy

TrainStep = Callable[[Batch], object]
Array = np.ndarray[Any, Any]

LABEL_SMOOTHING = 0.1
LEARNING_RATE = 1e-4
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class TrainingCase:
    """Batches of sentences with `natural` or `equal` lengths.

    Equal lengths are `length` tokens each, source and target; a language model is trained on
    windows of that. `batch_tokens` is our token budget, and about what the peers' batches have.
    """

    model: str
    lengths: str
    length: int = 32
    batch_tokens: int = 2048
    batches: int = 4
    rounds: int = 5
    precision: str = "float32"  # or bf16, with weights in float32
    compile: bool = False

    def __str__(self) -> str:
        equal = self.lengths == "equal"
        parts = {
            f"train {self.model}": True,
            "natural lengths": not equal,
            f"{self.length} tokens each": equal,
            self.precision: self.precision != "float32",
            "compiled": self.compile,
        }
        return ", ".join(part for part, applies in parts.items() if applies)


def run(
    case: TrainingCase, against: list[str], device: torch.device, command: str
) -> BenchmarkReport:
    """Times our trainer and the peers', each of them on both kinds of batches."""
    published_rows, against = published.split(against, case, accelerator_name(device))
    model = benchmark_model(case.model)
    lengths = _sentence_lengths(case)
    # Ours are sentences of like lengths within the token budget; the peers' as many sentences as
    # fill the budget on average, in random order.
    bucketed = batch_indices(lengths, case.batch_tokens, seed=0, epoch=0)[: case.batches]
    our_batches = [_batch(lengths, rows, model) for rows in bucketed]
    count = max(1, round(case.batch_tokens / lengths.mean()))
    order = np.random.default_rng(1).permutation(len(lengths))[: case.batches * count]
    their_batches = [_batch(lengths, rows, model) for rows in order.reshape(-1, count)]
    contenders: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        our_step = _our_step(model, device, case, stack)
        contenders["regard"] = _epoch(our_step, our_batches)
        for name in against:
            if not model.is_encoder_decoder:
                raise SettingError(
                    f"{name} has no adapter for {case.model}", "use the model tiny, small or base"
                )
            peer, forward = TRAINABLE[name](model.spec, device)
            their_step = _their_step(peer, forward, case.precision)
            contenders[f"{name}, our batches"] = _epoch(their_step, our_batches)
            if case.lengths == "natural":
                contenders[f"{name}, its batches"] = _epoch(their_step, their_batches)
        timings = time_in_turns(contenders, case.rounds, device)
    limit = matrix_rate(device, DTYPES[case.precision])
    flops = _flops_per_token(model.spec, case.length)
    rows = [
        timing_row(name, timing, share=timing.rate * flops / limit)
        for name, timing in timings.items()
    ]
    ours = f"{100 * _padding_share(our_batches):.0f} % in our batches"
    theirs = f"{100 * _padding_share(their_batches):.0f} % in theirs"
    notes = {"matrix rate": f"{limit / 1e9:,.0f} GFLOP/s", "padding": f"{ours}, {theirs}"}
    all_rows = (*rows, *published_rows)
    return BenchmarkReport(
        command, str(case), machine_name(device), "target tokens/s", all_rows, notes
    )


def _flops_per_token(description: Any, length: int) -> float:
    """FLOPs of a target token, forward and backward: 6 for each parameter of a matrix product.

    In a language model, 12 · layers · d_model · length more for the attention scores, as nanoGPT
    counts them; in short sentences they are few, and left out.
    """
    if description.is_encoder_decoder:
        return 6.0 * parameter_count(description)
    # Learned positions are looked up, not multiplied by.
    lookup_parameters = (description.tokens.max_length or 0) * description.d_model
    attention = 12 * description.stack.layers * description.d_model * length
    return 6.0 * (parameter_count(description) - lookup_parameters) + attention


# --- steps ---


def _our_step(
    model: BenchmarkModel,
    device: torch.device,
    case: TrainingCase,
    stack: ExitStack,
) -> TrainStep:
    """A step of our trainer; blocks stay compiled until the `stack` is closed."""
    core: Any = model.build().to(device).train()
    if case.compile:
        stack.enter_context(edit.compiled(core))

    def loss(tensors: Any) -> tuple[Tensor, Tensor]:
        names = ("source", "target", "tokens", "padding_mask")
        inputs = [tensors[name] for name in names if name in tensors]
        hidden, _ = core(*inputs)
        return linear_cross_entropy(core.head, hidden, tensors["labels"], LABEL_SMOOTHING)

    step = Step(
        loss,
        Optimizer(core.named_parameters(), ConstantRate(LEARNING_RATE, 1)),
        partial(autocast, case.precision, device),
        cuda_graphs=True,  # as training does
    )
    numbers = itertools.count(1)
    # The device's verdict on the update is not waited for.
    return lambda batch: step([batch], next(numbers), 1)


def _their_step(model: nn.Module, forward: Forward, precision: str) -> TrainStep:
    """A step of a peer: PyTorch's loss and its fused Adam."""
    model.train()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), fused=True
    )
    device = next(model.parameters()).device

    def train_step(batch: Batch) -> None:
        tensors = batch.to(device).tensors
        with autocast(precision, device):
            logits = forward(tensors).flatten(0, 1)  # [B · T, V]
        loss = functional.cross_entropy(
            logits,
            tensors["labels"].flatten(),
            ignore_index=IGNORED,
            label_smoothing=LABEL_SMOOTHING,
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train_step


def _epoch(step: TrainStep, batches: list[Batch]) -> Callable[[], float]:
    """A round: one step on each batch; it returns the number of target tokens."""

    def train() -> float:
        for batch in batches:
            step(batch)
        return float(sum(batch.tokens for batch in batches))

    return train


# --- batches ---


def _sentence_lengths(case: TrainingCase) -> Array:
    """[sentences, 2] the lengths of sources and targets."""
    # More than the batches need, so that buckets have like lengths.
    count = 40 * case.batches * case.batch_tokens // max(64, case.length)
    if case.lengths == "equal":
        return np.full((count, 2), case.length)
    generator = np.random.default_rng(0)
    # A median of e^3.2 ≈ 25 tokens.
    source = np.clip(np.round(generator.lognormal(3.2, 0.5, count)), 8, 64).astype(int)
    ratio = generator.normal(1.0, 0.15, count)
    target = np.clip(np.round(source * ratio), 8, 64).astype(int)
    return np.stack([source, target], axis=1)


def _batch(lengths: Array, rows: Array, model: BenchmarkModel) -> Batch:
    """Random tokens of these lengths."""
    generator = np.random.default_rng(int(rows[0]))
    batch_lengths = lengths[rows]
    source_width, target_width = batch_lengths.max(axis=0)
    source_mask = np.arange(source_width) < batch_lengths[:, :1]
    target_mask = np.arange(target_width) < batch_lengths[:, 1:]
    # From 4 on: the first four ids are special tokens.
    target = generator.integers(4, model.vocabulary, target_mask.shape)
    source = generator.integers(4, model.vocabulary, source_mask.shape)
    # Teacher forcing: the decoder reads the target shifted right by one.
    shifted = np.where(target_mask, np.roll(target, 1, axis=1), 0)
    # [B, T], IGNORED where there is padding
    arrays: dict[str, Array] = {"labels": np.where(target_mask, target, IGNORED)}
    if model.is_encoder_decoder:
        arrays |= {"source": np.where(source_mask, source, 0), "target": shifted}
    else:
        arrays["tokens"] = shifted
    if not source_mask.all():
        arrays["padding_mask"] = source_mask
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Batch(tensors, int(target_mask.sum()), np.asarray(rows)).pin()


def _padding_share(batches: list[Batch]) -> float:
    """The share of label positions that are padding."""
    positions = sum(batch.tensors["labels"].numel() for batch in batches)
    return 1 - sum(batch.tokens for batch in batches) / positions
