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

from regard.core.finite_outputs import require_finite
from regard.data.padding import IGNORED, pad_rows
from regard.data.sentence_packing import (
    MIN_ROW_TOKENS,
    PackedRow,
    block_lines,
    pack_sentences,
)
from regard.data.span_corruption import corrupt_spans
from regard.data.text.tokenizer import Tokenizer
from regard.data.text_corruption import (
    Ids,
    MaskingRates,
    RandomStream,
    denoise,
    mask_tokens,
    sentence_pair,
)
from regard.decode.batch_decoding import batch_by_length
from regard.evaluation.task import Outputs, Settings
from regard.models import TextEncoder, Translator
from regard.system.errors import DataError, ModelError

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
            f"no line has at least {MIN_ROW_TOKENS} tokens, which corruption needs",
            "pass longer lines",
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
    segments: list[int]  # 0 in the first sentence, 1 in the second


def masked_likelihood(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """−log p of the masked tokens of each row."""
    rows = masked_rows(model, examples, settings, MaskingRates())
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
    rows = masked_rows(model, examples, settings, MaskingRates())
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


def masked_rows(
    model: TextEncoder, examples: Examples, settings: Settings, rates: MaskingRates
) -> list[MaskedRow]:
    """The framed rows of a text, masked as the objective of a model does."""
    tokenizer = model.tokenizer
    reading = settings.reading
    start = tokenizer.required_token_id("bos")
    end = tokenizer.required_token_id("eos")
    ordinary = [i for i in range(len(tokenizer)) if i not in tokenizer.special_ids]
    # The special tokens that frame a row: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
    special_tokens = 3 if reading.next_sentence else 2
    max_tokens = _context(settings, model.spec.max_length) - special_tokens
    packed = packed_rows(tokenizer, examples, max_tokens)
    rows = []
    for number in range(len(packed)):
        stream = RandomStream(reading.seed, VALIDATION_EPOCH, number)
        parts = _sentences(packed, number, stream, max_tokens, reading.next_sentence)
        visible, labels = mask_tokens(
            np.concatenate(parts),
            stream,
            share=reading.corrupted_share or MASKED_SHARE,
            token=tokenizer.required_token_id("mask"),
            ordinary=np.array(ordinary, dtype=np.int64),
            rates=rates,
        )
        row = MaskedRow([start], [IGNORED], [0])
        first = 0
        for segment, part in enumerate(parts):
            last = first + len(part)
            row.tokens.extend([*visible[first:last].tolist(), end])
            row.labels.extend([*labels[first:last].tolist(), IGNORED])
            row.segments.extend([segment] * (len(part) + 1))
            first = last
        rows.append(row)
    return rows


def _sentences(
    rows: Sequence[PackedRow],
    number: int,
    stream: RandomStream,
    max_tokens: int,
    next_sentence: bool,
) -> list[Ids]:
    """A row as it is, or the two sentences of next-sentence prediction."""
    ids, starts = _arrays(rows[number])
    if not next_sentence:
        return [ids]
    # The row that the second sentence comes from, if it is to be a random one.
    other = int(stream.below(len(rows), 1)[0])
    first, second, _ = sentence_pair(ids, starts, *_arrays(rows[other]), stream, room=max_tokens)
    return [first, second]


def _arrays(row: PackedRow) -> tuple[Ids, Ids]:
    ids, starts = row
    return np.asarray(ids, dtype=np.int64), np.asarray(starts, dtype=np.int64)


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
        options = {}
        if model.spec.tokens.segments > 1:
            segments, _ = pad_rows([rows[i].segments for i in indices], 0)
            options["segments"] = segments.to(model.device)
        inputs = (tokens.to(model.device), padding_mask.to(model.device))
        with torch.inference_mode():
            hidden, _ = model.model(*inputs, **options)
            logits = require_finite(head(hidden).float(), model.model)  # [B, T, V]
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
            "choose another --task",
        )
    # One special token ends a row.
    packed = packed_rows(tokenizer, examples, _context(settings, model.spec.max_length) - 1)
    pairs = []
    for number, row in enumerate(packed):
        ids, _ = _arrays(row)
        pairs.append(
            corrupt_spans(
                ids,
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
    for number, row in enumerate(packed):
        source, target, _ = denoise(
            *_arrays(row),
            RandomStream(settings.reading.seed, VALIDATION_EPOCH, number),
            share=settings.reading.corrupted_share or DENOISED_SHARE,
            mean=settings.reading.span_length,
            token=tokenizer.required_token_id("mask"),
        )
        pairs.append((source, target))
    return _restored_likelihood(model, pairs)


def _restored_likelihood(model: Translator, pairs: Sequence[tuple[Ids, Ids]]) -> Outputs:
    """−log p of targets given corrupted sources, both with their special tokens."""
    special = model.special_tokens
    prefix = [] if special.forced_bos is None else [special.forced_bos]
    sources = [[*prefix, *source.tolist(), special.end] for source, _ in pairs]
    targets = [[*prefix, *target.tolist(), special.end] for _, target in pairs]
    return Outputs(model.row_nlls(sources, targets), [0] * len(pairs))
