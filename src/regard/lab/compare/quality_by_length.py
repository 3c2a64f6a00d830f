"""The quality of translations by the length of the source."""

from __future__ import annotations

import time
from collections.abc import Sequence

from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch
from regard.evaluation.scores import scored
from regard.lab.compare.results import Bucket
from regard.models import Translator
from regard.models.inputs.input_warnings import without_example_warnings
from regard.training.data.parallel_text import Pair
from regard.training.recipe.schema import Recipe

BUCKETS = 5  # groups of test sentences of similar length


def evaluate_by_length(
    translator: Translator, pairs: Sequence[Pair], recipe: Recipe
) -> tuple[list[Bucket], float]:
    """Quality by the length of the source, and how many tokens a second were decoded."""
    sources = [source for source, _ in pairs]
    references = [reference for _, reference in pairs]
    lengths = [len(token_ids) for token_ids in translator.encode(sources)]
    settings = DecodingSettings(BeamSearch(recipe.decode.beam, recipe.length_penalty))
    start = time.perf_counter()
    with without_example_warnings():
        results = translator.hypotheses(sources, settings)
    seconds = time.perf_counter() - start
    # A sentence may have no hypothesis, where none ends within the length limit.
    translations = [translator.text(h[0]) if h else "" for h in results]
    tokens = sum(len(h[0].tokens) for h in results if h)
    buckets = []
    for rows in _length_buckets(lengths):
        row_references = [references[i] for i in rows]
        nll, count = translator.nll([sources[i] for i in rows], row_references)
        score = scored(
            "translate",
            [translations[i] for i in rows],
            row_references,
            tokenize=recipe.decode.tokenize,
        )
        bucket = Bucket(
            shortest=lengths[rows[0]],
            longest=lengths[rows[-1]],
            sentences=len(rows),
            loss=nll / count,  # a token
            bleu=score.bleu,
            exact_match=score.exact_match,
        )
        buckets.append(bucket)
    return buckets, tokens / max(seconds, 1e-9)


def _length_buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Rows in the order of their lengths, in at most BUCKETS groups of about equal size.

    All rows of one length are in the same group.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    buckets: list[list[int]] = []
    last = -1
    for i in order:
        full = not buckets or len(buckets[-1]) * BUCKETS >= len(order)
        if full and lengths[i] != last and len(buckets) < BUCKETS:
            buckets.append([])
        buckets[-1].append(i)
        last = lengths[i]
    return buckets
