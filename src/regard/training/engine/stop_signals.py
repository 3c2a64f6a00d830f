"""Stop signals: Ctrl-C and SIGTERM let the step finish and the state be saved."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Calls `on_signal` with the number of each SIGINT or SIGTERM.

    The second one restores the default effect, so that one more ends the process at once.
    """
    received = 0

    def handler(number: int, _: Any) -> None:
        nonlocal received
        received += 1
        if received > 1:
            signal.signal(number, signal.SIG_DFL)
        on_signal(number)

    previous: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handler)
    except ValueError:
        pass  # Python installs handlers in the main thread only; elsewhere signals are the caller's
    try:
        yield
    finally:
        for signal_number, previous_handler in previous.items():
            signal.signal(signal_number, previous_handler)
