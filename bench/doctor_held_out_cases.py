"""Diseases of real data that were written after the general checks, and before either was tried.

As in `doctor_blind_cases.py`, what is right was written down before anything was run.
"""

from __future__ import annotations

import random
from pathlib import Path

import doctor_real_data as real
import numpy as np
from doctor_blind_cases import (
    OUT,
    case,
    commands,
    enzyme,
    german,
    hours,
    in_place,
    letters,
    pictures,
    sentiment,
    spoken,
    structure,
)
from doctor_cases import Sick
from doctor_real_data import Pair


def misspelt(train: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    """Validation repeats training, every other word with two letters exchanged."""

    def typo(word: str) -> str:
        place = rng.randrange(max(1, len(word) - 1))
        return word[:place] + word[place : place + 2][::-1] + word[place + 2 :]

    valid[:] = [
        (" ".join(typo(w) if rng.random() < 0.5 else w for w in source.split()), target)
        for source, target in rng.sample(train, 300)
    ]


def line_breaks(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(text.replace(" ", " <br /> ", 2), label) for text, label in pairs]


def inverted(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(text, {"0": "1", "1": "0"}[label]) for text, label in pairs]


def placeholders(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [("n / a" if rng.random() < 0.6 else source, target) for source, target in pairs]


def backwards(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(source, " ".join(reversed(target.split()))) for source, target in pairs]


def constant(table: list[list[str]], rng: random.Random) -> None:
    for row in table[1:]:
        row[1:] = table[1][1:]


def one_page(folder: Path, rng: random.Random) -> Sick:
    text = real.shakespeare()
    return real.language(folder, text[:6000] * 50, text[-30_000:], learning_rate=3e-3)


def noise(pixels: np.ndarray, label: int) -> np.ndarray:
    return np.random.default_rng(int(pixels.sum())).integers(0, 256, pixels.shape).astype(np.uint8)


def hiss(sound: np.ndarray) -> np.ndarray:
    return np.random.default_rng(len(sound)).normal(0, 3000, len(sound)).astype(np.int16)


SICK = [
    case("valid repeats train, misspelt", "test_in_train", german(misspelt)),
    case("targets of training backwards", "split_mismatch", german(in_place(backwards, "train"))),
    case("sources that are placeholders", "conflicting_labels identical_inputs duplicate_examples",
         german(in_place(placeholders, "train"))),
    case("line breaks in training", "split_mismatch", sentiment(in_place(line_breaks, "train"))),
    case("labels of dev inverted", "labels_unrelated", sentiment(in_place(inverted, "valid"))),
    case("one page fifty times", "duplicate_examples", one_page),
    case("pictures of noise", "labels_unrelated", pictures(noise)),
    case("recordings of noise", "labels_unrelated", spoken(hiss)),
    case("measurements that stand still", "identical_inputs", hours(constant)),
    case("label smoothing .9, reviews", OUT, sentiment(label_smoothing=0.9)),
    case("dropout .95, proteins", f"{OUT} dropout_too_high", structure(dropout=0.95)),
    case("weight decay 30, letters", f"{OUT} weight_decay_too_high", letters(weight_decay=30.0)),
    case("epsilon of 1, proteins", OUT, structure(adam_eps=1.0)),
    case("start of deviation 1e-6", "bad_initialization", letters(init="normal:0.000001")),
    case("rate of 10, enzyme", "rate_too_high diverging_loss", enzyme(learning_rate=10.0)),
    case("no positions, commands", "order_unseen", commands(position="none")),
    case("average that lags, captions", "unmoved_weights", german(final_weights="ema:0.9999")),
    case("warm-up of ten runs", f"{OUT} rate_too_low", sentiment(warmup_steps=600)),
]  # fmt: skip
