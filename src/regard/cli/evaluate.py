"""regard evaluate"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.decoding_options import (
    DECODING_FLAGS,
    decoding_options,
    decoding_strategy,
    length_limit,
)
from regard.cli.shared_options import (
    FILE,
    MODEL_FOLDER,
    Flags,
    check_flags_are_read,
    download_option,
    json_option,
    json_text,
    option,
    refuse_flags,
)
from regard.cli.texts_and_files import check_output
from regard.system import disk
from regard.system.errors import SettingError

if TYPE_CHECKING:
    from regard.decode.strategy import Strategy
    from regard.evaluation.evaluation import Evaluation
    from regard.evaluation.examples import DataPath
    from regard.evaluation.task import DecodingOptions
    from regard.training.run_evaluation import RunSettings

EXAMPLES = """\b
Examples:
  regard evaluate runs/builtin --source test.en --target test.de
  regard data builtin --split test --lines 1000 --pronouns > p.tsv
  regard evaluate runs/builtin --pairs p.tsv
  regard evaluate runs/builtin --pairs p.tsv --quantize int8
  regard evaluate runs/large runs/small --pairs p.tsv     a table of score, size and speed
  regard evaluate runs/mood --data test.tsv --metrics accuracy,f1
  regard evaluate runs/shakespeare --data valid.txt --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("models", type=MODEL_FOLDER, metavar="MODEL...", nargs=-1, required=True)
