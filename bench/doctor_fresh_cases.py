"""Diseases and healthy runs of real data by a third hand, before it had read the checks.

As in `doctor_blind_cases.py`: what is right was written down from the list of names alone, and
committed before anything was run. Two lengths that training refuses (a context of four, commands of
six tokens) were raised to eight.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import doctor_real_data as real
import numpy as np
from doctor_blind_cases import (
    OUT,
    captions_only,
    case,
    commands,
    enzyme,
    german,
    hours,
    in_place,
    letters,
    papers,
    pictures,
    sentiment,
    sounds_of_words,
    spoken,
    structure,
)
from doctor_cases import Sick, Unshifted
from doctor_real_data import Pair
from torch import Tensor

from regard.extend import CausalLM


class Climbing(CausalLM):
    """The loss of a language model, maximized."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, reported = super().loss(tensors)
        return -loss, reported


# --- what spoils the examples ---------------------------------------------------------------------


def slipped_half(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    """From the middle on, each source has the target of the line before it."""
    half = len(pairs) // 2
    targets = [target for _, target in pairs]
    targets[half:] = [targets[-1], *targets[half:-1]]
    return [(source, target) for (source, _), target in zip(pairs, targets, strict=True)]


def exchanged(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(target, source) for source, target in pairs]


def spaced_capitals(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(text.upper().replace(" ", "  "), label) for text, label in pairs]


def repeated(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return rng.sample(pairs[:150] * 20, 3000)


def with_target(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(f"{source} ||| {target}", target) for source, target in pairs]


def other_labels(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    labels = rng.sample([label for _, label in pairs], len(pairs))
    return [(text, label) for (text, _), label in zip(pairs, labels, strict=True)]


def in_percent(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    """One label of a hundred was entered in percent of percent."""
    return [(x, str(1e4 * float(y)) if rng.random() < 0.01 else y) for x, y in pairs]


def thrice(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(text, rng.choice("01")) for text, _ in pairs[:1000] for _ in range(3)]


def copied(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(s, s) if rng.random() < 0.6 else (s, t) for s, t in pairs]


def from_training(train: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    valid[:] = rng.sample(train, 300)


def backwards_tags(train: list[Any], valid: list[Any], rng: random.Random) -> None:
    for split in (train, valid):
        split[:] = [(tokens, tags[::-1]) for tokens, tags in split]


def white_noise(table: list[list[str]], rng: random.Random) -> None:
    for row in table[1:]:
        row[1:] = [f"{rng.gauss(0, 1):.3f}" for _ in row[1:]]


def later_in_milli(table: list[list[str]], rng: random.Random) -> None:
    """The last fifth of the hours is measured in other units."""
    for row in table[1 + 4 * len(table) // 5 :]:
        row[1:] = [f"{1000 * float(value):.1f}" for value in row[1:]]


def without_words(nodes: list[list[str]], edges: list[list[str]], rng: random.Random) -> None:
    for node in nodes:
        node[3] = "0"


def nearly_black(pixels: np.ndarray, label: int) -> np.ndarray:
    return (pixels // 255).astype(np.uint8)


def first_moment(sound: np.ndarray) -> np.ndarray:
    """A hundredth of a second of it, and silence."""
    return np.concatenate([sound[:80], np.zeros_like(sound[80:])])


def passages(folder: Path, rng: random.Random) -> Sick:
    """Validation has passages of the training text, with other line breaks."""
    text = real.shakespeare()[:300_000]
    starts = [rng.randrange(len(text) - 1500) for _ in range(20)]
    valid = "\n\n".join(" ".join(text[i : i + 1500].split()) for i in starts)
    return real.language(folder, " ".join(text.split()), valid, learning_rate=3e-3)


SICK = [
    # data
    case("half of the targets slipped", "misaligned_sides", german(in_place(slipped_half, "train"))),
    case("sides of validation exchanged", "swapped_sides split_mismatch",
         german(in_place(exchanged, "valid"))),
    case("validation in capitals", "split_mismatch unknown_tokens",
         sentiment(in_place(spaced_capitals, "valid"))),
    case("150 reviews twenty times", "duplicate_examples", sentiment(in_place(repeated, "train"))),
    case("target behind the source", "answers_in_input",
         german(in_place(with_target, "train", "valid"))),
    case("fitness shuffled", "labels_unrelated", enzyme(in_place(other_labels, "train", "valid"))),
    case("some labels ten thousand times", "label_scale", enzyme(in_place(in_percent, "train"))),
    case("three random labels a review", "conflicting_labels labels_unrelated",
         sentiment(in_place(thrice, "train"))),
    case("validation copies its sources", "untranslated_lines split_mismatch",
         german(in_place(copied, "valid"), ("en", "fr"))),
    case("words of validation in training", "test_in_train", sounds_of_words(from_training)),
    case("tags backwards", "misaligned_sides labels_unrelated", structure(backwards_tags)),
    case("series of white noise", "labels_unrelated", hours(white_noise)),
    case("last hours in other units", "split_mismatch label_scale", hours(later_in_milli)),
    case("papers without words", "identical_inputs", papers(without_words)),
    case("pictures nearly black", "identical_inputs labels_unrelated", pictures(nearly_black)),
    case("a hundredth of a second", "labels_unrelated identical_inputs cut_off_inputs",
         spoken(first_moment)),
    case("passages of training validate", "test_in_train", passages),
    case("reviews cut at eight tokens", "cut_off_inputs", sentiment(context=8)),
    case("most commands too long", "dropped_examples", commands(max_length=8)),
    case("a hundred words known", "unknown_tokens", sentiment(tokenizer="words", vocabulary=100)),
    # settings
    case("rate of 1, pictures", f"{OUT} rate_too_high diverging_loss", pictures(learning_rate=1.0)),
    case("rate of 1e-9, proteins", "rate_too_low", structure(learning_rate=1e-9)),
    case("dropout .9, letters", f"{OUT} dropout_too_high", letters(dropout=0.9)),
    case("epsilon of .1, letters", OUT, letters(adam_eps=0.1)),
    case("weight decay 20, commands", f"{OUT} weight_decay_too_high", commands(weight_decay=20.0)),
    case("start of deviation 1, proteins", "bad_initialization", structure(init="normal:1.0")),
    case("masks 1 %", OUT, captions_only("en", "masked", "bert:tiny", mask_ratio=0.01)),
    case("label smoothing .85, captions", OUT, german(label_smoothing=0.85)),
    case("momentum .9995, captions", OUT, german(betas=[0.9995, 0.999])),
    case("no positions, letters", "order_unseen", captions_only(
        "de", "masked", "bert:tiny", position="none", steps=120)),
    case("wrong sign, letters", "wrong_sign", letters(objective_class=Climbing)),
    case("targets not shifted, letters", "targets_not_shifted", letters(objective_class=Unshifted)),
]  # fmt: skip

HEALTHY = [
    case("de to en, dropout .3", "", german(steps=120, dropout=0.3, label_smoothing=0.1)),
    case("fr to de, words", "", german(sides=("fr", "de"), tokenizer="words", steps=120)),
    case("German captions, GPT-2 of letters", "", captions_only(
        "de", "causal", "gpt2:tiny", tokenizer="characters", steps=120)),
    case("reviews by letters", "", sentiment(tokenizer="characters", context=128, steps=120)),
    case("sounds to words", "", sounds_of_words(in_place(exchanged, "train", "valid"), steps=120)),
    case("structure of proteins, one layer", "", structure(layers=1, steps=120)),
    case("ETTh2", "", hours(file="ETTh2")),
    case("pictures, xavier, three layers", "", pictures(layers=3, steps=120, seed=4)),
]  # fmt: skip
