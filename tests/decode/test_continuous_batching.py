"""A text becomes the same alone, among others that come and go, and in a batch of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch

from regard.builder import build
from regard.core.caches.slots import Slots
from regard.core.probe import Probe
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.continuous_batching import ContinuousBatch
from regard.decode.jobs import Job, Prefill, Search
from regard.decode.strategy import (
    BeamSearch,
    Greedy,
    Hypothesis,
    Limit,
    PowerPenalty,
    Sampling,
    Strategy,
)
from regard.families.presets import preset
from regard.wirings.generative import Generative

STRATEGIES = (
    Greedy(),
    BeamSearch(3),
    Sampling(0.9, seed=5, draws=2),
    BeamSearch(2, PowerPenalty(1.0), n_best=2, slots="refilled", stop="likely"),
)
# Each way of keeping the past and of counting positions; the others are slow.
FAST = ("transformer", "gpt2", "llama", "t5", "lstm-lm", "bytenet")
OTHERS = (
    "universal", "bart", "gpt1", "transformer-xl", "reformer", "mistral", "mixtral", "gemma2",
    "gpt-oss", "gpt-neox", "palm", "rnn", "gru", "bahdanau", "luong_feeding", "convs2s",
)  # fmt: skip

SHARING = ("gpt1", "mixtral", "gpt-neox", "palm")


def model_of(name: str) -> Generative:
    return cast(Generative, build(preset(f"{name}:tiny", 64, 64)).eval())


def jobs_of(model: Generative, count: int, seed: int = 0) -> list[Job]:
    """Texts of different lengths, strategies, limits and rules."""
    start = 1 if model.reads_target else None
    special = SpecialTokens(0, start, 2, banned=(0, 1, 3))
    chance = random.Random(seed)
    jobs = []
    for key in range(count):
        source = [chance.randrange(4, 60) for _ in range(chance.randrange(1, 20))]
        settings = DecodingSettings(
            STRATEGIES[key % len(STRATEGIES)],
            Limit(0.0, chance.randrange(1, 10)),
            no_repeat_ngram_size=2 if key % 5 == 0 else 0,
            repetition_penalty=1.3 if key % 7 == 0 else 1.0,
        )
        jobs.append(Job(source, special, settings, key=key))
    return jobs


def read(model: Generative, job: Job, piece: int = 8) -> Prefill:
    return read_together(model, [job], piece)


def read_together(model: Generative, jobs: Sequence[Job], piece: int = 8) -> Prefill:
    prefill = Prefill(model, jobs, piece)
    while not prefill.done:
        prefill()
    return prefill


@torch.inference_mode()
def run(model: Generative, jobs: Sequence[Job], rows: int = 32, at_once: int = 2) -> None:
    """Decodes all jobs, of which some join before each step."""
    batch = ContinuousBatch(model, rows)
    waiting = [*jobs]
    while waiting or batch.owners:
        for _ in range(at_once):
            if waiting and waiting[0].rows <= batch.free:
                batch.join(read(model, waiting.pop(0)))
        if batch.owners:
            batch.step()


def found(job: Job) -> list[Hypothesis]:
    return [one for search in job.searches for one in search.hypotheses or ()]


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_alone_among_others_and_in_a_batch_of_its_own(name: str) -> None:
    model = model_of(name)
    together = jobs_of(model, 12)
    run(model, together)
    alone = jobs_of(model, 12)
    for job in alone:
        run(model, [job])
    for among, single in zip(together, alone, strict=True):
        # Equal to the last bit: scores too.
        assert found(among) == found(single)
        [offline] = decode(
            model, [single.source], single.special_tokens, single.settings, keys=[single.key]
        )
        assert [one.tokens for one in found(single)] == [one.tokens for one in offline]
        for mine, other in zip(found(single), offline, strict=True):
            assert mine.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize("name", ["transformer", "gpt2"])
def test_texts_outgrow_the_positions_that_slots_begin_with(name: str) -> None:
    model = model_of(name)
    jobs = jobs_of(model, 5)
    for job in jobs[:2]:
        job.settings = replace(job.settings, limit=Limit(0.0, 45), min_new_tokens=44)
    run(model, jobs)
    for job in jobs:
        [offline] = decode(model, [job.source], job.special_tokens, job.settings, keys=[job.key])
        assert [one.tokens for one in found(job)] == [one.tokens for one in offline]


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", *(pytest.param(name, marks=pytest.mark.slow) for name in SHARING)]
)
@torch.inference_mode()
def test_prompts_may_be_read_together(name: str) -> None:
    model = model_of(name)
    chance = random.Random(1)

    def prompts() -> list[Job]:
        jobs = jobs_of(model, 12)
        lengths = (1, 2, 16, 17, 18, 30, 33, 40, 5, 48, 49, 3)
        rows = [[chance.randrange(4, 60) for _ in range(length)] for length in lengths]
        return [replace(job, source=row) for job, row in zip(jobs, rows, strict=True)]

    jobs = prompts()
    assert all(Prefill.can_share(model, job) for job in jobs)
    batch = ContinuousBatch(model, 64)
    batch.join(read_together(model, jobs, 32))  # the longest in two pieces
    while batch.owners:
        batch.step()
    for job in jobs:
        single = replace(job, searches=[])
        batch.join(read_together(model, [single], 32))
        while batch.owners:
            batch.step()
        assert found(job) == found(single)
        [offline] = decode(model, [job.source], job.special_tokens, job.settings, keys=[job.key])
        assert [one.tokens for one in found(job)] == [one.tokens for one in offline]


@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer"])
@pytest.mark.parametrize("strategy", [Greedy(), Sampling(0.9, seed=5, draws=2)])
@torch.inference_mode()
def test_several_steps_at_once_are_those_steps(name: str, strategy: Strategy) -> None:
    model = model_of(name)
    jobs = [
        replace(job, settings=replace(job.settings, strategy=strategy, repetition_penalty=1.0))
        for job in jobs_of(model, 8)
    ]
    jobs = [replace(job, settings=replace(job.settings, no_repeat_ngram_size=0)) for job in jobs]
    together = [replace(job, searches=[]) for job in jobs]
    run(model, jobs)
    batch = ContinuousBatch(model, 32)
    calls = 0

    def meanwhile() -> None:
        nonlocal calls
        calls += 1

    waiting = [*together]
    while waiting or batch.owners:
        for job in waiting[:2]:
            batch.join(read(model, job))
        del waiting[:2]
        before = {id(one): len(one.tokens) for one, _ in batch.owners}
        for search in batch.step(4, meanwhile):
            assert 0 <= len(search.tokens) - before[id(search)] <= 4
    assert 0 < calls < 10
    for job, other in zip(jobs, together, strict=True):
        assert found(job) == found(other)


def test_forced_and_suppressed_first_tokens() -> None:
    model = model_of("bart")
    special = SpecialTokens(0, (1, 5), 2, (0, 3), forced_bos=7, forced_eos=True)
    suppressed = SpecialTokens(0, 1, 2, (0, 3), begin_suppressed=(2, 9, 11))
    jobs = []
    for key, kind in enumerate((special, suppressed, special, suppressed)):
        settings = DecodingSettings(STRATEGIES[key % 2], Limit(0.0, 6), min_new_tokens=2)
        jobs.append(Job([4 + key, 9, 2], kind, settings, key=key))
    run(model, jobs, at_once=1)
    for job in jobs:
        [offline] = decode(model, [job.source], job.special_tokens, job.settings)
        assert [one.tokens for one in found(job)] == [one.tokens for one in offline]
        if job.special_tokens.forced_bos is not None:
            assert found(job)[0].tokens[0] == 7


@torch.inference_mode()
def test_who_leaves_early_changes_nothing_for_the_others() -> None:
    model = model_of("llama")
    jobs = jobs_of(model, 9)
    batch = ContinuousBatch(model, 32)
    for job in jobs:
        batch.join(read(model, job))
    for number in (8, 3, 0):
        batch.step()
        batch.leave(jobs[number].searches)
    while batch.owners:
        batch.step()
    alone = jobs_of(model, 9)
    for number, job in enumerate(alone):
        run(model, [job])
        if number not in (8, 3, 0):
            assert found(jobs[number]) == found(job)
    assert batch.free == 32


@torch.inference_mode()
def test_the_tokens_of_a_beam_that_are_certain_begin_its_answer() -> None:
    model = model_of("transformer")
    settings = DecodingSettings(BeamSearch(4), Limit(0.0, 12))
    jobs = [
        Job([*job.source, 2], job.special_tokens, settings, key=job.key)
        for job in jobs_of(model, 8)
    ]
    batch = ContinuousBatch(model, 32)
    for job in jobs:
        batch.join(read(model, job))
    prefixes: dict[Search, list[list[int]]] = {}
    while batch.owners:
        for search in batch.step():
            prefixes.setdefault(search, []).append([*search.tokens])
    early = 0
    for search, seen in prefixes.items():
        assert search.hypotheses is not None
        answer = [*search.hypotheses[0].tokens]
        assert all(answer[: len(one)] == one for one in seen)
        early += sum(0 < len(one) < len(answer) for one in seen)
    assert early > 0


# ------------------------------------------------------------------ faults and probes


@torch.inference_mode()
def test_nan_in_one_row_is_the_error_of_that_one_alone() -> None:
    model = model_of("gpt2")
    jobs = jobs_of(model, 8)
    broken = jobs[4]

    def spoil(value: torch.Tensor) -> torch.Tensor:
        return value * float("nan")

    settings = DecodingSettings(
        Greedy(), Limit(0.0, 8), probe=Probe(edits={"decoder.output": spoil})
    )
    broken.settings = settings
    run(model, jobs)
    expected = jobs_of(model, 8)
    run(model, expected)
    assert broken.error is not None
    for number in (0, 1, 2, 3, 5, 6, 7):
        assert found(jobs[number]) == found(expected[number])
        assert not any(math.isnan(one.score) for one in found(jobs[number]))


def test_an_exception_of_a_probe_or_of_a_stop_is_that_jobs_alone() -> None:
    def fail(_: object) -> bool:
        raise ValueError("injected")

    model = model_of("transformer")
    jobs = jobs_of(model, 8)
    jobs[1].stops = fail  # a beam

    def fail_late(value: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
        seen.append(0)
        if len(seen) > 1:
            raise ValueError("injected")
        return value

    settings = DecodingSettings(
        Greedy(), Limit(0.0, 8), probe=Probe(edits={"decoder.output": fail_late})
    )
    jobs[4].settings = settings
    run(model, jobs)
    expected = jobs_of(model, 8)
    run(model, expected)
    for number, job in enumerate(jobs):
        if number in (1, 4):
            assert isinstance(job.error, ValueError)
        else:
            assert found(job) == found(expected[number])


def test_what_cannot_be_chosen_is_the_error_of_those_who_asked() -> None:
    model = model_of("gpt2")
    jobs = jobs_of(model, 8)
    for number in (3, 6):  # a token that the vocabulary lacks
        jobs[number].special_tokens = SpecialTokens(0, None, 2, (0, 1, 3), begin_suppressed=(99,))
    run(model, jobs)
    expected = jobs_of(model, 8)
    run(model, expected)
    for number, job in enumerate(jobs):
        if number in (3, 6):
            assert job.error is not None
        else:
            assert found(job) == found(expected[number])


@pytest.mark.parametrize("name", ["transformer", "gpt2", "mixtral"])
def test_edits_are_of_the_rows_of_their_job(name: str) -> None:
    model = model_of(name)

    def off(mixed: torch.Tensor) -> torch.Tensor:
        return mixed.index_fill(1, torch.tensor([0, 1]), 0.0)

    def edited() -> Job:
        job = jobs_of(model, 5)[1]  # a beam
        probe = Probe(edits={"decoder.0.self.mixed": off, "decoder.1.self.mixed": off})
        job.settings = DecodingSettings(BeamSearch(3), Limit(0.0, 9), probe=probe)
        return job

    jobs = jobs_of(model, 8)
    jobs[1] = edited()
    run(model, jobs)
    plain = jobs_of(model, 8)
    run(model, plain)
    single = edited()
    [offline] = decode(model, [single.source], single.special_tokens, single.settings)
    assert [one.tokens for one in found(jobs[1])] == [one.tokens for one in offline]
    assert found(jobs[1])[0].score == pytest.approx(offline[0].score, abs=1e-4)
    assert found(jobs[1]) != found(plain[1])
    for number in (0, 2, 3, 4, 5, 6, 7):
        assert found(jobs[number]) == found(plain[number])


# ------------------------------------------------------------------ slots


@torch.inference_mode()
def test_slots_that_have_left_hold_nothing_that_spreads() -> None:
    model = model_of("gpt2")
    batch = ContinuousBatch(model, 8)
    jobs = jobs_of(model, 4)
    for job in jobs[:1]:
        batch.join(read(model, job))
    slots = batch.rows
    assert isinstance(slots, Slots)
    for buffer in slots.layers[0][0].buffers.values():
        buffer.tensor[0] = float("nan")
    jobs[0].fail(ValueError("injected"))
    batch.step()
    assert batch.free == 8
    run_alone = jobs_of(model, 4)[2]
    run(model, [run_alone])
    batch.join(read(model, jobs[2]))
    while batch.owners:
        batch.step()
    assert found(jobs[2]) == found(run_alone)
