"""Reading checkpoints on several ranks: one of them looks which is intact, the others follow."""

from __future__ import annotations

from collections.abc import Callable

from regard.system.checkpoint import Checkpoints, Saved
from regard.training.parallel.ranks import Ranks


def on_all_ranks(
    checkpoints: Checkpoints, ranks: Ranks, find: Callable[[], Saved | None]
) -> Saved | None:
    """The checkpoint that the main rank finds, on all ranks."""
    saved = ranks.on_main(find)
    step = ranks.broadcast(None if saved is None else saved.step)
    if step is None or ranks.is_main:
        return saved
    return checkpoints.load(step)
