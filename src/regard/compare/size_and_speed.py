"""The quality of a finished model beside its size and speed, for comparing it with smaller ones."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import Greedy
from regard.look import terminal
from regard.metrics.bleu import translation_score
from regard.models import LanguageModel, Translator
from regard.parameter_count import parameter_count

WARMUP = 8  # sentences, or new tokens, that are decoded before the clock starts
PROMPTS = 8  # texts whose beginnings a language model continues
NEW_TOKENS = 64  # for each of them
# The columns of a table: a key of the reports, its title, and its digits after the point.
COLUMNS = {
    "bleu": ("BLEU", 2),
    "chrf": ("chrF", 2),
    "exact_match": ("exact match", 1),
    "loss": ("loss", 4),
    "perplexity": ("perplexity", 3),
    "parameters": ("parameters", 0),
    "tokens_per_second": ("tokens/s", 0),
}


def evaluate_translator(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    settings: DecodingSettings,
    tokenize: str = "13a",
    precision: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Scores a translator on a test set; returns the report and the translations.

    Afterwards its weights are frozen, in this precision. The perplexity is that before.
    """
    sources = [source for source, _ in pairs]
    references = [reference for _, reference in pairs]
    perplexity = translator.perplexity(sources, references)
    translator.freeze(precision)
    translator.hypotheses(sources[:WARMUP], settings)
    start = time.perf_counter()
    results = translator.hypotheses(sources, settings)
    seconds = time.perf_counter() - start
    # A sentence may have no hypothesis, where none ends within the length limit.
    translations = [translator.text(h[0]) if h else "" for h in results]
    tokens = sum(len(h[0].tokens) for h in results if h)
    score = translation_score(translations, references, tokenize)
    report = {
        "bleu": score.bleu,
        "chrf": score.chrf,
        "exact_match": score.exact_match,
        "perplexity": perplexity,
        "signature": score.signature,
        "chrf_signature": score.chrf_signature,
        "sentences": len(translations),
        "parameters": parameter_count(translator.spec),
        "seconds": seconds,
        "tokens_per_second": tokens / max(seconds, 1e-9),
    }
    return report, translations


def evaluate_language_model(model: LanguageModel, texts: Sequence[str]) -> dict[str, Any]:
    """Scores a language model on texts, and times greedy decoding after the first of them.

    Afterwards its weights are frozen.
    """
    nll, count = model.nll(texts)
    loss = nll / max(1, count)
    model.freeze()
    # The first quarter of each text, in characters.
    prompts = [text[: len(text) // 4 + 1] for text in texts[:PROMPTS]]
    model.generate(prompts, Greedy(), max_new_tokens=WARMUP)
    start = time.perf_counter()
    continuations = model.generate(prompts, Greedy(), max_new_tokens=NEW_TOKENS)
    seconds = time.perf_counter() - start
    tokens = sum(len(model.tokenizer.encode(text)) for text in continuations)
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),  # e^710 is no float64
        "tokens": count,
        "parameters": parameter_count(model.spec),
        "seconds": seconds,
        "tokens_per_second": tokens / max(seconds, 1e-9),
    }


def report_table(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One row for each model, one column for each measure that all of them have."""
    keys = [key for key in COLUMNS if all(key in report for report in reports.values())]
    rows = [["model", *(COLUMNS[key][0] for key in keys)]]
    for name, report in reports.items():
        rows.append([name, *(_number(report, key) for key in keys)])
    return terminal.table(rows, width=140)


def _number(report: Mapping[str, Any], key: str) -> str:
    _, digits = COLUMNS[key]
    return f"{report[key]:,.{digits}f}"
