"""Worker processes: a function over a stream, results in the order of the stream."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

PR_SET_PDEATHSIG = 1  # of Linux's prctl
FEWEST_ITEMS = 8  # that are worth a pool: starting one takes about as long as one item
ITEMS_AHEAD = 3  # for each worker: enough that none waits, few enough for memory


def available_cores() -> int:
    """The cores that this process may use."""
    if sys.platform.startswith("linux"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of so many items; the last may be shorter."""
    stream = iter(items)
    while some := list(itertools.islice(stream, size)):
        yield some


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Iterator[Result]:
    """function(item) of each item, in order, by several processes; one a core by default.

    The stream is read here, a few items ahead of the results, whose number is bounded: neither has
    to fit into memory. Few items, one worker, or a process that cannot be forked: all happens here.
    """
    workers = workers or available_cores()
    stream = iter(items)
    first = list(itertools.islice(stream, FEWEST_ITEMS))
    if workers == 1 or len(first) < FEWEST_ITEMS or not can_fork():
        yield from map(function, itertools.chain(first, stream))
        return
    with forked_pool(function, workers) as pool:
        pending: deque[Future[Any]] = deque()
        try:
            for item in itertools.chain(first, stream):
                pending.append(pool.submit(call, item))
                if len(pending) >= workers * ITEMS_AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def forked_pool(
    function: Callable[[Any], Any], workers: int, setup: Callable[[], object] | None = None
) -> ProcessPoolExecutor:
    """Forks of this process, which give function(item) for what is submitted with `call`."""
    # Forks inherit the function as an argument of the initializer: it is never pickled.
    return ProcessPoolExecutor(workers, get_context("fork"), _start_worker, (function, setup))


def can_fork() -> bool:
    """Whether forking is safe: no other Python threads, and no CUDA context."""
    if not sys.platform.startswith("linux") or threading.active_count() > 1:
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


_worker_function: Callable[[Any], Any] | None = None  # set in worker processes only


def _start_worker(
    function: Callable[[Any], Any], setup: Callable[[], object] | None = None
) -> None:
    global _worker_function
    _worker_function = function
    # A parent that is killed cannot end its workers. They would wait for work forever, and hold the
    # locks of the files that they inherited.
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if setup is not None:
        setup()


def call(item: Any) -> Any:
    """The function of this worker process."""
    assert _worker_function is not None
    return _worker_function(item)
