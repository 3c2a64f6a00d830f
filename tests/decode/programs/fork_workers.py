"""Decodes with forked worker processes; run by test_workers.py.

It is a program of its own because a process is forked only where it has no other threads, which
pytest and its plugins may have started.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from regard.decode import worker_pool
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy, Limit, Sampling, Strategy
from regard.decode.worker_count import one_worker_per_thread
from regard.lab.bench.models import benchmark_model
from regard.system.errors import DataError
from regard.system.process_pool import can_fork

SPECIAL_TOKENS = SpecialTokens(0, 1, 2, (0,))


def workers_find_what_one_process_finds(strategy: Strategy) -> None:
    model: Any = benchmark_model("tiny").build()
    sources = [torch.randint(4, 900, (3 + i % 5,)).tolist() for i in range(40)]
    results = []
    for workers in (1, 2):
        settings = DecodingSettings(strategy, Limit.fixed(9), workers=workers)
        progress: list[int] = []
        threads = torch.get_num_threads()
        hypotheses = decode(model, sources, SPECIAL_TOKENS, settings, progress.append)
        assert sum(progress) == len(sources)
        assert len(progress) == workers
        assert torch.get_num_threads() == threads
        results.append([[h.tokens for h in sentence] for sentence in hypotheses])
    assert results[0] == results[1], strategy


def groups_are_shared_out_over_processes() -> None:
    groups = [[i] for i in range(6)]
    processes = list(worker_pool.map_groups(lambda group: (group, os.getpid()), groups, workers=3))
    assert [group for group, _ in processes] == groups
    assert processes[0][1] == processes[3][1] == os.getpid()
    others = {process for _, process in processes} - {os.getpid()}
    assert others
    alone = worker_pool.map_groups(lambda group: os.getpid(), groups, workers=1)
    assert set(alone) == {os.getpid()}


def each_worker_has_one_thread() -> None:
    threads = torch.get_num_threads()
    tasks = worker_pool.map_groups(lambda group: torch.get_num_threads(), [[1], [2]], workers=2)
    assert list(tasks) == [1, 1]
    assert torch.get_num_threads() == threads


def errors_come_through(broken: int) -> None:
    """From the first group, which this process decodes, and from the second, which another does."""

    def task(group: list[int]) -> int:
        if broken in group:
            raise DataError("a sentence is broken", "mend it")
        return os.getpid()

    threads = torch.get_num_threads()
    try:
        list(worker_pool.map_groups(task, [[0], [1], [2], [3]], workers=2))
    except DataError as error:
        assert "mend it" in str(error)
    else:
        raise AssertionError("no error")
    assert torch.get_num_threads() == threads


def commands_take_a_worker_for_each_thread() -> None:
    model: Any = benchmark_model("tiny").build()
    sources = [[4, 5, 6]] * 40
    settings = DecodingSettings(Greedy(), Limit.fixed(2))
    progress: list[int] = []
    decode(model, sources, SPECIAL_TOKENS, settings, progress.append)
    with one_worker_per_thread():
        decode(model, sources, SPECIAL_TOKENS, settings, progress.append)
        one = DecodingSettings(Greedy(), Limit.fixed(2), workers=1)
        decode(model, sources, SPECIAL_TOKENS, one, progress.append)
    assert progress == [40, 20, 20, 40]


if __name__ == "__main__":
    torch.set_num_threads(2)
    assert can_fork()
    for each in (Greedy(), BeamSearch(3), Sampling(seed=4)):
        workers_find_what_one_process_finds(each)
    groups_are_shared_out_over_processes()
    each_worker_has_one_thread()
    errors_come_through(broken=0)
    errors_come_through(broken=1)
    commands_take_a_worker_for_each_thread()
    assert can_fork()
    print("ok")
