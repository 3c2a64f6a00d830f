"""All metrics by name, with options after colons: `bleu`, `bleu:none`, `top_k:5`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from regard.evaluation.metrics import (
    classification,
    detection,
    perplexity,
    regression,
    samples,
    segmentation,
    speech,
    texts,
)
from regard.evaluation.metrics.metric import Metric
from regard.system.options import parse_option

METRICS: dict[str, Callable[..., Metric]] = {
    kind.name: kind
    for module in (
        classification,
        detection,
        perplexity,
        regression,
        samples,
        segmentation,
        speech,
        texts,
    )
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Metric) and isinstance(kind.name, str)
}
METRICS |= {kind: partial(texts.Rouge, kind) for kind in texts.KINDS}
METRICS |= {kind.key: kind for kind in (texts.PhonemeErrorRate, texts.PronunciationErrorRate)}
METRICS["chrf"] = lambda *word_order: texts.Chrf(*map(int, word_order))
METRICS["top_k"] = lambda *k: classification.TopKAccuracy(*map(int, k))


def metric(text: str) -> Metric:
    """The metric of a name with its options."""
    usage = "use a name, optionally with its option: bleu:none, rougeL:porter or top_k:5"
    return parse_option(text, METRICS, subject="metric", usage=usage)
