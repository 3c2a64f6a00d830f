"""What a thread of work promises to those who wait: threads and coroutines alike."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar

R = TypeVar("R")
Item = TypeVar("Item")

_END = object()


class Pending(Generic[R]):
    """Something that was taken up: its result, for threads and for coroutines."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._result: R | None = None
        self._error: BaseException | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Who asked has gone: the work may be dropped at its next step."""
        self.cancelled = True

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, seconds: float | None = None) -> R:
        """The result, or its own error; blocks this thread."""
        if not self._done.wait(seconds):
            raise TimeoutError
        return self._value()

    async def result(self) -> R:
        """The result, or its own error."""
        await self._until(lambda: self.done)
        return self._value()

    def _value(self) -> R:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    # ------------------------------------------------------------------ for who does the work

    def finish(self, result: R) -> None:
        self._result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self._done.set()
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def _until(self, ready: Any) -> None:
        while True:
            event = asyncio.Event()
            with self._lock:
                self._waiting.append((asyncio.get_running_loop(), event))
            if ready():
                return
            await event.wait()


class ItemStream(Pending[R], Generic[Item, R]):
    """Items that come one by one; the `result` comes after them.

    A failure is raised after the items that came before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        self._items.put(item)
        self._wake()

    def _end(self) -> None:
        self._items.put(_END)
        super()._end()

    def __iter__(self) -> Iterator[Item]:
        while (item := self._items.get()) is not _END:
            yield item
        self._value()

    async def __aiter__(self) -> AsyncIterator[Item]:
        while True:
            await self._until(lambda: not self._items.empty())
            if (item := self._items.get()) is _END:
                break
            yield item
        self._value()
