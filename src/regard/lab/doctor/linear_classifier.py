"""A ridge regression: the least that inputs say of labels, without training a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from regard.lab.doctor.hashed_words import Array

One = TypeVar("One")
RIDGE = 10.0


def ridge(x: Array, y: Array) -> Callable[[Array], Array]:
    """The least squares from inputs [N, W] to [N, C], as a function of other inputs [M, W]."""
    center, mean = x.mean(axis=0), y.mean(axis=0)
    centered = x - center
    # By the smaller of the two matrices.
    if x.shape[0] < x.shape[1]:
        inner = centered @ centered.T + RIDGE * np.eye(len(x))
        weights = centered.T @ np.linalg.solve(inner, y - mean)  # [W, C]
    else:
        inner = centered.T @ centered + RIDGE * np.eye(x.shape[1])
        weights = np.linalg.solve(inner, centered.T @ (y - mean))
    return lambda others: (others - center) @ weights + mean  # type: ignore[no-any-return]


def recall_gain(x: Array, labels: Array, others: Array, other_labels: Array) -> float:
    """By how much the mean recall of the classes [N] beats chance on other examples."""
    classes = np.unique(labels)
    one_hot = (labels[:, None] == classes).astype(float)  # [N, C]
    shares = one_hot.mean(axis=0)
    # Relative to the frequency of each class, so that rare ones are predicted as well.
    scores = (ridge(x, one_hot)(others) - shares) / shares
    predicted = classes[scores.argmax(axis=1)]
    present = np.isin(classes, other_labels)
    recalls = [(predicted[other_labels == c] == c).mean() for c in classes[present]]
    return float(np.mean(recalls)) - 1 / len(classes) if recalls else 0.0


def explained(x: Array, y: Array, others: Array, other_y: Array) -> float:
    """The share of the variance of numbers [N, C] that the inputs explain on other examples."""
    rest = np.square(other_y - ridge(x, y)(others)).sum()
    return 1.0 - float(rest / max(np.square(other_y - y.mean(axis=0)).sum(), 1e-12))


def evenly(examples: Sequence[One], count: int) -> list[One]:
    """So many examples, from all over their order."""
    places = np.linspace(0, len(examples) - 1, min(count, len(examples))).astype(int)
    return [examples[i] for i in places]
