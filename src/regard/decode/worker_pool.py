"""A pool of worker processes on a CPU: each decodes groups of sentences with one thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

from regard.system.process_pool import end_with_parent

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
    with _one_thread_each(), _pool(task, workers - 1) as (pool, call):
        others = iter([pool.submit(call, group) for i, group in enumerate(groups) if i % workers])
        try:
            for i, group in enumerate(groups):
                yield next(others).result() if i % workers else task(group)
        finally:
            pool.shutdown(cancel_futures=True)


def can_fork() -> bool:
    """Whether forking is safe: no other Python threads, and no CUDA context."""
    return (
        sys.platform.startswith("linux")
        and threading.active_count() == 1
        and not torch.cuda.is_initialized()
    )


@contextmanager
def _one_thread_each() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _pool(task: Task[Result], size: int) -> Iterator[tuple[Executor, Task[Result]]]:
    """An executor, and what to submit to it so that `task` is called."""
    if can_fork():
        # A fork inherits the task, which could not be pickled, as an argument of its initializer.
        with ProcessPoolExecutor(size, get_context("fork"), _start_worker, (task,)) as processes:
            yield processes, _call_task
    else:
        with ThreadPoolExecutor(size, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            yield threads, task


_worker_task: Task[Any] | None = None  # set in worker processes only, by their initializer


def _start_worker(task: Task[Any]) -> None:
    global _worker_task
    _worker_task = task
    end_with_parent()
    torch.set_num_threads(1)


def _call_task(group: list[int]) -> Any:
    assert _worker_task is not None
    return _worker_task(group)
