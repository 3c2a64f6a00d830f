"""Corrupted text: masked and replaced tokens of encoders, spans and denoising of encoder–decoders.

Rows are packed and corrupted as training validates: each has a random stream of its own, which
follows from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from regard.core.finite_outputs import require_finite
from regard.data.corruption import (
    Ids,
    MaskingRates,
    RandomStream,
    corrupt_spans,
    denoise,
    mask_tokens,
    sentence_pair,
)
from regard.data.padding import IGNORED, pad_rows
from regard.data.sentence_packing import (
    MIN_ROW_TOKENS,
    PackedRow,
    block_lines,
    pack_sentences,
)
from regard.data.text.tokenizer import Tokenizer
from regard.decode.batch_decoding import batch_by_length
from regard.evaluation.task import Outputs, Settings
from regard.models import TextEncoder, Translator, load
from regard.system.errors import DataError, ModelError

# The epoch whose random numbers validation uses, which no training reaches.
VALIDATION_EPOCH = 2**40
BATCH_TOKENS = 4096
SENTINELS = 100  # T5 has <extra_id_0> to <extra_id_99>
# The corrupted share of the tokens, unless the settings have another.
MASKED_SHARE = 0.15  # BERT
SPAN_SHARE = 0.15  # T5
DENOISED_SHARE = 0.3  # BART

Numbers = NDArray[np.float64]
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
class CorruptedRow:
    """A framed row whose tokens are corrupted, with the labels of these."""

    tokens: list[int]
    labels: list[int]
    segments: list[int]  # 0 in the first sentence, 1 in the second
    is_random: int = 0  # 1 if the second sentence is a random one, not the next


@dataclass(frozen=True)
class RowMasking:
    """How rows of at most `max_tokens` are framed and masked, as the objective of a model does."""

    tokenizer: Tokenizer
    max_tokens: int
    share: float
    rates: MaskingRates
    next_sentence: bool  # whether rows are pairs of sentences

    @cached_property
    def ordinary_ids(self) -> Ids:
        """The tokens of which a replacement is one."""
        special = self.tokenizer.special_ids
        ordinary = [token for token in range(len(self.tokenizer)) if token not in special]
        return np.array(ordinary, dtype=np.int64)

    def __call__(
        self, row: Callable[[int], tuple[Ids, Ids]], rows: int, number: int, stream: RandomStream
    ) -> CorruptedRow:
        """A row by its number among so many; `row` has the tokens and sentence starts of each."""
        ids, starts = row(number)
        parts = [ids]
        is_random = 0
        if self.next_sentence:
            # The row that the second sentence comes from, if it is to be a random one.
            other = int(stream.below(rows, 1)[0])
            *parts, is_random = sentence_pair(
                ids, starts, *row(other), stream, room=self.max_tokens
            )
        visible, labels = mask_tokens(
            np.concatenate(parts),
            stream,
            share=self.share,
            token=self.tokenizer.required_token_id("mask"),
            ordinary=self.ordinary_ids,
            rates=self.rates,
        )
        # [CLS] A [SEP], or [CLS] A [SEP] B [SEP]
        end = self.tokenizer.required_token_id("eos")
        masked = CorruptedRow([self.tokenizer.required_token_id("bos")], [IGNORED], [0], is_random)
        first = 0
        for segment, part in enumerate(parts):
            last = first + len(part)
            masked.tokens.extend([*visible[first:last].tolist(), end])
            masked.labels.extend([*labels[first:last].tolist(), IGNORED])
            masked.segments.extend([segment] * (len(part) + 1))
            first = last
        return masked


def masked_likelihood(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """−log p of the masked tokens of each row."""

    def nll(logits: Tensor, labels: Tensor) -> tuple[float, int]:
        # Over dimension 0, the vocabulary; 0 where nothing is to be predicted.
        losses = functional.cross_entropy(
            logits.T[None], labels[None], ignore_index=IGNORED, reduction="none"
        )
        return losses.double().sum().item(), int((labels != IGNORED).sum())

    rows = masked_rows(model, examples, settings, MaskingRates())
    return Outputs(_by_row(model, rows, _token_logits, nll), [0] * len(rows))


def predict_masked(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """The likeliest token at each masked position; an example is one of them."""
    rows = masked_rows(model, examples, settings, MaskingRates())
    predictions = _by_row(
        model,
        rows,
        _token_logits,
        lambda logits, labels: logits.argmax(dim=-1)[labels != IGNORED].tolist(),
    )
    references = [label for row in rows for label in row.labels if label != IGNORED]
    return Outputs(list(chain.from_iterable(predictions)), references)


def masked_rows(
    model: TextEncoder, examples: Examples, settings: Settings, rates: MaskingRates
) -> list[CorruptedRow]:
    """The framed rows of a text, masked as the objective of a model does."""
    reading = settings.reading
    # The special tokens that frame a row: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
    special_tokens = 3 if reading.next_sentence else 2
    max_tokens = _context(settings, model.spec.max_length) - special_tokens
    packed = [_arrays(row) for row in packed_rows(model.tokenizer, examples, max_tokens)]
    share = reading.corrupted_share or MASKED_SHARE
    masking = RowMasking(model.tokenizer, max_tokens, share, rates, reading.next_sentence)
    return [
        masking(
            packed.__getitem__,
            len(packed),
            number,
            RandomStream(reading.seed, VALIDATION_EPOCH, number),
        )
        for number in range(len(packed))
    ]


def _arrays(row: PackedRow) -> tuple[Ids, Ids]:
    ids, starts = row
    return np.asarray(ids, dtype=np.int64), np.asarray(starts, dtype=np.int64)


def _batches(
    model: TextEncoder, rows: Sequence[CorruptedRow]
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Row numbers, hidden states [B, T, D] and padding mask [B, T] of each batch."""
    pad = model.tokenizer.special_token_id("pad") or 0
    model.model.eval()
    for indices in batch_by_length([len(row.tokens) for row in rows], BATCH_TOKENS):
        tokens, padding_mask = pad_rows([rows[i].tokens for i in indices], pad)
        padding_mask = padding_mask.to(model.device)
        options = {}
        if model.spec.tokens.segments > 1:
            segments, _ = pad_rows([rows[i].segments for i in indices], 0)
            options["segments"] = segments.to(model.device)
        hidden, _ = model.model(tokens.to(model.device), padding_mask, **options)
        yield indices, hidden, padding_mask


