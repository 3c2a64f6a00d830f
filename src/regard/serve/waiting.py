"""The waiting queue: fair to clients, and bounded."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from regard.serve.requests import Limits, QueueFull

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Clients take turns, and each client's requests come in their order."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: OrderedDict[str, deque[Item]] = (
            OrderedDict()
        )  # whose turn is next comes first

    def __len__(self) -> int:
        return sum(map(len, self.waiting.values()))

    def __iter__(self) -> Iterator[Item]:
        for requests in self.waiting.values():
            yield from requests

    def put(self, client: str, item: Item, retry_after: float) -> None:
        """Appends a request, unless as many wait already."""
        if len(self) >= self.limits.queue:
            raise QueueFull(f"{self.limits.queue:,} requests are waiting already", retry_after)
        if len(self.waiting.get(client, ())) >= self.limits.queue_per_client:
            most = self.limits.queue_per_client
            raise QueueFull(f"{most:,} requests of yours are waiting already", retry_after)
        self.append(client, item)

    def append(self, client: str, item: Item) -> None:
        """Appends what has been taken up before."""
        self.waiting.setdefault(client, deque()).append(item)

    def next(self, wanted: Callable[[Item], bool]) -> Item | None:
        """The request whose turn it is, among those that are wanted."""
        return next(filter(wanted, self), None)

    def pop(self, item: Item) -> None:
        """Takes a request out; its client is now the last."""
        for client, requests in self.waiting.items():
            if item in requests:
                requests.remove(item)
                self.waiting.move_to_end(client)
                if not requests:
                    del self.waiting[client]
                return

    def take(self, wanted: Callable[[Item], bool], most: int | None = None) -> list[Item]:
        """Takes out what is wanted, in the order of the turns."""
        taken: list[Item] = []
        for client, requests in [*self.waiting.items()]:
            staying: deque[Item] = deque()
            for item in requests:
                has_room = most is None or len(taken) < most
                (taken if has_room and wanted(item) else staying).append(item)
            self.waiting[client] = staying
            if not staying:
                del self.waiting[client]
        return taken
