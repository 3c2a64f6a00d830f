"""Batch decoding: many sentences, sorted by length and batched by a token budget.

Results come back in the order of the sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.finite_outputs import non_finite_error
from regard.core.probe import NO_PROBE, NullProbe
from regard.data.padding import pad_rows
from regard.decode import (
    beam_search,
    cuda_graphs,
    fused_step,
    greedy_and_sampling,
    speculative_decoding,
    worker_pool,
)
from regard.decode.constraints import Constraints
from regard.decode.events import BeamStep, StepCallback, TokenCallback, TokenStep
from regard.decode.strategy import BeamSearch, Hypothesis, Limit, Sampling, Strategy
from regard.decode.worker_count import default_workers
from regard.system.errors import SettingError
from regard.wirings.generative import Generative

Source = Sequence[int] | Tensor  # token ids, or the frames [mels, N] of a spectrogram


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a decoder, by id, and the tokens it must or must not write.

    `pad`: padding of sources.
    `start`: what a target begins with, one token or several; None for a language model, which
      continues its prompt.
    `end`: the end token; −1 if there is none.
    `banned`: tokens that are never chosen.
    `forced_bos`: the first token that is chosen, whatever the logits (mBART's target language).
    `forced_eos`: whether an output that reaches its length limit closes with the end token.
    `begin_suppressed`: tokens that no output begins with.
    `extra_ends`: further end tokens (LLaMA 3 has several).
    """

    pad: int
    start: int | tuple[int, ...] | None
    end: int
    banned: tuple[int, ...] = ()
    forced_bos: int | None = None
    forced_eos: bool = False
    begin_suppressed: tuple[int, ...] = ()
    extra_ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class DecodingSettings:
    """Decoding settings: strategy, length limit, token budget of a batch, and history rules.

    `batch_tokens`: how many positions (source tokens × beams) are decoded at once.
    `min_new_tokens`: how many tokens come before an end token.
    `no_repeat_ngram_size`: no n-gram of this size comes twice in what the decoder reads (0: off).
    `repetition_penalty`: divides positive logits of what the decoder has read, and multiplies
      negative ones, as `transformers` does (1: off).
    `workers`: processes that share the sentences on a CPU. 1 decodes in this process and changes
      none of its settings; more fork it, and set one thread each while they work. None is 1, or
      one a thread inside `worker_count.one_worker_per_thread`.
    `probe`: what is recorded or edited inside the model, as ablated heads.
    `stream`: receives each token as soon as it is decoded, with the number of its source; True
      ends that. A beam has no final tokens before its end, and streams nothing.
    `stops`: whether a beam's tokens, of a source by its number, end a hypothesis.
    """

    strategy: Strategy = field(default_factory=BeamSearch)
    limit: Limit = field(default_factory=Limit)
    batch_tokens: int = 4096
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    workers: int | None = None
    probe: NullProbe = NO_PROBE
    stream: TokenCallback | None = None
    stops: Callable[[int, list[int]], bool] | None = None


