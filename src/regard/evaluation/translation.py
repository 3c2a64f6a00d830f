"""Translation and whatever else maps text to text: decoding, and the likelihood of references."""

from __future__ import annotations

import time
from collections.abc import Sequence

from regard.evaluation.task import Outputs, Settings
from regard.models import Translator

WARMUP = 8  # sentences that are decoded before the clock starts

Pair = tuple[str, str]


def translate(model: Translator, pairs: Sequence[Pair], settings: Settings) -> Outputs:
    """The translation of each source; an empty one where the search found none."""
    sources = [settings.prefix + source for source, _ in pairs]
    options = settings.decoding
    decoding = model.settings(options.strategy, options.limit, options.batch_tokens)
    if options.precision is not None:
        # float32 is packed too, for the matrix kernels of a CPU.
        model.prepare_for_inference(options.precision)
        model.hypotheses(sources[:WARMUP], decoding)
    start = time.perf_counter()
    results = model.hypotheses(sources, decoding)
    seconds = time.perf_counter() - start
    # A sentence may have no hypothesis, where none ends within the length limit.
    texts = [model.text(hypotheses[0]) if hypotheses else "" for hypotheses in results]
    tokens = sum(len(hypotheses[0].tokens) for hypotheses in results if hypotheses)
    return Outputs(texts, [reference for _, reference in pairs], tokens, seconds)


def reference_likelihood(model: Translator, pairs: Sequence[Pair], settings: Settings) -> Outputs:
    """−log p of each reference given its source, by teacher forcing, unsmoothed."""
    references = [reference for _, reference in pairs]
    eos = model.special_tokens.end
    sources = model.encode([settings.prefix + source for source, _ in pairs])
    targets = [[*ids, eos] for ids in model.target_tokenizer.encode_batch(references)]
    return Outputs(model.row_nlls(sources, targets), references)
