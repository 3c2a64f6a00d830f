"""Corrupted text: masked tokens of encoders, spans and denoising of encoder–decoders.

Rows are packed and corrupted as training validates: each has a random stream of its own, which
follows from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.padding import IGNORED, pad_rows
from regard.data.sentence_packing import (
    MIN_ROW_TOKENS,
    PackedRow,
    block_lines,
    pack_sentences,
)
from regard.data.text_corruption import (
    MaskingRates,
    RandomStream,
    corrupt_spans,
    denoise,
    mask_tokens,
)
from regard.decode.batch_decoding import batch_by_length
from regard.errors import DataError, ModelError
from regard.evaluation.task import Outputs, Settings
from regard.models import TextEncoder, Translator
from regard.text.tokenizer import Tokenizer

# The epoch whose random numbers validation uses, which no training reaches.
VALIDATION_EPOCH = 2**40
BATCH_TOKENS = 4096
SENTINELS = 100  # T5 has <extra_id_0> to <extra_id_99>
# The corrupted share of the tokens, unless the settings have another.
MASKED_SHARE = 0.15  # BERT
SPAN_SHARE = 0.15  # T5
DENOISED_SHARE = 0.3  # BART

Examples = Sequence[str] | Sequence[PackedRow]


def packed_rows(tokenizer: Tokenizer, examples: Examples, max_tokens: int) -> list[PackedRow]:
    """The rows of a text in blocks; those that are packed already stay as they are."""
    blocks = [example for example in examples if isinstance(example, str)]
    if not blocks:
        return [example for example in examples if not isinstance(example, str)]
    rows = pack_sentences(block_lines(blocks), tokenizer, max_tokens)
    long_rows = [(ids, starts) for ids, starts in rows if len(ids) >= MIN_ROW_TOKENS]
    if not long_rows:
        raise DataError(
            f"no line has the {MIN_ROW_TOKENS} tokens that can be corrupted", "give more text"
        )
    return long_rows


def _context(settings: Settings, positions: int | None) -> int:
    return min(settings.reading.context, positions or settings.reading.context)


# --- masked tokens (BERT) ---


@dataclass(frozen=True)
class MaskedRow:
    """A framed row with masked tokens; its labels are IGNORED except at those."""

    tokens: list[int]
    labels: list[int]


def masked_likelihood(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """−log p of the masked tokens of each row."""
    rows = _masked_rows(model, examples, settings)
    values = [(0.0, 0)] * len(rows)
    for indices, logits, labels in _masked_batches(model, rows):
        # Over dimension 1, the vocabulary; 0 where nothing is to be predicted.
        nll = functional.cross_entropy(
            logits.mT, labels, ignore_index=IGNORED, reduction="none"
        )  # [B, T]
        counts = (labels != IGNORED).sum(dim=1).tolist()
        totals = nll.double().sum(dim=1).tolist()
        for i, total, count in zip(indices, totals, counts, strict=True):
            values[i] = (total, count)
    return Outputs(values, [0] * len(rows))


def predict_masked(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """The likeliest token at each masked position; an example is one of them."""
    rows = _masked_rows(model, examples, settings)
    predictions: list[list[int]] = [[] for _ in rows]
    references: list[list[int]] = [[] for _ in rows]
    for indices, logits, labels in _masked_batches(model, rows):
        best = logits.argmax(dim=-1)  # [B, T]
        is_masked = labels != IGNORED
        for row, i in enumerate(indices):
            predictions[i] = best[row][is_masked[row]].tolist()
            references[i] = labels[row][is_masked[row]].tolist()
    return Outputs(
        [token for row in predictions for token in row],
        [token for row in references for token in row],
    )


def _masked_rows(model: TextEncoder, examples: Examples, settings: Settings) -> list[MaskedRow]:
    tokenizer = model.tokenizer
    start = tokenizer.required_token_id("bos")
    end = tokenizer.required_token_id("eos")
    ordinary = [i for i in range(len(tokenizer)) if i not in tokenizer.special_ids]
    # Two special tokens frame a row: [CLS] A [SEP].
    packed = packed_rows(tokenizer, examples, _context(settings, model.spec.max_length) - 2)
    rows = []
    for number, (ids, _) in enumerate(packed):
        visible, labels = mask_tokens(
            np.asarray(ids, dtype=np.int64),
            RandomStream(settings.reading.seed, VALIDATION_EPOCH, number),
            share=settings.reading.corrupted_share or MASKED_SHARE,
            token=tokenizer.required_token_id("mask"),
            ordinary=np.array(ordinary, dtype=np.int64),
            fate=MaskingRates(),
        )
        rows.append(
            MaskedRow([start, *visible.tolist(), end], [IGNORED, *labels.tolist(), IGNORED])
        )
    return rows


def _masked_batches(
    model: TextEncoder, rows: Sequence[MaskedRow]
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Row numbers, logits [B, T, V] and labels [B, T] of each batch."""
    head = model.model.head
    assert head is not None, "the task has checked that"
    pad = model.tokenizer.special_token_id("pad") or 0
    model.model.eval()
    for indices in batch_by_length([len(row.tokens) for row in rows], BATCH_TOKENS):
        tokens, padding_mask = pad_rows([rows[i].tokens for i in indices], pad)
        labels, _ = pad_rows([rows[i].labels for i in indices], IGNORED)
        with torch.inference_mode():
            hidden, _ = model.model(tokens.to(model.device), padding_mask.to(model.device))
            logits = head(hidden).float()  # [B, T, V]
        yield indices, logits, labels.to(model.device)


