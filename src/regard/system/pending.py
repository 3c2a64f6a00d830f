"""What a thread of work promises to those who wait: threads and coroutines alike."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

R = TypeVar("R")
Item = TypeVar("Item")

_END = object()


class _Waker:
    """Wakes what waits in one event loop: many at once by one signal."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = ref(loop)  # the table of wakers must not keep it
        self.events: deque[asyncio.Event] = deque()
        self.is_due = False

    def wake(self, event: asyncio.Event) -> None:
        self.events.append(event)
        loop = self.loop()
        if not (self.is_due or loop is None or loop.is_closed()):
            self.is_due = True
            loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        self.is_due = False  # first: what is appended from now on is seen, or signals again
        while self.events:
            self.events.popleft().set()


_WAKERS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waker] = WeakKeyDictionary()


class Pending(Generic[R]):
    """Something that was taken up: its result, for threads and for coroutines."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[_Waker, asyncio.Event]] = []
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
        for waker, event in waiting:
            waker.wake(event)

    async def _until(self, ready: Any) -> None:
        loop = asyncio.get_running_loop()
        waker = _WAKERS.setdefault(loop, _Waker(loop))
        while True:
            event = asyncio.Event()
            with self._lock:
                self._waiting.append((waker, event))
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
