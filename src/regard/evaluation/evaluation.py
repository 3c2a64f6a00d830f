"""Evaluating a model: its predictions on a data set, scored by metrics with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np

from regard.core.finite_outputs import non_finite_error
from regard.evaluation.examples import DataPath, shortened
from regard.evaluation.metrics.metric import Metric, OutputKind
from regard.evaluation.metrics.perplexity import Loss, Perplexity
from regard.evaluation.metrics.registry import metric as registered_metric
from regard.evaluation.metrics.significance import (
    ConfidenceInterval,
    PairedTest,
    approximate_randomization,
    confidence_interval,
    system_statistics,
)
from regard.evaluation.metrics.texts import Bleu
from regard.evaluation.outputs import predictions_of
from regard.evaluation.scores import formatted
from regard.evaluation.task import Outputs, Settings, Task
from regard.evaluation.tasks import TASKS, task_of
from regard.look.drawing import terminal
from regard.models import Model
from regard.models.inputs.input_warnings import warn_of_characters, without_example_warnings
from regard.system.errors import DataError, SettingError

MetricChoice: TypeAlias = str | Metric | Sequence[str | Metric] | None
# A file, a folder, two files of parallel text, or a list of examples.
Data: TypeAlias = str | Path | tuple[str | Path, str | Path] | list[Any]


@dataclass(frozen=True)
class Result:
    """The score of a metric, its 95 % confidence interval, and what it was computed from."""

    metric: Metric
    score: float
    interval: ConfidenceInterval
    outputs: Outputs


@dataclass(frozen=True)
class Evaluation:
    """What the evaluation of a model on a data set results in."""

    task: str
    examples: int
    parameters: int
    results: dict[str, Result]  # by the name of the metric

    @property
    def scores(self) -> dict[str, float]:
        """Metric → score."""
        return {name: result.score for name, result in self.results.items()}

    @property
    def predictions(self) -> list[Any]:
        """What the model put out for each example."""
        outputs = [result.outputs for result in self.results.values()]
        generated = [one for one in outputs if one.seconds]
        return list((generated or outputs)[0].values)

    def __getitem__(self, name: str) -> float:
        return self.results[name].score

    def __repr__(self) -> str:
        rows = [["metric", "score", "95 % interval", "definition"]]
        for name, result in self.results.items():
            low = formatted(name, result.interval.low)
            interval = f"[{low}, {formatted(name, result.interval.high)}]"
            score = formatted(name, result.score)
            rows.append([name, score, interval, result.metric.signature()])
        unit = TASKS[self.task].unit
        title = f"{self.task}: {self.examples:,} {unit}, {self.parameters:,} parameters"
        return "\n".join([title, *terminal.table(rows, width=160)])

    def report(self) -> dict[str, Any]:
        """The evaluation as JSON: the scores by metric, then what belongs to them."""
        results = self.results.items()
        report: dict[str, Any] = {
            **self.scores,
            "task": self.task,
            "examples": self.examples,
            "parameters": self.parameters,
            "intervals": {name: [one.interval.low, one.interval.high] for name, one in results},
            "signatures": {name: one.metric.signature() for name, one in results},
        }
        for _, result in results:
            seconds = result.outputs.seconds
            if seconds:
                rate = result.outputs.tokens / seconds
                report |= {"seconds": seconds, "tokens_per_second": rate}
        return report


# --- evaluating ---


def evaluate(
    model: Model,
    data: Data,
    metrics: MetricChoice = None,
    task: str | None = None,
    settings: Settings | None = None,
) -> Evaluation:
    """Evaluates a loaded model on a file or a list of examples, by these metrics."""
    settings = settings or Settings()
    name = task_of(model, task)
    examples = read_examples(name, data)
    chosen = choose_metrics(name, metrics, settings, examples)
    return evaluate_examples(model, examples, name, chosen, settings)


def read_examples(task: str, data: Data) -> list[Any]:
    """The examples of a data set, as the task reads them."""
    path: DataPath
    match data:
        case list():
            return TASKS[task].reads.examples(data)
        case str() | Path():
            path = str(data)
        case (str() | Path() as source, str() | Path() as target):
            path = (str(source), str(target))
        case _:
            raise DataError(
                f"{shortened(data)} is not a data set",
                "pass a file, a tuple of two files, or a list of examples",
            )
    return TASKS[task].reads.read(path)


def choose_metrics(
    task: str, metrics: MetricChoice, settings: Settings, examples: Sequence[Any] = ()
) -> list[Metric]:
    """The metrics of a task: those asked for, by name or as objects, or its default ones."""
    if isinstance(metrics, str | Metric):
        metrics = [metrics]
    names: Sequence[str | Metric] = metrics or ()
    if not names:
        holds = TASKS[task].conditions
        defaults = TASKS[task].metrics
        names = [name for name in defaults if name not in holds or holds[name](examples)]
    chosen = [_metric(one, task, settings) for one in names]
    if len({one.name for one in chosen}) < len(chosen):
        raise SettingError("a metric is listed twice", "list each metric once")
    return chosen


def _metric(choice: str | Metric, task: str, settings: Settings) -> Metric:
    if isinstance(choice, Metric):
        return choice
    metric = registered_metric(choice)
    fitting = TASKS[task].metrics + TASKS[task].other_metrics
    if choice.partition(":")[0] not in [name.partition(":")[0] for name in fitting]:
        raise SettingError(
            f"{choice} is not a metric of the task {task!r}", f"choose from: {', '.join(fitting)}"
        )
    if choice == "bleu" and settings.tokenize is not None:
        return Bleu(settings.tokenize)
    return metric


def evaluate_examples(
    model: Model,
    examples: Sequence[Any],
    task: str,
    metrics: Sequence[Metric],
    settings: Settings,
) -> Evaluation:
    """Scores the predictions of a model on examples of its task."""
    if not examples:
        raise DataError("the data set is empty", "pass at least one example")
    if model.accepts_text:
        warn_of_characters(model.input_tokenizer, map(_input_text, examples))
    needed = {metric.reads for metric in metrics}
    outputs = _outputs(model, examples, TASKS[task], needed, settings)
    results = {}
    for metric in metrics:
        of_metric = outputs[metric.reads]
        statistics = metric.statistics(of_metric.values, of_metric.references)
        interval = confidence_interval(metric, statistics)
        score = metric.score(statistics.sum(axis=0))
        results[metric.name] = Result(metric, score, interval, of_metric)
    # Blocks of text are cut into windows or rows, which are the examples then.
    count = min(len(of_kind.values) for of_kind in outputs.values())
    return Evaluation(task, count, model.parameter_count, results)


def _input_text(example: Any) -> str:
    """The text of an example that a model reads first: itself, or its first part."""
    first = example[0] if isinstance(example, tuple) else example
    if is_dataclass(first):
        first = getattr(first, fields(first)[0].name)
    return first if isinstance(first, str) else ""


def _outputs(
    model: Model,
    examples: Sequence[Any],
    task: Task,
    needed: set[OutputKind],
    settings: Settings,
) -> dict[OutputKind, Outputs]:
    if "prediction" in needed and "prediction" not in task.predict:
        needed = needed - {"prediction"} | {"ranking"}
    outputs = {}
    # Likelihoods first: decoding may pack the weights in another precision.
    for kind in get_args(OutputKind):
        if kind not in needed:
            continue
        if kind not in task.predict:
            raise SettingError(
                f"models of this task do not predict {kind}, which a metric needs",
                f"choose from: {', '.join(task.metrics)}",
            )
        with without_example_warnings():
            outputs[kind] = task.predict[kind](model, examples, settings)
    if "likelihood" in needed and any(math.isnan(nll) for nll, _ in outputs["likelihood"].values):
        raise non_finite_error(model.model)
    if "ranking" in needed:
        ranking = outputs["ranking"]
        first = Outputs(predictions_of("ranking", ranking.values), ranking.references)
        outputs.setdefault("prediction", first)
    return outputs


# --- comparing ---


def paired_tests(first: Evaluation, second: Evaluation) -> dict[str, PairedTest]:
    """Paired approximate randomization of a second model against the first, by metric.

    Metrics whose examples differ between the models are left out: windows of text that other
    tokenizers cut elsewhere, and likelihoods per token of other tokens.
    """
    tests = {}
    for name in first.results.keys() & second.results.keys():
        metric = first.results[name].metric
        one = first.results[name].outputs
        other = second.results[name].outputs
        if metric != second.results[name].metric or not _are_paired(metric, one, other):
            continue
        statistics = system_statistics(metric, [one.values, other.values], one.references)
        tests[name] = approximate_randomization(metric, *statistics)
    return {name: tests[name] for name in first.results if name in tests}


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):  # of time series
        return np.array_equal(one, other, equal_nan=True)
    return bool(one == other)


def _are_paired(metric: Metric, one: Outputs, other: Outputs) -> bool:
    same_count = len(one.references) == len(other.references)
    if not same_count or not all(map(_are_equal, one.references, other.references)):
        return False
    if not isinstance(metric, Loss | Perplexity):
        return True
    # Per token: of the same tokens only.
    return [tokens for _, tokens in one.values] == [tokens for _, tokens in other.values]
