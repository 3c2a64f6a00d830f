"""The number of worker processes: one, unless the caller asks for more. No torch here.

Decoding steps consist of many small operations that several threads cannot share well. Workers
decode groups of sentences of their own instead, one thread each. That forks the process, which a
library must not do unasked: `regard translate` and the other commands ask for it, a call of
`model.translate` does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PER_THREAD: ContextVar[bool] = ContextVar("one_worker_per_thread", default=False)


@contextmanager
def one_worker_per_thread() -> Iterator[None]:
    """Inside, decoding on a CPU takes as many workers as PyTorch has threads.

    That is the default of `DecodingSettings.workers`; settings that give a number keep it.
    """
    token = _PER_THREAD.set(True)
    try:
        yield
    finally:
        _PER_THREAD.reset(token)


def default_workers(threads: int) -> int:
    """The default number of workers for this number of PyTorch threads."""
    return threads if _PER_THREAD.get() else 1
