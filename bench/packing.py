"""Bucketing against sequence packing, in one run.

python bench/packing.py [--preset small] [--budget 2048] [--rounds 5]

Sentences of 8 to 64 tokens are fed to one encoder–decoder in two ways: rows of like lengths
together, as training does it; and several pairs in each row, as many as fit, separated by document
masks. Both compute the same loss (tests/equal/test_packing.py). What counts are real target tokens
a second of processor time, forward and backward: with one thread, that is the same on a busy
machine.
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
from regard.core.masks.mask import DocumentMask
from regard.data.batching import batch_indices
from regard.data.padding import IGNORED
from regard.families.encoder_decoders import transformer
from regard.training.objectives.losses import linear_cross_entropy
from regard.wirings.encoder_decoder import EncoderDecoder

VOCABULARY = 8000
CORPUS = 50_000  # pairs that are sorted into buckets
MAX_BATCHES = 100  # batches that are taken of these buckets
PACKED_PAIRS = 2000  # pairs that are packed: rows are as full with few


def lengths(count: int) -> np.ndarray:
    """[count, 2]: sources of 8 to 64 tokens, more short ones than long ones; targets alike."""
    generator = np.random.default_rng(0)
    source = np.clip(generator.gamma(3.0, 8.0, count), 8, 64)
    target = np.clip(source * generator.normal(1.0, 0.12, count), 8, 64)
    return np.stack([source, target], axis=1).astype(np.int64)


def bucketed(sizes: np.ndarray, budget: int, max_batches: int) -> list[dict[str, Tensor]]:
    batches = []
    for rows in batch_indices(sizes, budget, seed=0, epoch=0)[:max_batches]:
        source, source_mask = random_rows(sizes[rows, 0])
        target, target_mask = random_rows(sizes[rows, 1])
        labels = target.masked_fill(~target_mask, IGNORED)
        batch = {"source": source, "target": target, "labels": labels}
        if not source_mask.all():
            batch["padding_mask"] = source_mask
        batches.append(batch)
    return batches


def random_rows(row_lengths: np.ndarray) -> tuple[Tensor, Tensor]:
    """Random token ids [B, S] and their padding mask, True for tokens."""
    width = int(row_lengths.max())
    tokens = torch.randint(4, VOCABULARY, (len(row_lengths), width))
    mask = torch.arange(width) < torch.from_numpy(row_lengths)[:, None]
    return tokens, mask


def fitted(sizes: np.ndarray, width: int) -> list[list[int]]:
    """Which pairs share a row: first fit, the longest first, with room on both sides."""
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
    rows = fitted(sizes, width)
    np.random.default_rng(1).shuffle(rows)
    batches = []
    for first in range(0, len(rows), budget // width):
        batch_rows = rows[first : first + budget // width]
        batch: dict[str, Tensor] = {}
        for side, name in enumerate(("source", "target")):
            # The document of each position; padding is a document of its own.
            documents = torch.full((len(batch_rows), width), width)
            for i, row in enumerate(batch_rows):
                numbers = np.repeat(np.arange(len(row)), sizes[row, side])
                documents[i, : len(numbers)] = torch.from_numpy(numbers)
            batch[name] = torch.randint(4, VOCABULARY, documents.shape)
            batch[f"{name} of"] = documents
        padding_positions = batch["target of"] == width
        batch["labels"] = batch["target"].masked_fill(padding_positions, IGNORED)
        batches.append(batch)
    return batches


def step(model: EncoderDecoder, batch: dict[str, Tensor]) -> None:
    context = Context()
    if "source of" in batch:
        context.documents = DocumentMask(batch["source of"])
        context.target_documents = DocumentMask(batch["target of"])
    hidden, _ = model(
        batch["source"],
        batch["target"],
        batch.get("padding_mask"),
        context=context,
    )
    linear_cross_entropy(model.head, hidden, batch["labels"], 0.1)[0].backward()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="small")
    parser.add_argument("--budget", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = build(transformer.preset(options.preset, VOCABULARY, VOCABULARY)).train()
    torch.set_num_threads(options.threads)
    sizes = lengths(CORPUS)
    ways = {"bucketed": bucketed(sizes, options.budget, MAX_BATCHES)}
    for width in (64, 128, 256):
        ways[f"packed to {width}"] = packed(sizes[:PACKED_PAIRS], options.budget, width)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name, batches in ways.items():
            first = turn * options.batches
            chosen = [batches[(first + i) % len(batches)] for i in range(options.batches)]
            start = time.process_time()
            for batch in chosen:
                step(model, batch)
            seconds = time.process_time() - start
            if turn:  # the first round warms up
                tokens = sum(int((batch["labels"] != IGNORED).sum()) for batch in chosen)
                rates[name].append(tokens / seconds)
    print(
        f"{options.preset}, {torch.get_num_threads()} threads, {options.budget} cells a batch: "
        "real target tokens/s"
    )
    buckets = batch_indices(sizes, options.budget, seed=0, epoch=0)
    cells = sum(len(rows) * int(sizes[rows].max(axis=0).sum()) for rows in buckets)
    print(f"padding of buckets: {1 - sizes.sum() / cells:.1%}")
    baseline = statistics.median(rates["bucketed"])
    for name, measured in rates.items():
        labels = torch.cat([batch["labels"].flatten() for batch in ways[name]])
        full = (labels != IGNORED).float().mean().item()
        median = statistics.median(measured)
        spread = f"{min(measured):,.0f} to {max(measured):,.0f}"
        print(f"{name:15} {median:8,.0f}  {median / baseline:5.2f} ×  ({spread}; {full:.0%} real)")


if __name__ == "__main__":
    main()
