"""A finished model's score beside its size and its speed: what a smaller one is to be judged by."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import Greedy
from regard.look import terminal
from regard.metrics.translation import translation_score
from regard.models import LanguageModel, Translator
from regard.parameter_count import parameter_count

WARM = 8  # sentences, or tokens, before the clock starts
ROWS, NEW = 8, 64  # texts that a language model goes on with, and how far
# What a table shows, how it is called there, and how many digits it has behind the point.
COLUMNS = {
    "bleu": ("BLEU", 2), "chrf": ("chrF", 2), "exact_match": ("exact match", 1), "loss": ("loss", 4),
    "perplexity": ("perplexity", 3), "parameters": ("parameters", 0), "tokens_per_second": ("tokens/s", 0),
}  # fmt: skip


def translating(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    settings: DecodingSettings,
    tokenize: str = "13a",
    precision: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """What a test set says of a translator, and its translations. Afterwards it is frozen, in this precision; its perplexity
    is that before."""
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    perplexity = translator.perplexity(sources, references)
    translator.freeze(precision)
    translator.hypotheses(sources[:WARM], settings)
    began = time.perf_counter()
    found = translator.hypotheses(sources, settings)
    seconds = time.perf_counter() - began
    texts = [translator.text(h[0]) if h else "" for h in found]
    result = translation_score(texts, references, tokenize)
    tokens = sum(len(h[0].tokens) for h in found if h)
    return {
        "bleu": result.bleu,
        "chrf": result.chrf,
        "exact_match": result.exact_match,
        "perplexity": perplexity,
        "signature": result.signature,
        "chrf_signature": result.chrf_signature,
        "sentences": len(texts),
        "parameters": parameter_count(translator.spec),
        "seconds": seconds,
        "tokens_per_second": tokens / max(seconds, 1e-9),
    }, texts


def writing(writer: LanguageModel, texts: Sequence[str]) -> dict[str, Any]:
    """What texts say of a language model, and how fast it goes on with the first of them, greedily. Afterwards it is frozen."""
    nll, count = writer.nll(texts)
    writer.freeze()
    prompts = [text[: len(text) // 4 + 1] for text in texts[:ROWS]]
    writer.generate(prompts, Greedy(), max_new_tokens=WARM)
    began = time.perf_counter()
    written = writer.generate(prompts, Greedy(), max_new_tokens=NEW)
    seconds = time.perf_counter() - began
    return {
        "loss": nll / max(1, count),
        "perplexity": math.exp(min(nll / max(1, count), 700.0)),
        "tokens": count,
        "parameters": parameter_count(writer.spec),
        "seconds": seconds,
        "tokens_per_second": sum(len(writer.words.encode(text)) for text in written)
        / max(seconds, 1e-9),
    }


def table(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One row a model, one column for each measure that all have."""
    known = [key for key in COLUMNS if all(key in report for report in reports.values())]
    rows = [["model", *(COLUMNS[key][0] for key in known)]]
    rows += [
        [name, *(f"{said[key]:,.{COLUMNS[key][1]}f}" for key in known)]
        for name, said in reports.items()
    ]
    return terminal.table(rows, width=140)
