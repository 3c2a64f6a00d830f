"""The effect of mutations on β-lactamase: Spearman's ρ of a small Transformer and of simple baselines.

A variant is read as three characters: its place, the residue of the wild type, the new residue. A tenth
of the variants is the test, a hundredth validates (`regard.data.published`).

Run it: python bench/beta_lactamase.py DATA_DIR [SEED …]
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

import regard
from regard.data.published import split_by_hash
from regard.data.text_files import lines
from regard.evaluation.metrics.regression import SpearmanCorrelation

RESIDUES = "ARNDCQEGHILKMFPSTWYV"
# Henikoff and Henikoff 1992, in the order of RESIDUES.
BLOSUM62 = """
 4 -1 -2 -2  0 -1 -1  0 -2 -1 -1 -1 -1 -2 -1  1  0 -3 -2  0
-1  5  0 -2 -3  1  0 -2  0 -3 -2  2 -1 -3 -2 -1 -1 -3 -2 -3
-2  0  6  1 -3  0  0  0  1 -3 -3  0 -2 -3 -2  1  0 -4 -2 -3
-2 -2  1  6 -3  0  2 -1 -1 -3 -4 -1 -3 -3 -1  0 -1 -4 -3 -3
 0 -3 -3 -3  9 -3 -4 -3 -3 -1 -1 -3 -1 -2 -3 -1 -1 -2 -2 -1
-1  1  0  0 -3  5  2 -2  0 -3 -2  1  0 -3 -1  0 -1 -2 -1 -2
-1  0  0  2 -4  2  5 -2  0 -3 -3  1 -2 -3 -1  0 -1 -3 -2 -2
 0 -2  0 -1 -3 -2 -2  6 -2 -4 -4 -2 -3 -3 -2  0 -2 -2 -3 -3
-2  0  1 -1 -3  0  0 -2  8 -3 -3 -1 -2 -1 -2 -1 -2 -2  2 -3
-1 -3 -3 -3 -1 -3 -3 -4 -3  4  2 -3  1  0 -3 -2 -1 -3 -1  3
-1 -2 -3 -4 -1 -2 -3 -4 -3  2  4 -2  2  0 -3 -2 -1 -2 -1  1
-1  2  0 -1 -3  1  1 -2 -1 -3 -2  5 -1 -3 -1  0 -1 -3 -2 -2
-1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5  0 -2 -1 -1 -1 -1  1
-2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6 -4 -2 -2  1  3 -1
-1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7 -1 -1 -4 -3 -2
 1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4  1 -3 -2 -2
 0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5 -2 -2  0
-3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11  2 -3
-2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7 -1
 0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4
"""


FIRST_PLACE = 0x4E00  # of as many letters as there are places


class Variant(NamedTuple):
    place: int
    old: str
    new: str
    fitness: float

    @property
    def row(self) -> tuple[str, float]:
        """As a model reads it: a character each, of places one of their own."""
        return f"{chr(FIRST_PLACE + self.place)}{self.old}{self.new.lower()}", self.fitness


def variants(folder: Path) -> dict[str, list[Variant]]:
    """The variants of each split."""
    splits: dict[str, list[Variant]] = {"train": [], "valid": [], "test": []}
    for line in lines(folder / "proteins" / "beta_lactamase.fasta.gz"):
        found = re.fullmatch(r">\d+\|beta-lactamase_([A-Z])(\d+)([A-Z])\|(.*)", line.strip())
        if found:
            old, place, new, fitness = found.groups()
            variant = Variant(int(place), old, new, float(fitness))
            splits[split_by_hash(line.strip()[1:])].append(variant)
    return splits


def spearman(predictions: list[float], references: list[float]) -> float:
    metric = SpearmanCorrelation()
    return metric.score(np.sum(metric.counts(predictions, references), axis=0))


def baselines(train: list[Variant], test: list[Variant]) -> dict[str, list[float]]:
    """The numbers by which each baseline ranks the test variants."""
    matrix = np.array([row.split() for row in BLOSUM62.split("\n") if row], dtype=int)
    mean = float(np.mean([one.fitness for one in train]))
    places: dict[int, list[float]] = {}
    for one in train:
        places.setdefault(one.place, []).append(one.fitness)
    of_place = {place: float(np.mean(values)) for place, values in places.items()}
    rest: dict[str, list[float]] = {}
    for one in train:
        rest.setdefault(one.new, []).append(one.fitness - of_place[one.place])
    of_residue = {residue: float(np.mean(values)) for residue, values in rest.items()}
    by_place = [of_place.get(one.place, mean) for one in test]
    return {
        "BLOSUM62": [
            float(matrix[RESIDUES.index(one.old), RESIDUES.index(one.new)]) for one in test
        ],
        "mean of the place": by_place,
        "mean of the place and of the new residue": [
            value + of_residue[one.new] for value, one in zip(by_place, test, strict=True)
        ],
    }


if __name__ == "__main__":
    splits = variants(Path(sys.argv[1]))
    test = splits["test"]
    print({name: len(rows) for name, rows in splits.items()})
    fitness = [one.fitness for one in test]
    for name, predictions in baselines(splits["train"], test).items():
        print(f"{name}: {spearman(predictions, fitness):.3f}")
    for seed in map(int, sys.argv[2:] or ["1"]):
        result = regard.train(
            model="bert:tiny",
            objective="regress",
            data=[one.row for one in splits["train"]],
            valid=[one.row for one in splits["valid"]],
            test=[one.row for one in test],
            out=f"{tempfile.mkdtemp()}/run",
            tokenizer="characters",
            context=8,
            d_model=64,
            dropout=0.2,
            init="xavier",
            steps=2000,
            batch_tokens=640,
            optimizer="adamw",
            weight_decay=0.01,
            schedule="cosine",
            learning_rate=0.001,
            warmup_steps=100,
            label_smoothing=0.0,
            validate_every=500,
            final_weights="last",
            seed=seed,
            metrics=["spearman"],
        )
        print(f"Transformer, seed {seed}: {result.metrics['test']['spearman']:.3f}", flush=True)