# --- spans (T5) and denoising (BART) ---


def span_likelihood(model: Translator, examples: Examples, settings: Settings) -> Outputs:
    """−log p of the spans that sentinels stand for, of each row."""
    tokenizer = model.source_tokenizer
    sentinels = [tokenizer.token_to_id(f"<extra_id_{i}>") for i in range(SENTINELS)]
    present = [token for token in sentinels if token is not None]
    if not present:
        raise ModelError(
            "the tokenizer of this model has no sentinels (<extra_id_0> …)",
            "evaluate it on another task",
        )
    # One special token ends a row.
    packed = packed_rows(tokenizer, examples, _context(settings, model.spec.max_length) - 1)
    pairs = []
    for number, (ids, _) in enumerate(packed):
        pairs.append(
            corrupt_spans(
                np.asarray(ids, dtype=np.int64),
                RandomStream(settings.reading.seed, VALIDATION_EPOCH, number),
                share=settings.reading.corrupted_share or SPAN_SHARE,
                mean=settings.reading.span_length,
                sentinels=present,
            )
        )
    return _restored_likelihood(model, pairs)


def denoising_likelihood(model: Translator, examples: Examples, settings: Settings) -> Outputs:
    """−log p of each row, given itself with masked spans and permuted sentences."""
    tokenizer = model.source_tokenizer
    # Two special tokens frame a row: <s> A </s>.
    packed = packed_rows(tokenizer, examples, _context(settings, model.spec.max_length) - 2)
    pairs = []
    for number, (ids, starts) in enumerate(packed):
        source, target, _ = denoise(
            np.asarray(ids, dtype=np.int64),
            np.asarray(starts, dtype=np.int64),
            RandomStream(settings.reading.seed, VALIDATION_EPOCH, number),
            share=settings.reading.corrupted_share or DENOISED_SHARE,
            mean=settings.reading.span_length,
            token=tokenizer.required_token_id("mask"),
        )
        pairs.append((source, target))
    return _restored_likelihood(model, pairs)


def _restored_likelihood(
    model: Translator, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Outputs:
    """−log p of targets given corrupted sources, both with their special tokens."""
    special = model.special_tokens
    opening = [] if special.forced_bos is None else [special.forced_bos]
    sources = [[*opening, *source.tolist(), special.end] for source, _ in pairs]
    targets = [[*opening, *target.tolist(), special.end] for _, target in pairs]
    return Outputs(model.row_nlls(sources, targets), [0] * len(pairs))