def decode(
    model: Generative,
    sources: Sequence[Source],
    special_tokens: SpecialTokens,
    settings: DecodingSettings,
    progress: Callable[[int], None] | None = None,
    keys: Sequence[int] | None = None,
    on_step: StepCallback | None = None,
    draft: speculative_decoding.DraftModel | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source (token ids with the end token, or frames), best first.

    `progress(n)` is called after each batch with the number of sources in it, `on_step(event)`
    inside each decoding step. `keys`: the random stream that each source is sampled from, its index
    by default. With a `draft`, which language models can have, sources are decoded one by one by
    speculative decoding.
    """
    if draft is not None:
        # A budget of one token: each source is a batch of its own.
        settings = replace(settings, batch_tokens=1)
    device = next(model.parameters()).device
    draws = settings.strategy.draws if isinstance(settings.strategy, Sampling) else 1
    numbers = range(len(sources)) if keys is None else keys
    keys = [number * draws + i for number in numbers for i in range(draws)]
    sources = [sources[i // draws] for i in range(len(keys))]

    @torch.inference_mode()
    def decode_group(rows: list[int]) -> list[list[Hypothesis]]:
        """Decodes these sources together; callbacks get their numbers among all."""

        def show(event: BeamStep | TokenStep) -> None:
            assert on_step is not None
            numbers = torch.tensor(rows, device=device)
            on_step(replace(event, sentences=numbers[event.sentences]))

        def numbered(callback: Callable[..., bool] | None) -> Callable[..., bool] | None:
            return callback and (lambda sentence, output: callback(rows[sentence], output))

        with cuda_graphs.exclusive(device):
            return _decode_batch(
                model,
                [sources[row] for row in rows],
                [keys[row] for row in rows],
                special_tokens,
                replace(
                    settings,
                    stream=numbered(settings.stream),
                    stops=numbered(settings.stops),
                ),
                on_step and show,
                draft,
            )

    width = settings.strategy.width if isinstance(settings.strategy, BeamSearch) else 1
    lengths = [_length(source) for source in sources]
    groups = batch_by_length(lengths, settings.batch_tokens, width)
    workers = 1
    has_callback = on_step is not None or settings.stream is not None
    if device.type == "cpu" and draft is None and not has_callback:
        workers = settings.workers or default_workers(torch.get_num_threads())
    # Cut further, so that no worker of a CPU is idle.
    groups = worker_pool.split_groups(groups, workers)
    was_training = model.training
    if was_training:  # calling eval() for nothing takes as long as some steps
        model.eval()
    try:
        results: list[list[Hypothesis]] = [[] for _ in sources]
        decoded = worker_pool.map_groups(decode_group, groups, workers)
        for rows, group in zip(groups, decoded, strict=True):
            for row, hypotheses in zip(rows, group, strict=True):
                # NaN is no candidate of a beam, which then ends without a hypothesis.
                if not hypotheses or math.isnan(hypotheses[0].log_probability):
                    raise non_finite_error(model)
                results[row] = hypotheses
            if progress is not None:
                progress(len(rows))
        return [[*chain(*results[i : i + draws])] for i in range(0, len(results), draws)]
    finally:
        if was_training:
            model.train()


def batch_by_length(lengths: Sequence[int], batch_tokens: int, width: int = 1) -> list[list[int]]:
    """Indices of sequences of like lengths in batches within a token budget, the longest first.

    Each sequence counts as the longest one of its batch, times `width` beams. The longest come
    first so that the largest memory is needed at once.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    for i in order:
        longest = max(1, lengths[groups[-1][0]]) if groups else 0
        if groups and (len(groups[-1]) + 1) * longest * width <= batch_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


# --- one batch ---


def _decode_batch(
    model: Generative,
    sources: list[Source],
    keys: list[int],
    special_tokens: SpecialTokens,
    settings: DecodingSettings,
    on_step: StepCallback | None,
    draft: speculative_decoding.DraftModel | None,
) -> list[list[Hypothesis]]:
    """Decodes sources together."""
    strategy = settings.strategy
    device = next(model.parameters()).device
    tokens, padding_mask = collate(sources, special_tokens.pad, model.padding_side, device)
    constraints = constraints_of(sources, tokens, padding_mask, special_tokens, settings)
    if draft is not None:
        has_rules = (
            settings.min_new_tokens
            or settings.no_repeat_ngram_size
            or settings.repetition_penalty != 1
        )
        if isinstance(strategy, BeamSearch) or model.reads_target or has_rules:
            raise SettingError(
                "a draft needs a language model, and no beam search, minimum length or repetition "
                "constraints",
                "remove the draft or these settings",
            )
        hypothesis = speculative_decoding.generate(
            model, draft, tokens, strategy, constraints, keys[0], on_step, settings.stream
        )
        return [[hypothesis]]
    encoded = _encode(model, tokens, padding_mask, settings.probe)
    if isinstance(strategy, BeamSearch):
        return beam_search.search(model, encoded, strategy, constraints, on_step)
    hypotheses = greedy_and_sampling.generate(
        model, encoded, strategy, constraints, keys, on_step, settings.stream
    )
    return [[hypothesis] for hypothesis in hypotheses]


def _encode(
    model: Generative, tokens: Tensor, padding_mask: Tensor | None, probe: NullProbe
) -> Any:
    """What decoding starts from; an encoder's from a CUDA graph, where nothing is recorded."""

    def encode(inputs: tuple[Tensor, Tensor | None]) -> Any:
        return model.encode(*inputs, Context(probe=probe))

    inputs = (tokens, padding_mask)
    if not tokens.is_cuda or probe.active or "encoder" not in model.stacks():
        return encode(inputs)
    return cuda_graphs.prefill(
        encode,
        inputs,
        model=model,
        key="encode",
        capturable=partial(fused_step.encodes_in_a_graph, model),
    )


def constraints_of(
    sources: list[Source],
    tokens: Tensor,
    padding_mask: Tensor | None,
    special: SpecialTokens,
    settings: DecodingSettings,
) -> Constraints:
    """The constraints on what follows the sources, tokens [B, S]."""
    ids = partial(torch.tensor, dtype=torch.long, device=tokens.device)
    if special.start is None:
        # A language model continues from the last token of its prompt.
        start_tokens = tokens[:, -1:]
        prefix = tokens
        if padding_mask is not None:
            prefix = tokens.masked_fill(~padding_mask, -1)
    else:
        start_tokens = ids(special.start).repeat(len(sources), 1)
        prefix = start_tokens
    return Constraints(
        start_tokens=start_tokens,
        limits=ids([settings.limit(_length(source)) for source in sources]),
        end=special.end,
        banned=ids(special.banned),
        forced_bos=special.forced_bos,
        forced_eos=special.forced_eos,
        begin_suppressed=ids(special.begin_suppressed),
        extra_ends=special.extra_ends,
        min_new_tokens=settings.min_new_tokens,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        repetition_penalty=settings.repetition_penalty,
        prefix=prefix,
        stops=settings.stops,
    )


def _length(source: Source) -> int:
    return source.shape[-1] if isinstance(source, Tensor) else len(source)


def collate(
    sources: Sequence[Any], pad: int, side: str, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Token ids [B, S] and their padding mask, None without padding; or frames [B, mels, N]."""
    if isinstance(sources[0], Tensor) and sources[0].ndim > 1:
        return torch.stack([*sources]).to(device), None
    tokens, mask = pad_rows(sources, pad, side=side)
    return tokens.to(device), None if bool(mask.all()) else mask.to(device)
