"""Average precision against pycocotools on the same boxes, and what must hold of any boxes."""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from regard.evaluation.metrics.metric import Metric
from regard.evaluation.metrics.registry import metric
from regard.evaluation.metrics.significance import approximate_randomization, confidence_interval
from seeds import SEEDS

NAMES = ("cell", "dog", "tree")
Boxes = list[Any]


def corners(draw: np.random.Generator) -> tuple[float, ...]:
    left, top = draw.uniform(0, 60, 2)
    width, height = draw.uniform(5, 40, 2)
    return left, top, left + width, top + height


def corpus(seed: int, images: int = 12) -> tuple[list[Boxes], list[Boxes]]:
    """Predictions near objects, beside them, twice, of other classes; some scores are equal."""
    draw = np.random.default_rng(seed)
    predictions, references = [], []
    for _ in range(images):
        objects = [(NAMES[draw.integers(3)], corners(draw)) for _ in range(draw.integers(0, 7))]
        found = []
        for name, box in objects:
            for _ in range(draw.integers(0, 3)):
                moved = tuple(np.array(box) + draw.normal(0, 2.5, 4))
                label = name if draw.random() < 0.85 else NAMES[draw.integers(3)]
                found.append((label, round(float(draw.random()), 1), moved))
        found += [(NAMES[draw.integers(3)], float(draw.random()), corners(draw))] * 2
        references.append(objects)
        predictions.append(found)
    return predictions, references


def of_coco(predictions: list[Boxes], references: list[Boxes]) -> dict[str, float]:
    """pycocotools' scores of them."""
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")

    def sides(box: Any) -> list[float]:
        left, top, right, bottom = box
        return [left, top, right - left, bottom - top]

    objects = [
        {"image_id": i, "category_id": NAMES.index(name), "bbox": sides(box), "iscrowd": 0,
         "area": float(np.prod(sides(box)[2:]))}
        for i, row in enumerate(references) for name, box in row
    ]  # fmt: skip
    found = [
        {"image_id": i, "category_id": NAMES.index(name), "bbox": sides(box), "score": score}
        for i, row in enumerate(predictions) for name, score, box in row
    ]  # fmt: skip
    truth = coco.COCO()
    truth.dataset = {
        "images": [{"id": i} for i in range(len(references))],
        "categories": [{"id": i, "name": name} for i, name in enumerate(NAMES)],
        "annotations": [{"id": i, **one} for i, one in enumerate(objects, 1)],
        "info": {},
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        judge = cocoeval.COCOeval(truth, truth.loadRes(found), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return dict(zip(("ap", "ap50", "ap75"), 100 * judge.stats, strict=False))


@pytest.mark.parametrize("seed", SEEDS)
def test_as_pycocotools(seed: int) -> None:
    predictions, references = corpus(seed)
    for name, expected in of_coco(predictions, references).items():
        assert metric(name).compute(predictions, references) == pytest.approx(expected, abs=1e-9)


def test_a_resampled_corpus_is_scored_as_if_it_were_written_down() -> None:
    predictions, references = corpus(0)
    weights = [2, 0, 1, 3, 0, 0, 1, 1, 2, 1, 0, 1]
    one: Metric = metric("ap")
    totals = np.array(weights) @ one.statistics(predictions, references)
    written: dict[str, list[Any]] = defaultdict(list)
    for weight, found, objects in zip(weights, predictions, references, strict=True):
        written["found"] += [found] * weight
        written["objects"] += [objects] * weight
    assert one.score(totals) == pytest.approx(one.compute(written["found"], written["objects"]))


@pytest.mark.parametrize("name", ["ap", "ap50", "ap75"])
def test_perfect_boxes_and_none(name: str) -> None:
    _, references = corpus(1)
    perfect = [[(label, 1.0, box) for label, box in row] for row in references]
    assert metric(name).compute(perfect, references) == pytest.approx(100)
    assert metric(name).compute([[] for _ in references], references) == 0


def test_intervals_and_paired_tests_hold() -> None:
    predictions, references = corpus(2)
    one = metric("ap50")
    statistics = one.statistics(predictions, references)
    interval = confidence_interval(one, statistics, resamples=50)
    assert interval.low <= one.compute(predictions, references) <= interval.high
    both = one.statistics(predictions * 2, references * 2)
    test = approximate_randomization(one, both[:12], both[12:], trials=20)
    assert test.difference == pytest.approx(0)
    assert test.p_value == 1
