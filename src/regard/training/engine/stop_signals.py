"""Stop signals: Ctrl-C, SIGTERM and SIGHUP let the step finish and the state be saved."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Calls `on_signal` with the number of each SIGINT, SIGTERM or SIGHUP (a closed terminal).

    The second one restores the default effect, so that one more ends the process at once.
    """
    received = 0

    def handler(number: int, _: Any) -> None:
        nonlocal received
        received += 1
        if received > 1:
            # For a run that hangs: the user must be able to end it without `kill -9`.
            signal.signal(number, signal.SIG_DFL)
        on_signal(number)

    previous: dict[int, Any] = {}
    try:
        for number in _stop_signals():
            previous[number] = signal.signal(number, handler)
    except ValueError:
        pass  # Python installs handlers in the main thread only; elsewhere signals are the caller's
    try:
        yield
    finally:
        for signal_number, previous_handler in previous.items():
            signal.signal(signal_number, previous_handler)


def _stop_signals() -> list[int]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    # Windows has none. Under nohup it is ignored, and stays so.
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return [int(number) for number in numbers]
