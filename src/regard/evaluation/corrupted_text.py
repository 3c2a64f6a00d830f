"""Corrupted text: masked and replaced tokens of encoders, spans and denoising of encoder–decoders.

Rows are packed and corrupted as training validates: each has a random stream of its own, which
follows from the seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

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
MASKED_SHARE = 0.15  # of the tokens (BERT), unless the settings have another

Numbers = NDArray[np.float64]
Examples = Sequence[str] | Sequence[PackedRow]
Row = tuple[Ids, Ids]  # its tokens, and where sentences begin


def packed_rows(tokenizer: Tokenizer, examples: Examples, max_tokens: int) -> list[Row]:
    """The rows of a text in blocks; those that are packed already stay as they are."""
    blocks = [example for example in examples if isinstance(example, str)]
    rows = [example for example in examples if not isinstance(example, str)]
    if blocks:
        packed = pack_sentences(block_lines(blocks), tokenizer, max_tokens)
        rows = [row for row in packed if len(row[0]) >= MIN_ROW_TOKENS]
    if not rows:
        raise DataError(
            f"no line has at least {MIN_ROW_TOKENS} tokens, which corruption needs",
            "pass longer lines",
        )
    return [(np.array(ids, np.int64), np.array(starts, np.int64)) for ids, starts in rows]


def ordinary_ids(tokenizer: Tokenizer) -> Ids:
    """The tokens that may stand for others: all but the special ones."""
    special = tokenizer.special_ids
    return np.array([token for token in range(len(tokenizer)) if token not in special], np.int64)


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
        return ordinary_ids(self.tokenizer)

    def __call__(
        self, row: Callable[[int], Row], rows: int, number: int, stream: RandomStream
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
    rows = masked_rows(model, examples, settings, MaskingRates())

    def nll(number: int, logits: Tensor) -> tuple[float, int]:
        labels = torch.tensor(rows[number].labels, device=logits.device)
        # 0 where nothing is to be predicted
        losses = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return losses.double().sum().item(), int((labels != IGNORED).sum())

    return Outputs(_by_row(model, rows, _token_logits, nll), [0] * len(rows))


def predict_masked(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """The likeliest token at each masked position; an example is one of them."""
    rows = masked_rows(model, examples, settings, MaskingRates())
    best = _by_row(model, rows, _token_logits, lambda _, logits: logits.argmax(dim=-1).tolist())
    labels = chain.from_iterable(row.labels for row in rows)
    masked = [pair for pair in zip(chain(*best), labels, strict=True) if pair[1] != IGNORED]
    predictions, references = zip(*masked, strict=True)
    return Outputs(predictions, references)


def masked_rows(
    model: TextEncoder, examples: Examples, settings: Settings, rates: MaskingRates
) -> list[CorruptedRow]:
    """The framed rows of a text, masked as the objective of a model does."""
    reading = settings.reading
    # The special tokens that frame a row: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
    special_tokens = 3 if reading.next_sentence else 2
    max_tokens = reading.positions(model.spec.max_length) - special_tokens
    packed = packed_rows(model.tokenizer, examples, max_tokens)
    share = reading.corrupted_share or MASKED_SHARE
    masking = RowMasking(model.tokenizer, max_tokens, share, rates, reading.next_sentence)
    return [
        masking(packed.__getitem__, len(packed), number, stream)
        for number, stream in enumerate(_streams(settings, packed))
    ]


def _streams(settings: Settings, rows: Sequence[object]) -> Iterator[RandomStream]:
    """A random stream for each row."""
    for number in range(len(rows)):
        yield RandomStream(settings.reading.seed, VALIDATION_EPOCH, number)


def _token_logits(model: Any, hidden: Tensor, padding_mask: Tensor) -> Tensor:
    """Logits [B, T, V] of the tokens at all positions."""
    logits: Tensor = model.head(hidden).float()
    return logits


@torch.inference_mode()
def _by_row(
    model: TextEncoder,
    rows: Sequence[CorruptedRow],
    logits_of: Callable[[Any, Tensor, Tensor], Tensor],
    summarize: Callable[[int, Tensor], Any],
) -> list[Any]:
    """What the logits [T, …] of each row, by its number, are summarized to."""
    pad = model.tokenizer.special_token_id("pad") or 0
    model.model.eval()
    values: list[Any] = [None] * len(rows)
    for indices in batch_by_length([len(row.tokens) for row in rows], BATCH_TOKENS):
        tokens, padding_mask = pad_rows([rows[i].tokens for i in indices], pad)
        padding_mask = padding_mask.to(model.device)
        options = {}
        if model.spec.tokens.segments > 1:
            segments, _ = pad_rows([rows[i].segments for i in indices], 0)
            options["segments"] = segments.to(model.device)
        hidden, _ = model.model(tokens.to(model.device), padding_mask, **options)
        logits = require_finite(logits_of(model.model, hidden, padding_mask), model.model)
        for i, row in zip(indices, logits, strict=True):
            values[i] = summarize(i, row[: len(rows[i].tokens)])
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


@dataclass
class Restoration(ABC):
    """How a row is corrupted that an encoder–decoder restores."""

    tokenizer: Tokenizer
    share: float  # of its tokens
    span_length: float  # mean

    default_share: ClassVar[float]
    special_tokens: ClassVar[int]  # that frame a source

    @abstractmethod
    def __call__(self, ids: Ids, starts: Ids, stream: RandomStream) -> tuple[Ids, Ids]:
        """Source and target of a row, without special tokens."""


class Infilling(Restoration):
    """Masked spans and permuted sentences, and the whole text (BART): <s> A </s>."""

    default_share = 0.3
    special_tokens = 2

    def __call__(self, ids: Ids, starts: Ids, stream: RandomStream) -> tuple[Ids, Ids]:
        mask = self.tokenizer.required_token_id("mask")
        source, target, _ = denoise(
            ids, starts, stream, share=self.share, mean=self.span_length, token=mask
        )
        return source, target


class Spans(Restoration):
    """Sentinels in the place of spans, and the spans alone (T5): A </s>."""

    default_share = 0.15
    special_tokens = 1

    def __init__(self, tokenizer: Tokenizer, share: float, span_length: float) -> None:
        super().__init__(tokenizer, share, span_length)
        self.sentinels = sentinel_ids(tokenizer)

    def __call__(self, ids: Ids, starts: Ids, stream: RandomStream) -> tuple[Ids, Ids]:
        return corrupt_spans(
            ids, stream, share=self.share, mean=self.span_length, sentinels=self.sentinels
        )


def with_special_tokens(rows: tuple[Ids, Ids], special: Any) -> tuple[list[int], list[int]]:
    """Source and target with the special tokens of a decoder."""
    prefix = [] if special.forced_bos is None else [special.forced_bos]
    source, target = ([*prefix, *row.tolist(), special.end] for row in rows)
    return source, target


def restored_likelihood(
    kind: type[Restoration], model: Translator, examples: Examples, settings: Settings
) -> Outputs:
    """−log p of each row, or of its spans, given it corrupted."""
    tokenizer = model.source_tokenizer
    reading = settings.reading
    corrupt = kind(tokenizer, reading.corrupted_share or kind.default_share, reading.span_length)
    max_tokens = reading.positions(model.spec.max_length) - kind.special_tokens
    packed = packed_rows(tokenizer, examples, max_tokens)
    pairs = [
        with_special_tokens(corrupt(*row, stream), model.special_tokens)
        for row, stream in zip(packed, _streams(settings, packed), strict=True)
    ]
    sources, targets = zip(*pairs, strict=True)
    return Outputs(model.row_nlls(sources, targets), [0] * len(pairs))


# --- replaced tokens (ELECTRA): does a discriminator see which they are? ---

# The masks are filled in by the generator beside the model, or, where there is none (published
# discriminators stand alone), by random tokens.
GENERATOR = "generator"  # its folder inside that of the discriminator
# Not that of the masks, whose random numbers have been used.
SAMPLING_EPOCH = VALIDATION_EPOCH + 1


def replaced_rows(model: TextEncoder, examples: Examples, settings: Settings) -> list[CorruptedRow]:
    """The rows of a text with about 15 % of their tokens replaced: their labels are 1.

    A replacement may be the token that was there, which counts as original (Clark et al. 2020,
    section 2). What is drawn follows from the seed, whatever the batches are.
    """
    masked = masked_rows(model, examples, settings, MaskingRates(1.0, 0.0))
    seed = settings.reading.seed
    draws = [
        RandomStream(seed, SAMPLING_EPOCH, number).numbers(len(row.tokens))
        for number, row in enumerate(masked)
    ]

    def sample(number: int, logits: Tensor) -> list[int]:
        """Inverse transform sampling: the first token whose cumulative probability exceeds it."""
        # In float64: a sum over the vocabulary must not pass below the number drawn.
        cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)  # [T, V]
        uniform = torch.from_numpy(draws[number])[:, None].to(cumulative.device)
        sampled: Tensor = (cumulative <= uniform).sum(dim=-1)
        return sampled.clamp_max(logits.shape[-1] - 1).tolist()  # type: ignore[no-any-return]

    folder = None if model.folder is None else model.folder / GENERATOR
    if folder is not None and (folder / "config.json").is_file():
        generator: Any = load(folder, device=str(model.device))  # it fills in masks
        model.say(f"tokens are replaced by samples of {folder}, seed {seed}")
        filled = _by_row(generator, masked, _token_logits, sample)
    else:
        model.say(f"no generator in the model folder: tokens are replaced at random, seed {seed}")
        ordinary = ordinary_ids(model.tokenizer)
        filled = [ordinary[(row * len(ordinary)).astype(np.int64)].tolist() for row in draws]
    rows = []
    for row, tokens in zip(masked, filled, strict=True):
        columns = list(zip(row.tokens, row.labels, tokens, strict=True))
        visible = [token if label == IGNORED else new for token, label, new in columns]
        is_replaced = [int(label not in (IGNORED, new)) for _, label, new in columns]
        rows.append(CorruptedRow(visible, is_replaced, row.segments))
    return rows


def detect_replaced(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """Whether each token was replaced, as predicted and in truth; an example is a token."""
    rows = replaced_rows(model, examples, settings)
    # A probability above ½.
    predictions = _by_row(model, rows, _replaced_logits, lambda _, logits: (logits > 0).tolist())
    labels = [bool(label) for row in rows for label in row.labels]
    return Outputs(list(chain(*predictions)), labels)


def replaced_likelihood(model: TextEncoder, examples: Examples, settings: Settings) -> Outputs:
    """−log p of whether each token of a row was replaced."""
    rows = replaced_rows(model, examples, settings)

    def nll(number: int, logits: Tensor) -> tuple[float, int]:
        labels = torch.tensor(rows[number].labels, dtype=logits.dtype, device=logits.device)
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        return loss.item(), len(labels)

    return Outputs(_by_row(model, rows, _replaced_logits, nll), [0] * len(rows))


def _replaced_logits(model: Any, hidden: Tensor, padding_mask: Tensor) -> Tensor:
    """Logits [B, T]; above 0: replaced."""
    logits: Tensor = model.classes(hidden, padding_mask)[..., 0].double()
    return logits
