"""regard evaluate"""

from __future__ import annotations

import json
from typing import Any

import click

from regard.cli.decoding_options import decoding_options, limit, strategy

EXAMPLES = """\b
Examples:
  regard evaluate runs/builtin --source test.en --target test.de
  regard data builtin --split test --lines 1000 --pronouns > p.tsv && regard evaluate runs/builtin --pairs p.tsv
  regard evaluate runs/builtin --pairs p.tsv --quantize int8
  regard evaluate runs/large runs/small runs/taught --pairs p.tsv      a table: score beside size and speed
  regard evaluate runs/multi30k --source test.en.gz --target test.de.gz --tokenize none --beam 5 --json
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
    """Translate a test set and score it: sacreBLEU and chrF with their signatures, exact match, perplexity.

    MODEL is a run folder; of several, a table is printed. Scores run from 0 to 100; perplexity is per target token,
    unsmoothed.
    """
    from regard.errors import SettingError

    if not (pairs or (source and target)):
        raise SettingError("there is nothing to score", "give --source and --target, or --pairs")
    if flags["n_best"]:
        raise SettingError("a score is of one translation a line", "leave --n-best out")
    if output and len(models) > 1:
        raise SettingError(
            "one file holds the translations of one model", "leave --output out, or give one MODEL"
        )
    chosen = strategy(
        flags["beam"], flags["penalty"], None, flags["sample"],
        {key: flags[key] for key in ("temperature", "top_k", "top_p", "min_p", "seed")},
    )  # fmt: skip
    from pathlib import Path

    from regard import disk
    from regard.compare.size_and_speed import table, translating
    from regard.data import text_files
    from regard.models import load_translator

    examples = list(
        text_files.pairs(
            pairs or str(source), None if pairs else target, format="tsv" if pairs == "-" else None
        )
    )
    reports: dict[str, dict[str, Any]] = {}
    for model in models:
        translator = load_translator(model, device=flags["device"])
        settings = translator.settings(chosen, limit(flags["limit"]), flags["batch_tokens"])
        exact: dict[str, Any] = {}
        if flags["quantize"]:
            plain, _ = translating(translator, examples, settings, tokenize)
            exact = {"bleu_float32": plain["bleu"], "seconds_float32": plain["seconds"]}
            translator = load_translator(model, device=flags["device"])
        report, texts = translating(translator, examples, settings, tokenize, flags["quantize"])
        if exact:
            report |= {**exact, "bleu_lost": exact["bleu_float32"] - report["bleu"]}
        reports[model] = report
        if output:
            disk.write_file(Path(output), "".join(text + "\n" for text in texts))
    if as_json:
        for model, report in reports.items():
            click.echo(json.dumps(report if len(models) == 1 else {"model": model, **report}))
    elif len(models) == 1:
        for key, value in reports[models[0]].items():
            click.echo(f"{key:18} {value:.2f}" if isinstance(value, float) else f"{key:18} {value}")
    else:
        for line in table(reports):
            click.echo(line)
