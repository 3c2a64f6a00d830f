"""A pool of worker processes on a CPU: each decodes groups of sentences with one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch

from regard.system.process_pool import call, can_fork, forked_pool

Result = TypeVar("Result")
Task = Callable[[list[int]], Result]

MIN_SENTENCES = 8  # that a worker decodes at once, before another worker helps


def split_groups(groups: list[list[int]], workers: int) -> list[list[int]]:
    """Cuts groups so that each worker has one, if at least MIN_SENTENCES are left in each."""
    parts = -(-workers // max(1, len(groups)))
    pieces: list[list[int]] = []
    for group in groups:
        size = max(MIN_SENTENCES, -(-len(group) // parts))
        pieces += [group[i : i + size] for i in range(0, len(group), size)]
    return pieces


def map_groups(task: Task[Result], groups: Sequence[list[int]], workers: int) -> Iterator[Result]:
    """task(group) of each group, in order, by several workers: this process is one of them.

    The other workers are forks of this process, which share its weights. Where forking is unsafe
    they are threads, which is slower, because Python executes one of them at a time.
    """
    if workers == 1 or len(groups) == 1:
        yield from map(task, groups)
        return
    with _pool(task, workers - 1) as (pool, call):
        others = iter([pool.submit(call, group) for i, group in enumerate(groups) if i % workers])
        try:
            for i, group in enumerate(groups):
                yield next(others).result() if i % workers else task(group)
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _pool(task: Task[Result], size: int) -> Iterator[tuple[Executor, Task[Result]]]:
    """An executor, and what to submit to it so that `task` is called, with one thread each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if can_fork():
            with forked_pool(task, size, partial(torch.set_num_threads, 1)) as processes:
                yield processes, call
        else:
            with ThreadPoolExecutor(size, "decode", torch.set_num_threads, (1,)) as executor:
                yield executor, task
    finally:
        torch.set_num_threads(threads)
