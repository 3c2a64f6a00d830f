"""Warnings of output lengths: what the limit has cut off, and limits that take hours to reach."""

from __future__ import annotations

from collections.abc import Sequence

from regard.decode.strategy import Hypothesis
from regard.system.errors import CutOffOutputWarning, LongOutputWarning, warn

_LONG = 10_000  # tokens of one output


def warn_of_cut_off(hypotheses: Sequence[Hypothesis], repair: str) -> None:
    """Warns once of outputs that have no end token before the length limit."""
    cut_off = sum(not hypothesis.finished for hypothesis in hypotheses)
    if cut_off:
        message = (
            f"{cut_off:,} of {len(hypotheses):,} outputs reached the length limit and are cut off\n"
            f"  → {repair}"
        )
        warn(CutOffOutputWarning(message))


def warn_of_long_output(max_new_tokens: int) -> None:
    """Warns of a limit that a model without an end token runs into, one token after the other."""
    if max_new_tokens > _LONG:
        message = (
            f"up to {max_new_tokens:,} tokens are generated for each prompt, which may take hours\n"
            "  → use a smaller --max-new-tokens"
        )
        warn(LongOutputWarning(message))
