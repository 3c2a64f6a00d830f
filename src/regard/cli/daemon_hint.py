"""A word about `regard daemon`, once, where a person has waited for the import of PyTorch."""

from __future__ import annotations

import sys
import time

from regard.cache_folder import cache_folder

MARKER = "daemon_mentioned"  # in the cache folder: the word is said once to each user
QUICK = 0.5  # seconds that nobody minds
LONG = 10.0  # seconds of which the import is no longer the most

HINT = (
    "note: most of this second or two was the import of PyTorch; `regard daemon start` keeps it "
    "imported for an hour, and commands answer in a fraction of the time (said once)"
)


def mention_daemon(started: float) -> None:
    """Says at a terminal how the next command is faster; `started` is of this one."""
    seconds = time.monotonic() - started
    is_terminal = sys.stderr.isatty() and sys.stdin.isatty()
    if not is_terminal or not sys.platform.startswith("linux") or not QUICK < seconds < LONG:
        return
    marker = cache_folder() / MARKER
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch(exist_ok=False)
    except OSError:  # it was said; or it cannot be kept that it was
        return
    print(HINT, file=sys.stderr)
