"""regard evaluate"""

from __future__ import annotations

import json
import time
from typing import Any

import click

from regard.cli.decoding import decoding_options, limit, strategy

EXAMPLES = """\b
Examples:
  regard evaluate runs/builtin --source test.en --target test.de
  regard data builtin --split test --lines 1000 --pronouns > p.tsv && regard evaluate runs/builtin --pairs p.tsv
  regard evaluate runs/builtin --pairs p.tsv --quantize int8
  regard evaluate runs/multi30k --source test.en.gz --target test.de.gz --tokenize none --beam 5 --json
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model")
@click.option("--source", help="text to translate, one sentence a line (.gz too)")
@click.option("--target", help="its reference translations, line by line")
@click.option("--pairs", help="instead of two files: one .tsv or .jsonl of pairs, or - for standard input")
@click.option("--tokenize", default="13a", show_default=True, help="sacreBLEU's tokenizer; none for tokenised text")
@click.option("--output", help="write the translations to this file")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@decoding_options
def command(
    model: str,
    source: str | None,
    target: str | None,
    pairs: str | None,
    tokenize: str,
    output: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Translate a test set and score it: sacreBLEU and chrF with their signatures, exact match, perplexity.

    MODEL is a run folder. Scores run from 0 to 100; perplexity is per target token, unsmoothed.
    """
    from regard.errors import SettingError

    if not (pairs or (source and target)):
        raise SettingError("there is nothing to score", "give --source and --target, or --pairs")
    if flags["n_best"]:
        raise SettingError("a score is of one translation a line", "leave --n-best out")
    chosen = strategy(
        flags["beam"], flags["penalty"], None, flags["sample"],
        {key: flags[key] for key in ("temperature", "top_k", "top_p", "min_p", "seed")},
    )  # fmt: skip
    from regard import disk
    from regard.api import load_translator
    from regard.data import read
    from regard.text.score import score

    examples = list(read.pairs(pairs or str(source), None if pairs else target, format="tsv" if pairs == "-" else None))
    sources, references = [a for a, _ in examples], [b for _, b in examples]
    translator = load_translator(model, device=flags["device"])
    settings = translator.settings(chosen, limit(flags["limit"]), flags["batch_tokens"])
    perplexity = translator.perplexity(sources, references)
    exact: dict[str, Any] = {}
    if flags["quantize"]:
        texts, seconds, _ = _timed(translator.freeze(None), sources, settings)
        exact = {"bleu_float32": score(texts, references, tokenize).bleu, "seconds_float32": seconds}
        translator = load_translator(model, device=flags["device"])
    texts, seconds, tokens = _timed(translator.freeze(flags["quantize"]), sources, settings)
    if output:
        from pathlib import Path

        disk.write_file(Path(output), "".join(text + "\n" for text in texts))
    result = score(texts, references, tokenize)
    report = {
        "bleu": result.bleu,
        "chrf": result.chrf,
        "exact_match": result.exact_match,
        "perplexity": perplexity,
        "signature": result.signature,
        "chrf_signature": result.chrf_signature,
        "sentences": len(texts),
        "seconds": seconds,
        "tokens_per_second": tokens / max(seconds, 1e-9),
        **exact,
        **({"bleu_lost": exact["bleu_float32"] - result.bleu} if exact else {}),
    }
    if as_json:
        click.echo(json.dumps(report))
        return
    for key, value in report.items():
        click.echo(f"{key:18} {value:.2f}" if isinstance(value, float) else f"{key:18} {value}")


def _timed(translator: Any, sources: list[str], settings: Any) -> tuple[list[str], float, int]:
    """The translations, the seconds they took, and how many tokens they have."""
    began = time.perf_counter()
    found = translator.hypotheses(sources, settings)
    seconds = time.perf_counter() - began
    return [translator.text(h[0]) if h else "" for h in found], seconds, sum(len(h[0].tokens) for h in found if h)
