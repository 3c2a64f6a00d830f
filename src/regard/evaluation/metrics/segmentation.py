"""How much masks have in common: mean intersection over union, and pixel accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from regard.evaluation.metrics.metric import Array, Metric, percent
from regard.system.errors import DataError

_NO_CLASS = 255  # of a pixel that nobody has labelled


class MeanIoU(Metric):
    """mIoU: for each class its pixels in common, as a share of those that either mask gives it; a
    mean over the classes that occur. Pixels without a label count for nothing."""

    name = "miou"
    unit: ClassVar[str] = "%"
    definition = "classes:those that occur|ignored:255"

    def counts(self, predictions: Sequence[Any], references: Sequence[Any]) -> Array:
        """For each image and class the pixels in common, those predicted, and those labelled."""
        pairs = [labelled_pixels(*pair) for pair in zip(predictions, references, strict=True)]
        count = 1 + max(int(side.max(initial=0)) for pair in pairs for side in pair)
        rows = [
            [
                np.bincount(one[one == other], minlength=count),
                np.bincount(one, minlength=count),
                np.bincount(other, minlength=count),
            ]
            for one, other in pairs
        ]
        return np.array(rows, np.float64).reshape(len(rows), -1)

    def score(self, totals: Array) -> float:
        common, predicted, labelled = totals.reshape(3, -1)
        either = predicted + labelled - common
        occurs = either > 0
        return 100 * float((common[occurs] / either[occurs]).mean()) if occurs.any() else 0.0


class PixelAccuracy(Metric):
    """The share of labelled pixels whose class is right."""

    name = "pixel_accuracy"
    unit: ClassVar[str] = "%"
    definition = "ignored:255"

    def count(self, prediction: Any, reference: Any) -> Sequence[float]:
        predicted, labelled = labelled_pixels(prediction, reference)
        return float((predicted == labelled).sum()), float(len(labelled))

    def score(self, totals: Array) -> float:
        return percent(*totals)


def labelled_pixels(prediction: Any, reference: Any) -> tuple[Array, Array]:
    """The classes of the pixels that have one, in both masks: [pixels] each."""
    predicted, labelled = np.asarray(prediction), np.asarray(reference)
    if predicted.shape != labelled.shape:
        raise DataError(
            f"a mask of {predicted.shape} pixels does not fit to one of {labelled.shape}",
            "predict masks in the size of the image",
        )
    there = labelled != _NO_CLASS
    return predicted[there], labelled[there]
