"""Whether other splits look like the training data: what tells their examples apart."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from regard.lab.doctor import stored_data
from regard.lab.doctor.hashed_words import Array, hashed, style
from regard.lab.doctor.linear_classifier import evenly, ridge
from regard.lab.doctor.run_evidence import RunEvidence
from regard.lab.doctor.stored_data import Example
from regard.training.diagnostics.finding import Finding

LEAST = 50  # examples that a statement about a split takes
MOST = 600  # of each split that are compared
BUCKETS = 2048
PIECE = 200  # characters of plain text that are an example
# Accuracies between two halves. Other subjects tell single examples apart by many weak signs;
# what one sign tells apart was written otherwise: another encoding, case, language or layout.
BY_ALL_SIGNS = 0.9
BY_ONE_SIGN = 0.75
BEYOND_DRIFT = 0.1  # more than two halves of the training text, which may change its subject
OTHER_LABELS = 0.3  # total variation of two distributions of labels: samples of one have 0.1
OTHER_SCALE = 10.0  # of numbers: times a deviation


def check_likeness(run: RunEvidence) -> Iterator[Finding]:
    """A split whose texts a linear classifier tells from those of training."""
    splits = _pieces(run)
    train = splits.get("train", [])
    for name, examples in splits.items():
        if name == "train" or min(len(examples), len(train)) < LEAST:
            continue
        by_all, by_one, sign = told_apart(train, examples)
        drift = 0.0
        if run.texts:  # in its order
            half = len(train) // 2
            drift = BEYOND_DRIFT + max(told_apart(train[:half], train[half:])[:2])
        if by_all > max(BY_ALL_SIGNS, drift) or by_one > max(BY_ONE_SIGN, drift):
            yield mismatch(
                name,
                f"a linear classifier tells {100 * max(by_all, by_one):.0f} % of the examples of "
                f"{name} and of training apart; {sign}",
            )


def _pieces(run: RunEvidence) -> dict[str, list[Example]]:
    """The texts of each split; without their labels, which are compared by themselves."""
    if run.texts:
        return {
            name: [(text[i : i + PIECE],) for i in range(0, len(text) - PIECE, PIECE)]
            for name, text in run.texts.items()
        }
    if not stored_data.is_text(run.objective):
        return {}
    return {name: [one[: _texts(run)] for one in split] for name, split in run.examples.items()}


def _texts(run: RunEvidence) -> int | None:
    """How many of the fields of an example are texts."""
    has_label = run.objective.head_task in ("classify", "tag")
    return -1 if has_label else None


def told_apart(one: Sequence[Example], other: Sequence[Example]) -> tuple[float, float, str]:
    """The accuracies of telling held-out examples apart, by all signs and by the best one."""
    count = min(MOST, len(one), len(other))
    sides = [evenly(one, count), evenly(other, count)]
    for side in sides:
        random.Random(0).shuffle(side)
    rows = [
        [f"{field}{sign}" for field, text in enumerate(example) for sign in style(text)]
        for example in [*sides[0], *sides[1]]
    ]
    x = np.minimum(hashed(rows, len(rows), BUCKETS), 1)  # [N, W]
    y = np.repeat([1.0, -1.0], count)
    accuracies = []
    for half in (0, 1):
        learn = np.arange(len(y)) % 2 == half
        difference = y[learn] @ x[learn]  # [W]
        best = int(np.abs(difference).argmax())
        by_one = np.where(x[~learn, best] > 0, 1, -1) * np.sign(difference[best])
        by_all = ridge(x[learn], y[learn][:, None])(x[~learn])[:, 0]
        accuracies.append([np.mean(each * y[~learn] > 0) for each in (by_all, by_one)])
    all_signs, one_sign = np.mean(accuracies, axis=0).tolist()
    return all_signs, one_sign, _best_sign(rows[:count], rows[count:])


def _best_sign(one: list[list[str]], other: list[list[str]]) -> str:
    shares = [Counter(sign for row in rows for sign in set(row)) for rows in (one, other)]
    sign = max(shares[0] | shares[1], key=lambda s: abs(shares[0][s] - shares[1][s]))
    here, there = (100 * share[sign] / len(one) for share in shares)
    return f"{sign[1:]!r} is in {there:.0f} % of these and in {here:.0f} % of training"


def other_labels(splits: dict[str, list[Example]]) -> Iterator[Finding]:
    """Classes whose frequencies are not those of training."""
    train = Counter(example[-1] for example in splits["train"])
    for name, examples in splits.items():
        if name == "train" or len(examples) < LEAST:
            continue
        counts = Counter(example[-1] for example in examples)
        shares = {label: counts[label] / len(examples) for label in train | counts}
        variation = sum(abs(p - train[label] / train.total()) for label, p in shares.items()) / 2
        if variation > OTHER_LABELS + math.sqrt(len(shares) / len(examples)):
            label = max(shares, key=lambda label: abs(shares[label] - train[label] / train.total()))
            yield mismatch(
                name,
                f"{100 * shares[label]:.0f} % of {name} have the label {label!r}, and "
                f"{100 * train[label] / train.total():.0f} % of the training data",
            )


def other_numbers(values: dict[str, Array]) -> Iterator[Finding]:
    """Numbers to predict that are of another size than those of training."""
    if "train" not in values:
        return
    center, deviation = values["train"].mean(), values["train"].std() + 1e-9
    for name, numbers in values.items():
        far = abs(numbers.mean() - center) if len(numbers) >= LEAST else 0.0
        if max(far, numbers.std()) > OTHER_SCALE * deviation:
            yield mismatch(
                name,
                f"the numbers of {name} have a mean of {numbers.mean():.3g} and a deviation of "
                f"{numbers.std():.3g}, those of training {center:.3g} and {deviation:.3g}",
            )


def mismatch(split: str, evidence: str) -> Finding:
    return Finding(
        "split_mismatch",
        evidence,
        f"{split} does not look like the training data",
        "prepare both in the same way and from the same source; shuffle before splitting",
        0.85,
    )