@option(
    "--data",
    "evaluation data: a file, a folder of images, or - for pairs from standard input",
    FILE,
)
@option("--source", "source text, one sentence per line (may be .gz)", FILE)
@option("--target", "reference translations, line by line", FILE)
@option("--pairs", "one .tsv or .jsonl of pairs instead of two files; - for standard input", FILE)
@option("--task", "task to evaluate, if the model supports several")
@option("--metrics", "metrics with options, e.g. bleu:none,chrf  [by task]")
@option("--tokenize", "sacreBLEU tokenizer; none for tokenized text  [as in the run, or 13a]")
@option("--output", "write the predictions to this file", FILE)
@download_option
@json_option("print one JSON object per model")
@decoding_options
def command(
    models: tuple[str, ...],
    output: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Evaluate models on a dataset with the metrics of their task.

    MODEL is a run folder or a folder in Hugging Face format: a translation model, a language model,
    a classifier, a tagger, … Scores range from 0 to 100, with 95 % bootstrap confidence intervals.
    Several models are printed as a table, with p-values of a paired test against the first one.
    Decoding and tokenization settings default to those of the run.
    """
    # Contradictory flags are errors before anything is loaded.
    data = _data(flags)
    refuse_flags(("n_best",), "evaluation scores one translation per line")
    if len(set(models)) < len(models):
        raise SettingError("a model is given twice", "give each MODEL once")
    if output and len(models) > 1:
        raise SettingError(
            "--output holds the predictions of one model", "leave out --output, or give one MODEL"
        )
    if output is not None:
        check_output("--output", output, [data] if isinstance(data, str) else data)
        disk.require_absent(Path(output), "remove it, or choose another --output")
    evaluator = Evaluator(data, flags, decoding_strategy(flags))
    from regard.evaluation.evaluation import paired_tests

    first, report = evaluator.evaluate(models[0])
    reports = {models[0]: report}
    if output:  # of the one model there is
        _write_lines(output, first.predictions)
    for name in models[1:]:
        evaluation, report = evaluator.evaluate(name)
        # Paired: both models have answered the same examples.
        tests = paired_tests(first, evaluation)
        report["p_values"] = {metric: test.p_value for metric, test in tests.items()}
        reports[name] = report
    _print_reports(reports, as_json)


# ------------------------------------------------------------------ scoring


def _data(flags: Flags) -> DataPath:
    """The file, or the two files of parallel text, to evaluate on."""
    source = flags["source"]
    target = flags["target"]
    one_file = [flags[key] for key in ("data", "pairs") if flags[key]]
    if source and target and not one_file:
        return source, target
    if len(one_file) != 1 or source or target:
        raise SettingError(
            "evaluation needs exactly one dataset",
            "give --data, or --source and --target, or --pairs",
        )
    return str(one_file[0])


@dataclass
class Evaluator:
    """Evaluates several models on the same examples, which are read once."""

    data: DataPath
    flags: Flags
    strategy: Strategy | None
    task: str | None = None  # of the first model
    examples: list[Any] | None = None

    def evaluate(self, name: str) -> tuple[Evaluation, dict[str, Any]]:
        """The evaluation of one model and its report.

        With --quantize, the float32 model is scored as well, to show what quantization costs.
        """
        evaluation = self._evaluate(name, "float32")
        report = evaluation.report()
        if not self.flags["quantize"]:
            return evaluation, report
        # Opened again: the weights of the first one have been packed as float32.
        quantized = self._evaluate(name, self.flags["quantize"])
        quantized_report = quantized.report()
        metric = next(iter(quantized.scores))
        quantized_report[f"{metric}_float32"] = evaluation[metric]
        quantized_report["seconds_float32"] = report.get("seconds")
        # Positive where the quantized model is worse.
        quantized_report[f"{metric}_lost"] = evaluation[metric] - quantized[metric]
        return quantized, quantized_report

    def _evaluate(self, name: str, precision: Any) -> Evaluation:
        from regard.evaluation.evaluation import choose_metrics, evaluate_examples, read_examples
        from regard.evaluation.examples import PLAIN_TEXTS
        from regard.evaluation.tasks import TASKS, task_of
        from regard.models import load
        from regard.training.run_evaluation import run_settings

        model = load(name, device=self.flags["device"], download=self.flags["download"])
        run = run_settings(model.folder)
        task = task_of(model, self.flags["task"] or self.task or run.task)
        decoding_flags = (*DECODING_FLAGS, "quantize", "tokenize")
        readers = {name: decoding_flags for name, one in TASKS.items() if one.decodes}
        check_flags_are_read(readers, task, "the task")
        # The tab of a pair would be taken for a part of the text.
        if TASKS[task].reads in PLAIN_TEXTS and self.flags["pairs"]:
            raise SettingError(
                f"{name} is evaluated on plain text ({task}), not on pairs",
                "give a text file as --data",
            )
        tokenize = self.flags["tokenize"] or run.settings.tokenize
        decoding = self._decoding(run, precision)
        settings = replace(run.settings, decoding=decoding, tokenize=tokenize)
        self._say_settings(name, run.describe(task))
        if self.examples is None:
            # Before the first model runs: errors in the data come before minutes of decoding.
            self.task = task
            self.examples = read_examples(task, self.data)
        metrics = self.flags["metrics"] and self.flags["metrics"].split(",")
        chosen = choose_metrics(task, metrics, settings, self.examples)
        return evaluate_examples(model, self.examples, task, chosen, settings)

    def _decoding(self, run: RunSettings, precision: Any) -> DecodingOptions:
        """The decoding options of the flags, and those of the run where no flag says anything."""
        from regard.decode.strategy import BeamSearch
        from regard.evaluation.task import DecodingOptions

        run_strategy = run.settings.decoding.strategy
        strategy = self.strategy or run_strategy
        if isinstance(strategy, BeamSearch) and isinstance(run_strategy, BeamSearch):
            if self.flags["beam"] is None:
                strategy = replace(strategy, width=run_strategy.width)
            if self.flags["penalty"] is None:
                strategy = replace(strategy, penalty=run_strategy.penalty)
        return DecodingOptions(
            strategy, length_limit(self.flags["limit"]), self.flags["batch_tokens"], precision
        )

    def _say_settings(self, name: str, description: str) -> None:
        """Says which settings come from the run that made the model."""
        changes = [key for key in ("beam", "penalty", "tokenize", "sample") if self.flags[key]]
        if description and changes:
            description += f"; changed by flags: {', '.join(changes)}"
        if description:
            click.echo(f"{name}: settings from its run: {description}", err=True)


# ------------------------------------------------------------------ output


def _write_lines(path: str, predictions: list[Any]) -> None:
    """One prediction a line: texts and labels as they are, the tags of words between spaces."""
    words = [one if isinstance(one, list | tuple) else [one] for one in predictions]
    lines = [" ".join(map(str, of_line)) + "\n" for of_line in words]
    disk.write_file(Path(path), "".join(lines))


def _print_reports(reports: dict[str, dict[str, Any]], as_json: bool) -> None:
    from regard.evaluation.scores import report_table

    if as_json:
        # One object a line; the model is named only where there are several.
        for model, report in reports.items():
            click.echo(json_text(report if len(reports) == 1 else {"model": model, **report}))
        return
    first = next(iter(reports.values()))
    if len(reports) == 1:
        _print_report(first)
        return
    click.echo("\n".join(report_table(reports)))
    # Beside the table: it stays data for other programs.
    click.echo(
        "[…]: 95 % confidence interval; p: paired randomization test against the first", err=True
    )
    for name, signature in first["signatures"].items():
        click.echo(f"{name}: {signature}", err=True)


def _print_report(report: dict[str, Any]) -> None:
    """The scores of one model with their intervals and definitions, one a line."""
    from regard.evaluation.scores import formatted

    for key, value in report.items():
        if key in report["intervals"]:
            low, high = (formatted(key, end) for end in report["intervals"][key])
            score = formatted(key, value)
            click.echo(f"{key:18} {score}  [{low}, {high}]  {report['signatures'][key]}")
        elif not isinstance(value, dict):
            # Numbers have two decimals; counts are printed as they are.
            text = f"{value:.2f}" if isinstance(value, float) else str(value)
            click.echo(f"{key:18} {text}")
