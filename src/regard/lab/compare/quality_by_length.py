"""The quality of translations by the length of the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regard.evaluation.evaluation import evaluate
from regard.lab.compare.results import Bucket
from regard.models import Translator
from regard.training.data.parallel_text import Pair
from regard.training.recipe.schema import Recipe
from regard.training.run_evaluation import of_recipe

BUCKETS = 5  # groups of test sentences of similar length
METRICS = ("loss", "bleu", "exact_match")  # fields of a bucket


def evaluate_by_length(
    translator: Translator, pairs: Sequence[Pair], recipe: Recipe
) -> tuple[list[Bucket], float]:
    """Quality by the length of the source, and how many tokens a second were decoded."""
    # The stored pairs have their prefix already.
    settings = replace(of_recipe(recipe).settings, prefix="")
    results = evaluate(translator, list(pairs), METRICS, "translate", settings).results
    statistics = {
        name: result.metric.statistics(result.outputs.values, result.outputs.references)
        for name, result in results.items()
    }
    lengths = [len(token_ids) for token_ids in translator.encode([source for source, _ in pairs])]
    buckets = [
        Bucket(
            shortest=lengths[rows[0]],
            longest=lengths[rows[-1]],
            sentences=len(rows),
            # A score is one of the sum of the statistics.
            **{
                name: result.metric.score(statistics[name][rows].sum(axis=0))
                for name, result in results.items()
            },
        )
        for rows in _length_buckets(lengths)
    ]
    decoded = results["bleu"].outputs
    return buckets, decoded.tokens / max(decoded.seconds, 1e-9)


def _length_buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Rows in the order of their lengths, in at most BUCKETS groups of about equal size.

    All rows of one length are in the same group.
    """
    buckets: list[list[int]] = []
    last = -1
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        full = not buckets or len(buckets[-1]) * BUCKETS >= len(lengths)
        if full and lengths[row] != last and len(buckets) < BUCKETS:
            buckets.append([])
        buckets[-1].append(row)
        last = lengths[row]
    return buckets
