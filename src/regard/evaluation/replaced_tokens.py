"""Replaced token detection (ELECTRA): does a discriminator see which tokens were replaced?

Rows are masked as in training, and the masks filled in by the generator beside the model, or, where
there is none (published discriminators stand alone), by random tokens. What is drawn follows from
the seed, whatever the batches are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from regard.core.finite_outputs import require_finite
from regard.data.padding import IGNORED, pad_rows
from regard.data.text_corruption import MaskingRates, RandomStream
from regard.decode.batch_decoding import batch_by_length
from regard.evaluation.corrupted_text import (
    BATCH_TOKENS,
    VALIDATION_EPOCH,
    Examples,
    MaskedRow,
    masked_rows,
)
from regard.evaluation.task import Outputs, Settings
from regard.models import TextEncoder, load

Numbers = NDArray[np.float64]

GENERATOR = "generator"  # its folder inside that of the discriminator
# Not that of the masks, whose random numbers have been used.
SAMPLING_EPOCH = VALIDATION_EPOCH + 1
_ALL_MASKED = MaskingRates(1.0, 0.0)


@dataclass(frozen=True)
class ReplacedRow:
    """A framed row with some tokens replaced. A replacement may be the token that was there, which
    counts as original (Clark et al. 2020, section 2).
    """

    tokens: list[int]
    is_replaced: list[bool]


def replaced_rows(model: TextEncoder, examples: Examples, settings: Settings) -> list[ReplacedRow]:
    """The rows of a text with about 15 % of their tokens replaced."""
    masked = masked_rows(model, examples, settings, _ALL_MASKED)
    seed = settings.reading.seed
    draws = [
        RandomStream(seed, SAMPLING_EPOCH, number).numbers(len(row.tokens))
        for number, row in enumerate(masked)
    ]
    folder = None if model.folder is None else model.folder / GENERATOR
    if folder is not None and (folder / "config.json").is_file():
        generator: Any = load(folder, device=str(model.device))  # it fills in masks
        model.say(f"tokens are replaced by samples of {folder}, seed {seed}")
        filled = _sampled_tokens(generator, masked, draws)
    else:
        model.say(f"no generator in the model folder: tokens are replaced at random, seed {seed}")
        filled = _random_tokens(model, draws)
    return [_replaced(row, tokens) for row, tokens in zip(masked, filled, strict=True)]


def _replaced(row: MaskedRow, filled: Sequence[int]) -> ReplacedRow:
    columns = list(zip(row.tokens, row.labels, filled, strict=True))
    return ReplacedRow(
        [token if label == IGNORED else new for token, label, new in columns],
        [label not in (IGNORED, new) for _, label, new in columns],
    )


def _random_tokens(model: TextEncoder, draws: Sequence[Numbers]) -> list[list[int]]:
    special = model.tokenizer.special_ids
    ordinary = np.array([i for i in range(len(model.tokenizer)) if i not in special])
    return [ordinary[(numbers * len(ordinary)).astype(np.int64)].tolist() for numbers in draws]


def _sampled_tokens(
    generator: TextEncoder, rows: Sequence[MaskedRow], draws: Sequence[Numbers]
) -> list[list[int]]:
    """A token for each position, from the generator's distribution there."""
    head = generator.model.head
    assert head is not None, "a generator predicts tokens"
    filled: list[list[int]] = [[] for _ in rows]
    for indices, tokens, padding_mask in _batches(generator, [row.tokens for row in rows]):
        with torch.inference_mode():
            hidden, _ = generator.model(tokens, padding_mask)
            # In float64: a sum over the vocabulary must not pass below the number drawn.
            cumulative = head(hidden).double().softmax(dim=-1).cumsum(dim=-1)  # [B, T, V]
        uniform = _padded([draws[i] for i in indices]).to(tokens.device)  # [B, T]
        # Inverse transform sampling: the first token whose cumulative probability exceeds it.
        sampled = (cumulative <= uniform[..., None]).sum(dim=-1)  # [B, T]
        sampled = sampled.clamp_max(cumulative.shape[-1] - 1)
        for row, i in enumerate(indices):
            filled[i] = sampled[row, : len(rows[i].tokens)].tolist()
    return filled


def _padded(rows: Sequence[Numbers]) -> Tensor:
    """[B, T], with zeros behind shorter rows."""
    return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)


def _batches(
    model: TextEncoder, rows: Sequence[list[int]]
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Row numbers, tokens and padding mask [B, T] of each batch, on the device."""
    pad = model.tokenizer.special_token_id("pad") or 0
    model.model.eval()
    for indices in batch_by_length([len(row) for row in rows], BATCH_TOKENS):
        tokens, padding_mask = pad_rows([rows[i] for i in indices], pad)
        yield indices, tokens.to(model.device), padding_mask.to(model.device)


# --- the discriminator ---


def detect_replaced(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """Whether each token was replaced, as predicted and in truth; an example is a token."""
    rows = replaced_rows(model, examples, settings)
    predictions: list[list[bool]] = [[] for _ in rows]
    for i, logits in _logits(model, rows):
        predictions[i] = (logits > 0).tolist()  # a probability above ½
    return Outputs(
        [token for row in predictions for token in row],
        [token for row in rows for token in row.is_replaced],
    )


def replaced_likelihood(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """−log p of whether each token of a row was replaced."""
    rows = replaced_rows(model, examples, settings)
    values = [(0.0, 0)] * len(rows)
    for i, logits in _logits(model, rows):
        truth = torch.tensor(rows[i].is_replaced, dtype=torch.float64, device=logits.device)
        nll = functional.binary_cross_entropy_with_logits(logits, truth, reduction="sum")
        values[i] = (float(nll), len(truth))
    return Outputs(values, [0] * len(rows))


def _logits(model: TextEncoder, rows: Sequence[ReplacedRow]) -> Iterator[tuple[int, Tensor]]:
    """The number of each row, and its logits [T]; above 0: replaced."""
    for indices, tokens, padding_mask in _batches(model, [row.tokens for row in rows]):
        with torch.inference_mode():
            hidden, _ = model.model(tokens, padding_mask)
            logits = model.model.classes(hidden, padding_mask)[..., 0].double()  # [B, T]
            require_finite(logits, model.model)
        for row, i in enumerate(indices):
            yield i, logits[row, : len(rows[i].tokens)]
