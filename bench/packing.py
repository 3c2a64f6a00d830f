"""Bucketing against packing, in one run: `python bench/packing.py [--preset small] [--budget 2048] [--rounds 5]`.

Sentences of 8 to 64 tokens, as natural as `regard bench train` has them, are fed to one encoder–decoder in two ways: rows of
like lengths together, as training does it; and several pairs in each row, as many as fit, kept apart by document patterns.
Both compute the same loss (tests/equal/test_packing.py). What counts are real target tokens in a second of the processor,
forward and backward: that says the same on a busy machine, as long as there is one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from torch import Tensor

from regard.builder import build
from regard.core.context import Context
from regard.core.mask_patterns import DocumentMask
from regard.data.batching import padding_share, plan
from regard.families import transformer
from regard.model import EncoderDecoder
from regard.training.objectives.loss import IGNORED, linear_cross_entropy

VOCABULARY = 8000
CORPUS, MOST = (
    50_000,
    100,
)  # pairs that are sorted into buckets, and how many of these batches are taken
FEW = 2000  # pairs that are packed: rows are as full with few


def lengths(count: int) -> np.ndarray:
    """[count, 2]: sources of 8 to 64 tokens, more short ones than long ones; targets of about the same length."""
    chance = np.random.default_rng(0)
    source = np.clip(chance.gamma(3.0, 8.0, count), 8, 64)
    return np.stack(
        [source, np.clip(source * chance.normal(1.0, 0.12, count), 8, 64)], axis=1
    ).astype(np.int64)


def bucketed(sizes: np.ndarray, budget: int, most: int) -> list[dict[str, Tensor]]:
    found = []
    for rows in plan(sizes, budget, seed=0, epoch=0)[:most]:
        source, target = (
            torch.randint(4, VOCABULARY, (len(rows), int(sizes[rows, i].max()))) for i in (0, 1)
        )
        padding_mask, asked = (
            torch.arange(x.shape[1]) < torch.from_numpy(sizes[rows, i])[:, None]
            for i, x in enumerate((source, target))
        )
        batch = {"source": source, "target": target, "labels": target.masked_fill(~asked, IGNORED)}
        found.append(batch | ({} if padding_mask.all() else {"padding_mask": padding_mask}))
    return found


def fitted(sizes: np.ndarray, width: int) -> list[list[int]]:
    """Which pairs share a row: the longest first, each into the first row with room on both sides."""
    rows: list[list[int]] = []
    room = np.zeros((0, 2), dtype=np.int64)
    for pair in np.argsort(-sizes.max(axis=1), kind="stable"):
        free = np.flatnonzero((room >= sizes[pair]).all(axis=1))
        if not len(free):
            rows.append([])
            room = np.vstack([room, [[width, width]]])
            free = np.array([len(rows) - 1])
        rows[free[0]].append(int(pair))
        room[free[0]] -= sizes[pair]
    return rows


def packed(sizes: np.ndarray, budget: int, width: int) -> list[dict[str, Tensor]]:
    rows, found = fitted(sizes, width), []
    np.random.default_rng(1).shuffle(rows)
    for first in range(0, len(rows), budget // width):
        some = rows[first : first + budget // width]
        batch: dict[str, Tensor] = {}
        for side, name in enumerate(("source", "target")):
            of = torch.full((len(some), width), width)  # padding is a document of its own
            for i, row in enumerate(some):
                told = np.repeat(np.arange(len(row)), sizes[row, side])
                of[i, : len(told)] = torch.from_numpy(told)
            batch[name], batch[f"{name} of"] = torch.randint(4, VOCABULARY, of.shape), of
        labels = batch["target"].masked_fill(batch["target of"] == width, IGNORED)
        found.append(batch | {"labels": labels})
    return found


def step(model: EncoderDecoder, batch: dict[str, Tensor]) -> None:
    documents = None
    if "source of" in batch:
        documents = DocumentMask(batch["source of"]), DocumentMask(batch["target of"])
    hidden, _ = model(
        batch["source"],
        batch["target"],
        batch.get("padding_mask"),
        context=Context(documents=documents),
    )
    linear_cross_entropy(model.head, hidden, batch["labels"], 0.1)[0].backward()


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--preset", default="small")
    asked.add_argument("--budget", type=int, default=2048)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--batches", type=int, default=6)
    asked.add_argument("--threads", type=int, default=1)
    given = asked.parse_args()
    torch.manual_seed(0)
    model = build(transformer.preset(given.preset, VOCABULARY, VOCABULARY)).train()
    torch.set_num_threads(given.threads)
    sizes = lengths(CORPUS)
    ways = {"bucketed": bucketed(sizes, given.budget, MOST)}
    for width in (64, 128, 256):
        ways[f"packed to {width}"] = packed(sizes[:FEW], given.budget, width)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(given.rounds + 1):
        for name, batches in ways.items():
            some = [
                batches[(turn * given.batches + i) % len(batches)] for i in range(given.batches)
            ]
            began = time.process_time()
            for batch in some:
                step(model, batch)
            seconds = time.process_time() - began
            if turn:  # the first round warms up
                rates[name].append(sum(int((b["labels"] != IGNORED).sum()) for b in some) / seconds)
    print(
        f"{given.preset}, {torch.get_num_threads()} threads, {given.budget} cells a batch: real target tokens/s"
    )
    print(
        f"padding of buckets: {padding_share(sizes, plan(sizes, given.budget, seed=0, epoch=0)):.1%}"
    )
    base = statistics.median(rates["bucketed"])
    for name, found in rates.items():
        labels = torch.cat([batch["labels"].flatten() for batch in ways[name]])
        full = (labels != IGNORED).float().mean().item()
        middle = statistics.median(found)
        print(
            f"{name:15} {middle:8,.0f}  {middle / base:5.2f} ×  ({min(found):,.0f} to {max(found):,.0f}; {full:.0%} real)"
        )


if __name__ == "__main__":
    main()