def _token_logits(model: TextEncoder, hidden: Tensor, padding_mask: Tensor) -> Tensor:
    """Logits [B, T, V] of the tokens at all positions."""
    head = model.model.head
    assert head is not None, "the task has checked that"
    return head(hidden).float()


@torch.inference_mode()
def _by_row(
    model: TextEncoder,
    rows: Sequence[CorruptedRow],
    logits_of: Callable[[TextEncoder, Tensor, Tensor], Tensor],
    summarize: Callable[[Tensor, Tensor], Any],
) -> list[Any]:
    """For each row what its logits [T, …] and labels [T] are summarized to."""
    values: list[Any] = [None] * len(rows)
    for indices, hidden, padding_mask in _batches(model, rows):
        logits = require_finite(logits_of(model, hidden, padding_mask), model.model)
        for row, i in enumerate(indices):
            labels = torch.tensor(rows[i].labels, device=model.device)
            values[i] = summarize(logits[row, : len(labels)], labels)
    return values


# --- spans (T5) and denoising (BART) ---


def sentinel_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that stand for spans (Raffel et al. 2020, Section 3.1.4)."""
    candidates = [tokenizer.token_to_id(f"<extra_id_{i}>") for i in range(SENTINELS)]
    sentinels = [token for token in candidates if token is not None]
    if not sentinels:
        raise ModelError(
            "the tokenizer has no sentinels (<extra_id_0> …)", "use T5's, or another objective"
        )
    return sentinels


def span_likelihood(model: Translator, examples: Examples, settings: Settings) -> Outputs:
    """−log p of the spans that sentinels stand for, of each row."""
    tokenizer = model.source_tokenizer
    sentinels = sentinel_ids(tokenizer)
    # One special token ends a row.
    packed = packed_rows(tokenizer, examples, _context(settings, model.spec.max_length) - 1)
    reading = settings.reading
    pairs = [
        corrupt_spans(
            _arrays(row)[0],
            RandomStream(reading.seed, VALIDATION_EPOCH, number),
            share=reading.corrupted_share or SPAN_SHARE,
            mean=reading.span_length,
            sentinels=sentinels,
        )
        for number, row in enumerate(packed)
    ]
    return _restored_likelihood(model, pairs)


def denoising_likelihood(model: Translator, examples: Examples, settings: Settings) -> Outputs:
    """−log p of each row, given itself with masked spans and permuted sentences."""
    tokenizer = model.source_tokenizer
    # Two special tokens frame a row: <s> A </s>.
    packed = packed_rows(tokenizer, examples, _context(settings, model.spec.max_length) - 2)
    reading = settings.reading
    pairs = [
        denoise(
            *_arrays(row),
            RandomStream(reading.seed, VALIDATION_EPOCH, number),
            share=reading.corrupted_share or DENOISED_SHARE,
            mean=reading.span_length,
            token=tokenizer.required_token_id("mask"),
        )[:2]
        for number, row in enumerate(packed)
    ]
    return _restored_likelihood(model, pairs)


def _restored_likelihood(model: Translator, pairs: Sequence[tuple[Ids, Ids]]) -> Outputs:
    """−log p of targets given corrupted sources, both with their special tokens."""
    special = model.special_tokens
    prefix = [] if special.forced_bos is None else [special.forced_bos]
    sources = [[*prefix, *source.tolist(), special.end] for source, _ in pairs]
    targets = [[*prefix, *target.tolist(), special.end] for _, target in pairs]
    return Outputs(model.row_nlls(sources, targets), [0] * len(pairs))


# --- replaced tokens (ELECTRA): does a discriminator see which they are? ---

# The masks are filled in by the generator beside the model, or, where there is none (published
# discriminators stand alone), by random tokens.
GENERATOR = "generator"  # its folder inside that of the discriminator
# Not that of the masks, whose random numbers have been used.
SAMPLING_EPOCH = VALIDATION_EPOCH + 1
_ALL_MASKED = MaskingRates(1.0, 0.0)


def replaced_rows(model: TextEncoder, examples: Examples, settings: Settings) -> list[CorruptedRow]:
    """The rows of a text with about 15 % of their tokens replaced: their labels are 1.

    A replacement may be the token that was there, which counts as original (Clark et al. 2020,
    section 2). What is drawn follows from the seed, whatever the batches are.
    """
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
        special = model.tokenizer.special_ids
        ordinary = np.array([i for i in range(len(model.tokenizer)) if i not in special])
        filled = [ordinary[(row * len(ordinary)).astype(np.int64)].tolist() for row in draws]
    rows = []
    for row, tokens in zip(masked, filled, strict=True):
        columns = list(zip(row.tokens, row.labels, tokens, strict=True))
        visible = [token if label == IGNORED else new for token, label, new in columns]
        is_replaced = [int(label not in (IGNORED, new)) for _, label, new in columns]
        rows.append(CorruptedRow(visible, is_replaced, row.segments))
    return rows


@torch.inference_mode()
def _sampled_tokens(
    generator: TextEncoder, rows: Sequence[CorruptedRow], draws: Sequence[Numbers]
) -> list[list[int]]:
    """A token for each position, from the generator's distribution there."""
    filled: list[list[int]] = [[] for _ in rows]
    for indices, hidden, padding_mask in _batches(generator, rows):
        # In float64: a sum over the vocabulary must not pass below the number drawn.
        logits = _token_logits(generator, hidden, padding_mask)
        cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)  # [B, T, V]
        # [B, T], with zeros behind shorter rows.
        uniform = pad_sequence([torch.from_numpy(draws[i]) for i in indices], batch_first=True)
        # Inverse transform sampling: the first token whose cumulative probability exceeds it.
        sampled = (cumulative <= uniform[..., None].to(cumulative.device)).sum(dim=-1)  # [B, T]
        sampled = sampled.clamp_max(cumulative.shape[-1] - 1)
        for row, i in enumerate(indices):
            filled[i] = sampled[row, : len(rows[i].tokens)].tolist()
    return filled


def detect_replaced(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """Whether each token was replaced, as predicted and in truth; an example is a token."""
    rows = replaced_rows(model, examples, settings)
    # A probability above ½.
    predictions = _by_row(model, rows, _replaced_logits, lambda logits, _: (logits > 0).tolist())
    labels = [bool(label) for row in rows for label in row.labels]
    return Outputs(list(chain.from_iterable(predictions)), labels)


def replaced_likelihood(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """−log p of whether each token of a row was replaced."""

    def nll(logits: Tensor, labels: Tensor) -> tuple[float, int]:
        loss = functional.binary_cross_entropy_with_logits(logits, labels.double(), reduction="sum")
        return loss.item(), len(labels)

    rows = replaced_rows(model, examples, settings)
    return Outputs(_by_row(model, rows, _replaced_logits, nll), [0] * len(rows))


def _replaced_logits(model: TextEncoder, hidden: Tensor, padding_mask: Tensor) -> Tensor:
    """Logits [B, T]; above 0: replaced."""
    return model.model.classes(hidden, padding_mask)[..., 0].double()
