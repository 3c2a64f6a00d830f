"""Average precision of detected boxes, as COCO counts it (Lin et al. 2014)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from regard.core import boxes
from regard.evaluation.metrics.metric import Array, Metric
from regard.system import memory

_THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of the IoU from which on a box is right
_RECALLS = np.linspace(0.0, 1.0, 101)  # at which the precision is read
_MOST = 100  # boxes of a class in an image, those with the highest scores


class _Detection(NamedTuple):
    """A detected box, in the order in which precision and recall count it."""

    score: float
    example: int
    label: int
    hits: int  # bit t: right by threshold t


class AveragePrecision(Metric):
    """The area under the curve of precision over recall, a mean over classes and thresholds.

    The statistics are blocks of three numbers: how often a box was drawn, and this times its hits
    and times its class. The blocks of boxes stand in the order of their scores; those of a class,
    whose hits are −1, count its objects. So a sum over examples says what is in a corpus.
    """

    unit: ClassVar[str] = "%"
    thresholds: ClassVar[tuple[int, ...]]  # their places

    def counts(self, predictions: Sequence[Any], references: Sequence[Any]) -> Array:
        labels = sorted({label for row in references for label, _ in row})
        detections = [
            one
            for example, pair in enumerate(zip(predictions, references, strict=True))
            for label, name in enumerate(labels)
            for one in _of_class(*pair, example, label, name)
        ]
        detections.sort(key=lambda one: -one.score)  # stable: equal scores stay in order
        columns = 3 * (len(detections) + len(labels))
        memory.require_bytes(8 * len(references) * columns, "precision and recall", "use fewer")
        counts = np.zeros((len(references), columns))
        for place, one in enumerate(detections):
            counts[one.example, 3 * place : 3 * place + 3] = 1, one.hits, one.label
        for example, row in enumerate(references):
            for name, _ in row:
                label = labels.index(name)
                place = 3 * (len(detections) + label)
                counts[example, place : place + 3] += 1, -1, label
        return counts

    def score(self, totals: Array) -> float:
        weight, hits, label = totals.reshape(-1, 3).T
        there = weight > 0
        weight = weight[there]
        hits = np.rint(hits[there] / weight).astype(np.int64)
        label = np.rint(label[there] / weight).astype(np.int64)
        objects = hits < 0
        scores = []
        for one, count in zip(label[objects], weight[objects], strict=True):
            of_class = (label == one) & ~objects
            for place in self.thresholds:
                right = (hits[of_class] >> place) & 1
                scores.append(_area(right * weight[of_class], weight[of_class], count))
        return 100 * float(np.mean(scores)) if scores else 0.0


def _area(right: Array, weight: Array, objects: float) -> float:
    """The mean of the precision at 101 recalls, each the best at this recall or a higher one."""
    hits = right.cumsum()
    precision = hits / (weight.cumsum() + np.spacing(1))
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(hits / objects, _RECALLS, side="left")
    return float(np.append(precision, 0.0)[np.minimum(places, len(precision))].mean())


def _of_class(
    predictions: Any, references: Any, example: int, label: int, name: str
) -> Iterator[_Detection]:
    """The boxes of a class in an image, matched by every threshold: the best first, each with the
    object that it overlaps most and that no better one has."""
    ranked = [(score, box) for one, score, box in predictions if one == name]
    boxes_here = sorted(ranked, key=lambda pair: -pair[0])[:_MOST]
    objects = [box for one, box in references if one == name]
    if not boxes_here:
        return
    hits = [0] * len(boxes_here)
    if objects:
        first = torch.tensor([box for _, box in boxes_here], dtype=torch.float64)[:, None]
        second = torch.tensor(objects, dtype=torch.float64)[None]
        overlaps = boxes.iou(first, second).numpy()  # [boxes, objects]
        for place, threshold in enumerate(_THRESHOLDS):
            free = np.ones(len(objects), bool)
            for i, row in enumerate(overlaps):
                row = np.where(free, row, -1.0)
                # Of equal ones the last, as pycocotools has it.
                best = len(row) - 1 - int(row[::-1].argmax())
                if row[best] >= min(threshold, 1 - 1e-10):
                    free[best] = False
                    hits[i] |= 1 << place
    for (score, _), one in zip(boxes_here, hits, strict=True):
        yield _Detection(score, example, label, one)


class MeanAveragePrecision(AveragePrecision):
    """AP: the mean over the IoU thresholds 0.5, 0.55, … 0.95, COCO's main score."""

    name = "ap"
    definition = "COCO|iou:0.5-0.95|area:all|boxes:100"
    thresholds = tuple(range(len(_THRESHOLDS)))


class AveragePrecision50(AveragePrecision):
    """AP50: a box is right if half of it and its object are common (IoU 0.5), as Pascal VOC's."""

    name = "ap50"
    definition = "COCO|iou:0.5|area:all|boxes:100"
    thresholds = (0,)


class AveragePrecision75(AveragePrecision):
    """AP75: a box is right from an IoU of 0.75 on."""

    name = "ap75"
    definition = "COCO|iou:0.75|area:all|boxes:100"
    thresholds = (5,)
