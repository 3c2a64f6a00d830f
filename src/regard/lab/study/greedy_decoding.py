"""Greedy translations of small models, for studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.evaluation.metrics.bleu import Bleu
from regard.lab.study.training_run import END, PADDING, RESERVED, START, Batch, Vocabulary


@torch.no_grad()
def translate(model: Any, source: Tensor, limit: int) -> list[list[int]]:
    """The greedy translations of an encoder–decoder, without start and end: ids for each row.

    `source` [B, S] is padded on the right.
    """
    model.eval()
    memory = model.encode(source, source != PADDING)
    state = model.start(memory, width=1, capacity=limit + 1)
    # [B, 1], the decoder's first input
    tokens = torch.full((len(source), 1), START)
    columns = []
    # Rows that have ended go on; what follows the end is cut off below.
    for _ in range(limit):
        tokens = model.step(tokens, state)[:, -1:].argmax(-1)  # [B, 1]
        columns.append(tokens)
    return [_until_end(row.tolist()) for row in torch.cat(columns, dim=1)]


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(END)] if END in row else row


def text(words: Vocabulary, row: Sequence[int]) -> str:
    """Words with spaces between them; special tokens are left out."""
    return " ".join(words.words[token - RESERVED] for token in row if token >= RESERVED)


def bleu(model: Any, batch: Batch, words: Vocabulary, limit: int = 40) -> float:
    """BLEU of greedy translations of a batch, whose words are tokens already."""
    assert batch.source is not None
    hypotheses = [text(words, row) for row in translate(model, batch.source, limit)]
    references = [text(words, row.tolist()) for row in batch.targets]
    return Bleu("none").compute(hypotheses, references)
