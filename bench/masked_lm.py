"""A training step of masked language modelling: logits of all positions, or of masked ones only.

python bench/masked_lm.py [--device cuda] [--model bert:base] [--rows 64] [--length 256] [--rounds 9]

The second is what training does: on a CPU the other rows are left out, on a GPU the loss is fused
with the head. The two take turns; forward and backward pass, no optimizer. Medians, with the
fastest and the slowest round, the first three left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from regard.builder import build
from regard.data.padding import IGNORED
from regard.families.presets import preset
from regard.training.objectives.losses import (
    cross_entropy,
    linear_cross_entropy,
)

VOCABULARY = 30_522
MASKED = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if has_gpu else "cpu")
    parser.add_argument("--model", default="bert:base" if has_gpu else "bert:tiny")
    parser.add_argument("--rows", type=int, default=64 if has_gpu else 8)
    parser.add_argument("--length", type=int, default=256 if has_gpu else 128)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    device = arguments.device
    on_gpu = device.startswith("cuda")
    torch.manual_seed(0)
    model: Any = build(preset(arguments.model, VOCABULARY, 512)).to(device).train()
    tokens = torch.randint(0, VOCABULARY, (arguments.rows, arguments.length), device=device)
    masked = torch.rand(tokens.shape, device=device) < MASKED
    labels = tokens.masked_fill(~masked, IGNORED)

    def step(way: str) -> tuple[float, float]:
        """Seconds of a step, and the peak memory in GiB."""
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        started = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            hidden, _ = model(tokens, None)
            if way == "all positions":
                loss, _ = cross_entropy(model.head(hidden), labels)
            else:
                loss, _ = linear_cross_entropy(model.head, hidden, labels)
        loss.backward()
        model.zero_grad(set_to_none=True)
        if not on_gpu:
            return time.perf_counter() - started, 0.0
        torch.cuda.synchronize()
        return time.perf_counter() - started, torch.cuda.max_memory_allocated() / 2**30

    ways = ("all positions", "masked positions")
    results: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(arguments.rounds + 3):
        for way in ways:
            results[way].append(step(way))
    for way, rounds in results.items():
        seconds = sorted(one for one, _ in rounds[3:])
        median = statistics.median(seconds) * 1e3
        memory = f", peak {rounds[-1][1]:.1f} GiB" if on_gpu else ""
        spread = f"({seconds[0] * 1e3:.1f} to {seconds[-1] * 1e3:.1f})"
        print(f"{arguments.model} {way:17} {median:.1f} ms {spread}{memory}")


if __name__ == "__main__":
    main()
