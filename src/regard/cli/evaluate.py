"""regard evaluate"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.decoding_options import decoding_options, decoding_strategy, length_limit
from regard.errors import SettingError

if TYPE_CHECKING:
    from regard.decode.strategy import Strategy

EXAMPLES = """\b
Examples:
  regard evaluate runs/builtin --source test.en --target test.de
  regard data builtin --split test --lines 1000 --pronouns > p.tsv
  regard evaluate runs/builtin --pairs p.tsv
  regard evaluate runs/builtin --pairs p.tsv --quantize int8
  regard evaluate runs/large runs/small --pairs p.tsv     a table: score next to size and speed
  regard evaluate runs/multi30k --source test.en.gz --target test.de.gz --tokenize none --json
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--source", help="text to translate, one sentence a line (.gz too)")
@click.option("--target", help="its reference translations, line by line")
@click.option(
    "--pairs", help="instead of two files: one .tsv or .jsonl of pairs, or - for standard input"
)
@click.option(
    "--tokenize",
    default="13a",
    show_default=True,
    help="sacreBLEU's tokenizer; none for tokenised text",
)
@click.option("--output", help="write the translations to this file")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object for each model")
@decoding_options
def command(
    models: tuple[str, ...],
    source: str | None,
    target: str | None,
    pairs: str | None,
    tokenize: str,
    output: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Translate a test set and score it: BLEU, chrF, exact match, perplexity.

    MODEL is a run folder; of several, a table is printed. BLEU and chrF are sacreBLEU's, with their
    signatures. Scores run from 0 to 100; perplexity is per target token, unsmoothed.
    """
    # Contradictory flags are errors before anything is loaded.
    if not (pairs or (source and target)):
        raise SettingError("there is nothing to score", "give --source and --target, or --pairs")
    # --n-best is one of the shared decoding options, and has no meaning here.
    if flags["n_best"]:
        raise SettingError("a score is of one translation a line", "leave --n-best out")
    if output and len(models) > 1:
        raise SettingError(
            "one file holds the translations of one model", "leave --output out, or give one MODEL"
        )
    strategy = decoding_strategy(flags)
    examples = _read_pairs(source, target, pairs)
    reports: dict[str, dict[str, Any]] = {}
    for model in models:
        report, translations = _evaluate(model, examples, strategy, tokenize, flags)
        reports[model] = report
        if output:  # of the one model there is
            _write_lines(output, translations)
    if as_json:
        # One object a line; the model is named only where there are several.
        for model, report in reports.items():
            click.echo(json.dumps(report if len(models) == 1 else {"model": model, **report}))
    elif len(models) == 1:
        _print_report(reports[models[0]])
    else:
        _print_table(reports)


# ------------------------------------------------------------------ scoring


def _read_pairs(source: str | None, target: str | None, pairs: str | None) -> list[tuple[str, str]]:
    """The test set: sentences with their references, from one file of pairs or from two files."""
    from regard.data import text_files

    # Reading the whole set first: errors in it come before minutes of decoding.
    if not pairs:
        return list(text_files.pairs(str(source), target))
    # Standard input has no name to tell the format by.
    format = "tsv" if pairs == "-" else None
    return list(text_files.pairs(pairs, None, format=format))


def _evaluate(
    model: str,
    examples: list[tuple[str, str]],
    strategy: Strategy | None,
    tokenize: str,
    flags: dict[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    """The scores of one model and its translations.

    With --quantize, the float32 model is scored as well, to show what quantization costs.
    """
    from regard.compare.size_and_speed import evaluate_translator
    from regard.models import load_translator

    translator = load_translator(model, device=flags["device"])
    settings = translator.settings(strategy, length_limit(flags["limit"]), flags["batch_tokens"])
    if not flags["quantize"]:
        return evaluate_translator(translator, examples, settings, tokenize)
    exact, _ = evaluate_translator(translator, examples, settings, tokenize)
    # Opened again: the weights of the first one have been packed as float32.
    translator = load_translator(model, device=flags["device"])
    report, translations = evaluate_translator(
        translator, examples, settings, tokenize, flags["quantize"]
    )
    report["bleu_float32"] = exact["bleu"]
    report["seconds_float32"] = exact["seconds"]
    # Positive where the quantized model is worse.
    report["bleu_lost"] = exact["bleu"] - report["bleu"]
    return report, translations


# ------------------------------------------------------------------ output


def _write_lines(path: str, lines: list[str]) -> None:
    from regard import disk

    disk.write_file(Path(path), "".join(line + "\n" for line in lines))


def _print_report(report: dict[str, Any]) -> None:
    """The scores of one model, one a line."""
    for key, value in report.items():
        # Scores have two decimals; counts and signatures are printed as they are.
        text = f"{value:.2f}" if isinstance(value, float) else str(value)
        click.echo(f"{key:18} {text}")


def _print_table(reports: dict[str, dict[str, Any]]) -> None:
    """The scores of several models next to their size and speed, one model a row."""
    from regard.compare.size_and_speed import report_table

    for line in report_table(reports):
        click.echo(line)
