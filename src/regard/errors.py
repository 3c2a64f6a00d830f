"""The errors a person meets: typed, short, and ending with what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class RegardError(Exception):
    """Base of every expected failure. `problem` says what is wrong, `repair` what to do about it."""

    exit_code = 2

    def __init__(self, problem: str, repair: str) -> None:
        super().__init__(f"{problem}\n  → {repair}")
        self.problem = problem
        self.repair = repair

    def __reduce__(self) -> tuple[type[RegardError], tuple[Any, ...]]:
        """So that it comes back whole from another process."""
        return type(self), (self.problem, self.repair)


class DataError(RegardError):
    """Text, corpora or tokenizers that cannot be used as they are."""


class SettingError(RegardError):
    """A recipe key, flag or choice that does not exist or does not fit the others."""


class ModelError(RegardError):
    """A model folder or spec that cannot be opened or built."""


class CheckpointError(RegardError):
    """Training state that is missing or damaged."""


class DiskError(RegardError):
    """Writing failed; what was there before is still there."""


class DivergenceError(RegardError):
    """Loss or gradients stayed non-finite, so the run stopped itself."""


class TrainingInterrupted(RegardError):
    """A signal, or a callback, stopped training; the state was saved, so the run can be resumed."""

    def __init__(self, problem: str, repair: str, signal_number: int) -> None:
        super().__init__(problem, repair)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number  # as shells report a process that a signal ended

    def __reduce__(self) -> tuple[type[RegardError], tuple[Any, ...]]:
        return type(self), (self.problem, self.repair, self.signal_number)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'did you mean X?' for a near miss, otherwise the list of what is known."""
    import difflib  # only what goes wrong needs it

    options = sorted(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(options)}"
