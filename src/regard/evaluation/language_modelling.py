"""Causal language modelling: −log p of a text, in windows or segments of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.core.caches.kv_cache import DecoderState, LayerCache
from regard.core.context import Context
from regard.evaluation.task import Outputs, Settings
from regard.models import LanguageModel
from regard.system.errors import DataError

BATCH_TOKENS = 1 << 13
MAX_LOGITS = 1 << 24  # tokens × vocabulary: 64 MiB in float32

Ids = NDArray[np.int64]


def text_likelihood(
    model: LanguageModel, blocks: Sequence[str | Sequence[int]], settings: Settings
) -> Outputs:
    """−log p of every token but the first, of the text in these blocks (or their token ids).

    An example is a window of the context's length. Windows do not overlap; a model that carries
    state from segment to segment reads on in as many streams as in training.
    """
    ids = token_ids(model, blocks)
    context = min(settings.reading.context, model.positions or settings.reading.context)
    if model.model.stack.carries_state:
        windows = segment_losses(model, ids, context, settings.reading.streams)
    else:
        windows = _window_losses(model, ids, context)
    values = []
    characters = []
    for starts, length, losses in windows:
        for start, nll in zip(starts.tolist(), losses, strict=True):
            values.append((nll, length))
            characters.append(_character_count(model, ids, start, length))
    return Outputs(values, characters)


def token_ids(model: LanguageModel, blocks: Sequence[str | Sequence[int]]) -> Ids:
    """All tokens of a text, one after the other."""
    rows = [model.tokenizer.encode(block) if isinstance(block, str) else block for block in blocks]
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    if len(ids) < 2:
        raise DataError("a text of one token has no next token to predict", "pass a longer text")
    if ids.min() < 0 or ids.max() >= len(model.tokenizer):
        raise DataError(
            "a token id is outside the vocabulary of the model",
            f"use ids from 0 to {len(model.tokenizer) - 1}, or the text",
        )
    return ids


def _character_count(model: LanguageModel, ids: Ids, start: int, length: int) -> int:
    """The characters of the tokens that a window predicts: all but its first."""
    # Counted with the token before and without it: decoders drop the space before a first word,
    # and bytes of one character may lie on both sides.
    decode = model.tokenizer.decode
    text = decode(ids[start : start + length + 1].tolist())
    return max(0, len(text) - len(decode(ids[start : start + 1].tolist())))


def _row_nlls(
    model: LanguageModel, ids: Ids, starts: Ids, length: int, states: list[LayerCache] | None = None
) -> list[float]:
    """−log p of the tokens of windows, summed over each; states of segments advance in place."""
    # Windows with the token after them: [B, T + 1].
    windows = ids[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    cells = torch.from_numpy(windows).to(model.device)
    context = Context() if states is None else Context(state=DecoderState(states))
    hidden, _ = model.model(cells[:, :-1], None, context)  # [B, T, D]
    # Over dimension 1, the vocabulary.
    logits = model.model.head(hidden).float().mT
    nll = functional.cross_entropy(logits, cells[:, 1:], reduction="none")  # [B, T]
    totals: list[float] = nll.double().sum(dim=1).tolist()
    return totals


# --- windows ---


@torch.inference_mode()
def _window_losses(
    model: LanguageModel, ids: Ids, context: int
) -> Iterator[tuple[Ids, int, list[float]]]:
    """(starts, length, −log p) of windows that cover the text; the last may be shorter."""
    model.model.eval()
    count = len(ids) - 1
    rows = max(1, min(BATCH_TOKENS, MAX_LOGITS // len(model.tokenizer)) // context)
    starts = np.arange(0, count - context + 1, context)  # of windows that fit completely
    batches = [(starts[i : i + rows], context) for i in range(0, len(starts), rows)]
    rest = count % context
    if rest:  # every token counts exactly once
        batches.append((np.array([count - rest]), rest))
    for first_tokens, length in batches:
        yield first_tokens, length, _row_nlls(model, ids, first_tokens, length)


# --- segments ---


@torch.inference_mode()
def segment_losses(
    model: LanguageModel, ids: Ids, context: int, streams: int
) -> Iterator[tuple[Ids, int, list[float]]]:
    """(starts, length, −log p) of the segments of streams, each read after the one before."""
    model.model.eval()
    count = len(ids) - 1
    length = max(1, count // streams)
    rows = count // length  # as many streams as asked for, or fewer in a short text
    states = model.model.stack.start_segments(rows, model.spec.d_model)
    for first in range(0, length, context):
        starts = np.arange(rows) * length + first
        width = min(context, length - first)
        yield starts, width, _row_nlls(model, ids, starts, width, states)
    # What the division into streams left over continues the last stream.
    rest = count - rows * length
    if rest:
        starts = np.array([count - rest])
        yield starts, rest, _row_nlls(model, ids, starts, rest, _last_stream(states))


def _last_stream(states: list[LayerCache]) -> list[LayerCache]:
    """The states of the last stream alone."""
    for state in states:
        attention = state.self_attention
        tensors = {}
        for field in fields(attention):  # type: ignore[arg-type]
            value = getattr(attention, field.name)
            if isinstance(value, Tensor):
                tensors[field.name] = value[-1:]
        state.self_attention = replace(attention, **tensors)  # type: ignore[type-var]
    return states
