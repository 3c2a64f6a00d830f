"""Sentence pairs (retrieval by similarity) and stories with questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from regard.core.finite_outputs import require_finite
from regard.data.labelled import LabelledText, TextPair
from regard.evaluation.task import Outputs, Settings
from regard.models.memory_network import MemoryNetworkModel
from regard.system.errors import DataError

MAX_CANDIDATES = 100  # of a ranking
STORIES_AT_ONCE = 64


def rank_pairs(model: Any, pairs: Sequence[TextPair], settings: Settings) -> Outputs:
    """The second texts of all pairs, the most similar first, for each first text.

    Similarity is the cosine of sentence vectors; the references are the numbers of the pairs.
    """
    texts = ([pair.text for pair in pairs], [pair.text2 for pair in pairs])
    first, second = (
        functional.normalize(model.text_encoder.embed(one, truncation=True), dim=-1)
        for one in texts
    )
    similarity = first @ second.mT  # [N, N]
    nearest = similarity.topk(min(MAX_CANDIDATES, len(pairs)), dim=1).indices
    return Outputs(nearest.tolist(), list(range(len(pairs))))


def answer_stories(
    model: MemoryNetworkModel, examples: Sequence[LabelledText], settings: Settings
) -> Outputs:
    """The words that answer the question at the end of each story, the likeliest first."""
    answers = [example.label for example in examples]
    if not any(model.tokenizer.token_to_id(answer) is not None for answer in answers):
        raise DataError(
            f"none of the answers, such as {answers[0]!r}, is in the vocabulary of the model",
            "pass stories in the language of its training data",
        )
    rankings: list[list[str]] = []
    for first in range(0, len(examples), STORIES_AT_ONCE):
        batch = examples[first : first + STORIES_AT_ONCE]
        with torch.inference_mode():
            inputs = model.tokens([example.text for example in batch])
            hidden, _ = model.model(*inputs.values())
            logits = require_finite(model.model.head(hidden), model.model)  # [B, V]
        best = logits.topk(min(MAX_CANDIDATES, logits.shape[1]), dim=1).indices
        rankings += [model.tokenizer.tokens(row) for row in best.tolist()]
    return Outputs(rankings, answers)
