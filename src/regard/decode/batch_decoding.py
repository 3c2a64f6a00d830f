"""Decoding of many sentences: sorted by length, batched by tokens, returned in the order they came in."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.decode import beam_search, cuda_graphs, sampling, speculative_decoding
from regard.decode.constraints import Constraints, Rules
from regard.decode.events import BeamStep, StepCallback, TokenStep
from regard.decode.strategy import BeamSearch, Hypothesis, Limit, Strategy
from regard.errors import DataError, SettingError
from regard.model import Decoder, EncoderDecoder

Source = Sequence[int] | Tensor
SHARE = 8  # sentences at least that a core decodes at once, before another one helps


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that frame sequences: source padding, what a target begins with, one token or several (None: decoding goes on
    from the source itself), the last one (−1: there is none), and those never to be chosen.

    `opening`: the first token to be chosen, whatever the model says (mBART's target language); `closing`: an output that
    reaches its limit closes with the end token; `not_first`: those that no output begins with; `also`: further tokens that
    end an output (LLaMA 3 has several).
    """

    pad: int
    start: int | tuple[int, ...] | None
    end: int
    banned: tuple[int, ...] = ()
    opening: int | None = None
    closing: bool = False
    not_first: tuple[int, ...] = ()
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class DecodingSettings:
    """`tokens`: how many positions (source rows × beams) are decoded at once; `least`: how many tokens come before an end;
    `no_repeat`: no run of so many tokens comes twice in what the decoder has read (0: any may)."""

    strategy: Strategy = field(default_factory=BeamSearch)
    limit: Limit = field(default_factory=Limit)
    tokens: int = 4096
    least: int = 0
    no_repeat: int = 0


def decode(
    model: EncoderDecoder | Decoder,
    sources: Sequence[Source],
    ends: SpecialTokens,
    settings: DecodingSettings,
    progress: Callable[[int], None] | None = None,
    keys: Sequence[int] | None = None,
    watch: StepCallback | None = None,
    draft: speculative_decoding.DraftModel | None = None,
) -> list[list[Hypothesis]]:
    """For each source (token ids, end included, or frames [mels, N]) its hypotheses, best first. `keys`: what the chance of
    each is drawn from, its number unless said. `watch` is shown every step. With a `draft`, which language models can have,
    sources are decoded one by one."""
    if draft is not None:
        settings = replace(settings, tokens=1)

    @torch.inference_mode()
    def task(rows: list[int]) -> list[list[Hypothesis]]:
        named = rows if keys is None else [keys[row] for row in rows]
        shown = None if watch is None else functools.partial(_by_source, watch, torch.tensor(rows))
        with cuda_graphs.alone(device):
            return _decode_batch(
                model, [sources[r] for r in rows], named, ends, settings, shown, draft
            )

    device = next(model.parameters()).device
    workers = (
        torch.get_num_threads() if device.type == "cpu" and watch is None and draft is None else 1
    )
    groups = _for(workers, batches([_length(source) for source in sources], settings))
    was_training = model.training
    if was_training:  # telling all parts takes as long as some steps
        model.eval()
    try:
        results: list[list[Hypothesis]] = [[] for _ in sources]
        for rows, batch in zip(groups, _together(task, groups, workers), strict=True):
            for row, found in zip(rows, batch, strict=True):
                results[row] = found
            if progress is not None:
                progress(len(rows))
        return results
    finally:
        if was_training:
            model.train()


def _by_source(watch: StepCallback, rows: Tensor, event: BeamStep | TokenStep) -> None:
    """Sentences are numbered inside their batch; who watches wants to know which source it is."""
    watch(replace(event, sentences=rows.to(event.sentences.device)[event.sentences]))


