"""The loss of a language model beside its size and speed, for comparing it with smaller ones."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from regard.builder.parameter_count import parameter_count
from regard.decode.strategy import Greedy
from regard.models import LanguageModel

WARMUP = 8  # new tokens that are decoded before the clock starts
PROMPTS = 8  # texts whose beginnings a language model continues
NEW_TOKENS = 64  # for each of them


def evaluate_language_model(model: LanguageModel, texts: Sequence[str]) -> dict[str, Any]:
    """Scores a language model on texts, and times greedy decoding after the first of them.

    Afterwards its weights are frozen.
    """
    nll, count = model.nll(texts)
    loss = nll / max(1, count)
    model.prepare_for_inference()
    # The first quarter of each text, in characters.
    prompts = [text[: len(text) // 4 + 1] for text in texts[:PROMPTS]]
    model.generate(prompts, Greedy(), max_new_tokens=WARMUP, truncation=True)
    start = time.perf_counter()
    continuations = model.generate(prompts, Greedy(), max_new_tokens=NEW_TOKENS, truncation=True)
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
