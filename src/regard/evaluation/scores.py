"""The scores at the end of a run: predictions by the metrics of their task, as numbers by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

from regard.evaluation.classification import has_entities
from regard.evaluation.evaluation import predictions_of
from regard.evaluation.metrics.bleu import Bleu
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.metrics.registry import metric
from regard.evaluation.table import TITLES, formatted
from regard.evaluation.tasks import TASKS

_TITLES = TITLES | {"top_5": "top-5", "wer": "WER", "cer": "CER"}


class Score(SimpleNamespace):
    """Numbers by their names, such as `score.bleu`, and how many examples or tokens they are of."""

    def __str__(self) -> str:
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, float)}
        texts = [f"{_TITLES.get(name, name)} {formatted(name, numbers[name])}" for name in numbers]
        return "  ".join(text + (" %" if "exact match" in text else "") for text in texts)


def scored(
    task: str,
    values: Sequence[Any],
    references: Sequence[Any],
    kind: OutputKind = "prediction",
    tokenize: str | None = None,
) -> Score:
    """The score of outputs of a kind (rankings, quantiles …) by the `scores` of a task.

    Whatever is scored by predictions takes the first of a ranking, the median of quantiles.
    """
    numbers: dict[str, Any] = {}
    for name, of_task in TASKS[task].scores.items():
        one = Bleu(tokenize) if of_task == "bleu" and tokenize else metric(of_task)
        if one.reads == kind:
            numbers[name] = one.compute(values, references)
        elif one.reads == "prediction":
            numbers[name] = one.compute(predictions_of(kind, values), references)
    return Score(**numbers, examples=len(references))


def scored_tags(predictions: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> Score:
    """The score of tags, over words: F1 of entities, or the mean over tags where these are none."""
    words = list(chain.from_iterable(tags))
    if not has_entities(tags):
        return scored("classify", list(chain.from_iterable(predictions)), words)
    score = scored("tag", predictions, tags)
    score.examples = len(words)
    return score