def batches(lengths: Sequence[int], settings: DecodingSettings) -> list[list[int]]:
    """Longest first, so that memory is at its worst at once; each batch within the token budget."""
    width = settings.strategy.width if isinstance(settings.strategy, BeamSearch) else 1
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    for i in order:
        longest = max(1, lengths[groups[-1][0]]) if groups else 0
        if groups and (len(groups[-1]) + 1) * longest * width <= settings.tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _for(workers: int, groups: list[list[int]]) -> list[list[int]]:
    """Parts of these groups, so that each worker has one, if that leaves each `SHARE` sentences."""
    parts = -(-workers // max(1, len(groups)))
    found: list[list[int]] = []
    for group in groups:
        size = max(SHARE, -(-len(group) // parts))
        found += [group[i : i + size] for i in range(0, len(group), size)]
    return found


def _together(
    task: Callable[[list[int]], list[list[Hypothesis]]], groups: list[list[int]], workers: int
) -> Iterator[list[list[Hypothesis]]]:
    """What the task makes of each group, in order. A step has many small operations, which two cores cannot share: each core
    takes groups of its own instead, if there are several: one of them here, the others in copies of this process. Where a
    process must not be copied, it is a thread, which is slower: Python lets only one of them speak at a time."""
    if workers == 1 or len(groups) == 1:
        yield from map(task, groups)
        return
    forks = _forks()
    kind: Any = (
        partial(ProcessPoolExecutor, mp_context=get_context("fork"))
        if forks
        else ThreadPoolExecutor
    )
    torch.set_num_threads(1)
    try:
        with (
            _lent(task),
            kind(workers - 1, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            others = iter(
                [
                    pool.submit(_borrowed if forks else task, g)
                    for i, g in enumerate(groups)
                    if i % workers
                ]
            )
            try:
                for i, group in enumerate(groups):
                    yield next(others).result() if i % workers else task(group)
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(workers)


def _forks() -> bool:
    """Whether this process may be copied: it has no other threads of Python's, and has not spoken to a GPU."""
    return (
        sys.platform.startswith("linux")
        and threading.active_count() == 1
        and not torch.cuda.is_initialized()
    )


_TASKS: list[
    Callable[[list[int]], list[list[Hypothesis]]]
] = []  # a copied process finds here what it is to do


@contextmanager
def _lent(task: Callable[[list[int]], list[list[Hypothesis]]]) -> Iterator[None]:
    _TASKS.append(task)
    try:
        yield
    finally:
        _TASKS.pop()


def _borrowed(rows: list[int]) -> list[list[Hypothesis]]:
    return _TASKS[-1](rows)


def _decode_batch(
    model: EncoderDecoder | Decoder,
    sources: list[Source],
    keys: list[int],
    ends: SpecialTokens,
    settings: DecodingSettings,
    watch: StepCallback | None,
    draft: speculative_decoding.DraftModel | None,
) -> list[list[Hypothesis]]:
    device = next(model.parameters()).device
    tokens, padding_mask = _stacked(sources, ends.pad, model.padding_side)
    encoded: Any = model.encode(
        tokens.to(device), None if padding_mask is None else padding_mask.to(device)
    )
    limits = torch.tensor([settings.limit(_length(source)) for source in sources], device=device)
    # A language model goes on from the last token of its prompt, a translation begins with tokens of its own.
    start = (ends.start,) if isinstance(ends.start, int) else ends.start
    first = tokens[:, -1:] if start is None else torch.tensor(start).expand(len(sources), -1)
    banned = torch.tensor(ends.banned, dtype=torch.long, device=device)
    not_first = torch.tensor(ends.not_first, dtype=torch.long, device=device)
    rules = Rules(
        settings.least, settings.no_repeat, (first if start is not None else tokens).to(device)
    )
    frame = Constraints(
        first.to(device),
        limits,
        ends.end,
        banned,
        ends.opening,
        ends.closing,
        not_first,
        ends.also,
        rules,
    )
    if draft is not None:
        if isinstance(settings.strategy, BeamSearch) or not isinstance(model, Decoder):
            raise SettingError(
                "a draft writes one text of a language model ahead",
                "leave the beam or the draft out",
            )
        if settings.least or settings.no_repeat:
            raise SettingError(
                "a draft knows no least length and no forbidden repeats",
                "leave the draft or these out",
            )
        written = speculative_decoding.generate(
            model, draft, tokens.to(device), settings.strategy, frame, keys[0], watch
        )
        return [[written]]
    if isinstance(settings.strategy, BeamSearch):
        return beam_search.search(model, encoded, settings.strategy, frame, watch)
    return [
        [one] for one in sampling.generate(model, encoded, settings.strategy, frame, keys, watch)
    ]


def _length(source: Source) -> int:
    return source.shape[-1] if isinstance(source, Tensor) else len(source)


def _stacked(sources: Sequence[Source], pad: int, side: str) -> tuple[Tensor, Tensor | None]:
    """[B, S] ids and, if any row is shorter than the others, which of them are real; or [B, mels, N] frames."""
    frames = [source for source in sources if isinstance(source, Tensor)]
    if not frames:
        return _padded([source for source in sources if not isinstance(source, Tensor)], pad, side)
    if len({source.shape for source in frames}) > 1:
        raise DataError(
            "these recordings have not the same length",
            "pad them with silence before their features are made",
        )
    return torch.stack(frames), None


def _padded(sources: Sequence[Sequence[int]], pad: int, side: str) -> tuple[Tensor, Tensor | None]:
    """[B, S] ids and, if any row is shorter than the others, which of them are real."""
    lengths = np.array([len(source) for source in sources])
    longest = int(lengths.max())
    if (lengths == longest).all():
        return torch.tensor(sources, dtype=torch.long), None
    places = np.arange(longest)
    padding_mask = (
        places < lengths[:, None] if side == "right" else places >= longest - lengths[:, None]
    )
    tokens = np.full(padding_mask.shape, pad)
    tokens[padding_mask] = np.concatenate(sources)  # row by row, which is how they are told apart
    return torch.from_numpy(tokens), torch.from_numpy(padding_mask)
