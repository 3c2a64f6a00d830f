"""How a training step grows: time and memory over one size after the other, and the exponent of each.

python bench/growth.py [--rounds 3]

One step is forward, loss and backward of a GPT-2. Time is that of the processor, with one thread,
the least of several rounds; what it should grow by is the growth of the operations that a trace
counts. Memory is what the allocator gives out; what it should grow by, that of all tensors in the
trace. A corpus is read by the training of its tokenizer, in time linear in its lines.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from regard.builder import build
from regard.data.text.tokenizer_training import train_tokenizer
from regard.families.presets import preset
from regard.lab.measure.instruments import (
    allocated_peak,
    count_flops,
    growth_exponent,
    peak_bytes,
)
from regard.training.objectives.losses import linear_cross_entropy

# From these sizes, one at a time grows.
SIZES = {"length": 128, "batch": 4, "width": 128, "depth": 2, "vocabulary": 1000}
GROWN = {
    "length": (256, 512, 1024, 2048),
    "batch": (4, 8, 16, 32),
    "width": (256, 512, 1024),
    "depth": (4, 8, 16),
    "vocabulary": (8000, 16000, 32000, 64000),
}
LINES = (2000, 4000, 8000, 16000)


def training_step(
    length: int, batch: int, width: int, depth: int, vocabulary: int
) -> Callable[[], None]:
    """Forward, loss and backward of a language model of these sizes."""
    torch.manual_seed(0)
    sizes = {"d_model": width, "d_ff": 4 * width, "heads": max(1, width // 64), "layers": depth}
    model: Any = build(preset("gpt2:tiny", vocabulary, length, dropout=0.0, **sizes)).train()
    tokens = torch.randint(vocabulary, (batch, length))

    def step() -> None:
        hidden, _ = model(tokens)
        loss, _ = linear_cross_entropy(model.head, hidden, tokens)
        loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def corpus(lines: int) -> list[str]:
    """So many lines of twenty random words."""
    words = np.random.default_rng(0).integers(0, 3000, (lines, 20))
    return [" ".join(f"w{number}" for number in line) for line in words]


def processor_seconds(call: Callable[[], object], rounds: int) -> float:
    """The least of several rounds, after one that does not count."""
    call()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def exponents(grown: Sequence[int], measured: Sequence[float], expected: Sequence[float]) -> str:
    return f"{growth_exponent(grown, measured):6.2f} {growth_exponent(grown, expected):9.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"{'':12} {'from … to':>16}   time  expected   memory  expected")
    for name, grown in GROWN.items():
        steps = [training_step(**{**SIZES, name: size}) for size in grown]
        seconds = [processor_seconds(step, rounds) for step in steps]
        time_growth = exponents(grown, seconds, [count_flops(step) for step in steps])
        peaks = [allocated_peak(step) for step in steps]
        memory_growth = exponents(grown, peaks, [peak_bytes(step) for step in steps])
        print(
            f"{name:12} {f'{grown[0]} … {grown[-1]}':>16} {time_growth}   {memory_growth}",
            flush=True,
        )
    readings = [partial(train_tokenizer, corpus(lines), "words", 4000) for lines in LINES]
    seconds = [processor_seconds(reading, rounds) for reading in readings]
    growth = exponents(LINES, seconds, LINES)
    print(f"{'corpus':12} {f'{LINES[0]} … {LINES[-1]}':>16} {growth}", flush=True)


if __name__ == "__main__":
    main()
