"""Causal language modelling: −log p of a text, in windows or segments of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.core.caches.kv_cache import DecoderState, LayerCache
from regard.core.context import Context
from regard.data.generated.molecules import is_valid
from regard.decode.strategy import Sampling
from regard.evaluation.task import Outputs, Settings
from regard.models import LanguageModel
from regard.system.errors import DataError

BATCH_TOKENS = 1 << 13
SAMPLES = 1000
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
    context = settings.reading.positions(model.positions)
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


def sample_molecules(model: LanguageModel, blocks: Sequence[str], settings: Settings) -> Outputs:
    """Lines that the model writes behind a line end, None where they are no molecules; the
    reference of each are all lines of the text."""
    corpus = frozenset(line for block in blocks for line in block.splitlines())
    sampling = settings.decoding.strategy or Sampling(seed=settings.reading.seed)
    longest = max(map(len, corpus), default=0)
    lines = model.generate(["\n"] * SAMPLES, sampling, max_new_tokens=longest + 1, stop="\n")
    return Outputs([line if is_valid(line) else None for line in lines], [corpus] * SAMPLES)


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
    cells = windows_at(ids, starts, length).to(model.device)
    context = Context() if states is None else Context(state=DecoderState(states))
    hidden, _ = model.model(cells[:, :-1], None, context)  # [B, T, D]
    # Over dimension 1, the vocabulary.
    logits = model.model.head(hidden).float().mT
    nll = functional.cross_entropy(logits, cells[:, 1:], reduction="none")  # [B, T]
    totals: list[float] = nll.double().sum(dim=1).tolist()
    return totals


# --- windows ---


def windows_at(ids: Any, starts: Ids, length: int) -> Tensor:
    """Windows of a text with the token after them: [B, T + 1]."""
    return torch.from_numpy(ids[starts[:, None] + np.arange(length + 1)].astype(np.int64))


def covering_windows(count: int, length: int, rows: int) -> Iterator[tuple[Ids, int]]:
    """Starts and length of so many windows at a time, which cover all tokens but do not overlap."""
    starts = np.arange(0, count - length + 1, length)  # of windows that fit completely
    for first in range(0, len(starts), rows):
        yield starts[first : first + rows], length
    rest = count % length
    if rest:  # every token counts exactly once
        yield np.array([count - rest]), rest


@torch.inference_mode()
def _window_losses(
    model: LanguageModel, ids: Ids, context: int
) -> Iterator[tuple[Ids, int, list[float]]]:
    """(starts, length, −log p) of windows that cover the text; the last may be shorter."""
    model.model.eval()
    rows = max(1, min(BATCH_TOKENS, MAX_LOGITS // len(model.tokenizer)) // context)
    for starts, length in covering_windows(len(ids) - 1, context, rows):
        yield starts, length, _row_nlls(model, ids, starts, length)


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
        last = {name: tensor[-1:] for name, tensor in state_tensors(state).items()}
        state.self_attention = replace(state.self_attention, **last)  # type: ignore[type-var]
    return states


def state_tensors(state: LayerCache) -> dict[str, Tensor]:
    """The tensors that a layer carries from segment to segment, by name."""
    attention: Any = state.self_attention
    values = {field.name: getattr(attention, field.name) for field in fields(attention)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
