"""Evaluation with the settings of a run: `regard.evaluate`, and the metrics of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.corpus import Corpus
from regard.decode.strategy import BeamSearch
from regard.evaluation import evaluation, examples
from regard.evaluation.evaluation import Data, Evaluation, MetricChoice
from regard.evaluation.task import DecodingOptions, Settings, TextReading
from regard.evaluation.tasks import TASKS
from regard.models import Model, load
from regard.system.errors import SettingError
from regard.training.data.graph_sources import open_graphs
from regard.training.data.series_source import open_series
from regard.training.data.stored_items import stored_examples
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder, read_run


@dataclass(frozen=True)
class RunSettings:
    """The task and the settings that a run was made with; none without a recipe."""

    recipe: Recipe | None = None
    task: str | None = None
    settings: Settings = field(default_factory=Settings)

    def describe(self, task: str) -> str:
        """The settings that a task has from the run, for a message; empty if there are none."""
        recipe = self.recipe
        if recipe is None:
            return ""
        if TASKS[task].decodes:
            decode = recipe.decode
            text = (
                f"beam {decode.beam}, length penalty {decode.length_penalty}, "
                f"tokenize {decode.tokenize}"
            )
            prefix = self.settings.prefix
            return f"{text}, prefix {prefix!r}" if prefix else text
        if TASKS[task].reads in examples.PLAIN_TEXTS:
            return f"context {recipe.data.context}, seed {recipe.train.seed}"
        if TASKS[task].reads in examples.LABELLED_TEXTS:
            return f"max_length {self.settings.max_length}"
        return ""


def run_settings(folder: Path | None) -> RunSettings:
    """The settings of the run in a folder; the defaults for a folder that holds none."""
    if folder is None or not RunFolder(folder).recipe.is_file():
        return RunSettings()
    _, recipe, _ = read_run(folder)
    return of_recipe(recipe)


def of_recipe(recipe: Recipe) -> RunSettings:
    """The settings that the recipe of a run scores its model with."""
    task = task_name(recipe)
    context = recipe.data.context
    # The length limit of labelled texts, as `model_spec.max_length` has it.
    max_length = recipe.data.max_length if recipe.is_finetuning else context
    # Several prefixes mean several tasks, whose files come with their prefixes written out.
    prefixes = recipe.tune.prefixes
    prefix = prefixes[0] if len(prefixes) == 1 else ""
    settings = Settings(
        DecodingOptions(BeamSearch(recipe.decode.beam, recipe.length_penalty)),
        recipe.decode.tokenize,
        max_length,
        TextReading(
            context,
            # As many rows as in training: segment models read the text in that many streams.
            max(1, recipe.train.batch_tokens // context),
            recipe.train.seed,
            recipe.train.mask_ratio,
            recipe.span_length,
            recipe.train.next_sentence,
        ),
        prefix,
    )
    return RunSettings(recipe, task if TASKS[task].predict else None, settings)


def task_name(recipe: Recipe) -> str:
    """The name of the task of a run in `TASKS`."""
    if recipe.objective == "ctc":
        return "transcribe"  # whatever a model that transcribes is trained by
    # The word that the user chose, as `summarize`, or that of the objective.
    return recipe.task if recipe.task in TASKS else recipe.objective


def evaluate(
    model: Model | str | Path,
    data: Data,
    metrics: MetricChoice = None,
    task: str | None = None,
    kinds: Sequence[type] = (),
) -> Evaluation:
    """Scores a model on a data set, with bootstrap confidence intervals.

    Example:
        `regard.evaluate("runs/mine", "test.tsv", metrics=["bleu", "chrf"])`.

    `model` is a loaded model or a folder. `data` is a file, a tuple of two files of parallel
    text, a folder of images, or a list of examples. `metrics` are names with options
    (`bleu:none`, `top_k:5`) or `Metric` objects, by default those of the task; `task` is one of
    `regard.evaluation.tasks.TASKS`. A run is decoded and tokenized with the settings of its
    recipe. `kinds` are dataclasses of model parts that are defined outside the package.
    """
    if not isinstance(model, Model):
        model = load(model, kinds=kinds)
    run = run_settings(model.folder)
    return evaluation.evaluate(model, data, metrics, task or run.task, run.settings)


# --- the metrics of a finished run ----------------------------------------------------------------


def check_metrics(recipe: Recipe, metrics: MetricChoice) -> None:
    """Refuses metrics that the task of a recipe does not have."""
    run = of_recipe(recipe)
    if run.task is None:
        raise SettingError(
            f"models of the objective {recipe.objective!r} are not evaluated", "leave metrics out"
        )
    evaluation.choose_metrics(run.task, metrics, run.settings)


def score_run(
    run_folder: RunFolder,
    metrics: MetricChoice,
    splits: Sequence[str],
    kinds: Sequence[type] = (),
) -> dict[str, dict[str, float]]:
    """The scores of a finished run on its splits, by these metrics; each split is reported."""
    model = load(run_folder.folder, kinds=kinds)
    run = run_settings(run_folder.folder)
    assert run.task is not None, "checked before training"
    # The stored examples have their prefix already.
    settings = replace(run.settings, prefix="")
    scores = {}
    for split in splits:
        examples = _stored_examples(run_folder, run.task, split, model)
        chosen = evaluation.choose_metrics(run.task, metrics, settings, examples)
        result = evaluation.evaluate_examples(model, examples, run.task, chosen, settings)
        scores[split] = result.scores
        model.say(f"{split}: {result!r}")
    return scores


def _stored_examples(run_folder: RunFolder, task: str, split: str, model: Any) -> list[Any]:
    """The examples of a split, as the run has stored them."""
    if task == "forecast":
        stored = open_series(run_folder)
        part = stored.part(split, model.length)
        # In the units of the data: `forecast` standardizes its input itself.
        values = stored.processor.restored(part.values)
        return [replace(part, values=values.astype(np.float32))]
    if task in ("nodes", "graphs"):
        data = open_graphs(run_folder)
        rows = set(data.rows(split))
        # Only what is in the split has a label to compare with.
        labels = tuple(label if i in rows else "" for i, label in enumerate(data.labels))
        return [replace(data, labels=labels, splits=("",) * len(labels))]
    for file in (run_folder.data / f"{split}.jsonl", run_folder.data / f"{split}.npz"):
        if file.is_file():
            return TASKS[task].reads.read(str(file))
    if items := stored_examples(run_folder, split):
        return items
    # Plain text is stored as token ids, and its score is called `validation`.
    folder = "valid" if split == "validation" else split
    columns = Corpus.open(run_folder.data / folder).columns
    if task == "causal":
        return [columns["text"].tokens.tolist()]
    texts = columns["text"]
    breaks = columns["breaks"]
    return [(texts[row].tolist(), breaks[row].tolist()) for row in range(len(texts))]
