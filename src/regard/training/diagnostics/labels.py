"""Statistics of the labels of batches: their entropy, which losses are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.data.padding import IGNORED

MAX_CLASSES = 1 << 20


def class_labels(tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The labels of a batch that count, [N], where they are classes."""
    labels = tensors.get("labels")
    if labels is None or labels.is_floating_point():
        return None
    labels = labels.reshape(-1)
    return labels[labels != IGNORED]


def label_counts(batches: Iterable[Batch]) -> Tensor | None:
    """How often each class is a label of these batches; None where labels are not classes."""
    counts: Tensor | None = None
    for batch in batches:
        labels = class_labels(batch.tensors)
        # Where the loss is a mean over something else (pairs, recordings), labels are no classes.
        if labels is None or len(labels) != batch.tokens or not len(labels):
            return None
        if int(labels.max()) >= MAX_CLASSES or int(labels.min()) < 0:
            return None
        more = torch.bincount(labels.cpu())  # as long as its largest label
        if counts is not None and len(counts) > len(more):
            counts[: len(more)] += more
        elif counts is not None:
            more[: len(counts)] += counts
            counts = more
        else:
            counts = more
    return counts


def entropy(counts: Tensor) -> float:
    """The entropy of these frequencies in nats, with Miller and Madow's correction of its bias."""
    total = float(counts.sum())
    shares = counts[counts > 0].double() / total
    plain = float(-(shares * shares.log()).sum())
    return min(plain + (len(shares) - 1) / (2 * total), math.log(max(2, len(counts))))
