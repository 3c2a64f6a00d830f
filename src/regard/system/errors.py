"""Exception classes for expected failures: typed, short, and ending with the repair."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

# What other programs call a flag or setting, and ours: the first that a command has.
COMMON_NAMES = {
    "lr": ("--learning-rate",),
    "batch_size": ("--batch-tokens", "--batch"),
    "per_device_train_batch_size": ("--batch-tokens",),
    "gpu": ("--device cuda",),
    "cuda": ("--device cuda",),
    "fp16": ("--precision fp16",),
    "bf16": ("--precision bf16",),
    "output": ("--out", "--output"),
    "output_dir": ("--out", "--output"),
    "max_steps": ("--steps",),
    "updates": ("--steps",),
    "budget": ("--steps N or --minutes N",),
    "num_train_epochs": ("--epochs",),
}
Say = Callable[[str], None]  # receives messages and warnings that are no errors


class RegardError(Exception):
    """Base class of expected failures: `problem` says what is wrong, `repair` how to fix it."""

    exit_code = 2  # of the command line; 1 is left for failed checks and unexpected errors

    def __init__(self, problem: str, repair: str, *more: Any) -> None:
        # All arguments, so that the error survives the way out of a worker process.
        super().__init__(problem, repair, *more)
        self.problem = problem
        self.repair = repair

    def __str__(self) -> str:
        return f"{self.problem}\n  → {self.repair}"


# --- what kind of failure it is; callers catch these by class ---


class DataError(RegardError):
    """Text, corpora or tokenizers that cannot be used as they are."""


class SettingError(RegardError):
    """A recipe key, flag or choice that does not exist or does not fit the others."""


class ModelError(RegardError):
    """A model folder or spec that cannot be opened or built."""


class UnknownKeyError(ModelError):
    """A key of config.json that a family's schema does not list."""

    def __init__(self, problem: str, repair: str, key: str) -> None:
        super().__init__(problem, repair, key)
        self.key = key


class NonFiniteError(ModelError):
    """A weight or an output of a model is NaN or infinite."""


class CheckpointError(RegardError):
    """Training state that is missing or damaged."""


class DiskError(RegardError):
    """Writing failed; what was there before is still there."""


class DivergenceError(RegardError):
    """Loss or gradients stayed non-finite, so the run stopped itself."""


class RankLostError(RegardError):
    """Another process of a distributed run is gone, or does not answer."""


class TrainingInterrupted(RegardError):
    """A signal, or a callback, stopped training; the state was saved, so the run can be resumed."""

    def __init__(self, problem: str, repair: str, signal_number: int) -> None:
        super().__init__(problem, repair, signal_number)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number  # as shells report a process that a signal ended


# --- warnings ---


class RegardWarning(UserWarning):
    """Base class of warnings; the command line prints them without their place in the code."""


class UnknownKeyWarning(RegardWarning):
    """Keys of config.json that nobody knows: they are ignored, here as in transformers."""


class UnreadColumnsWarning(RegardWarning):
    """Columns of a file that hold something, and that nothing reads."""


class UnknownWordsWarning(RegardWarning):
    """Words of an input that the model has no token for, or has never seen in training."""

    def __init__(self, message: str, words: Sequence[str]) -> None:
        super().__init__(message)
        self.words = tuple(words)


class LongInputWarning(RegardWarning):
    """An input that is far longer than any that the model was trained on."""


class EmptyInputWarning(RegardWarning):
    """An input without a word: what a model answers to it means nothing."""


class CutOffOutputWarning(RegardWarning):
    """An output that the length limit has cut off before its end."""


class LongOutputWarning(RegardWarning):
    """An output limit so large that generation may take hours."""


class WideBeamWarning(RegardWarning):
    """A beam that fits into memory, and whose search may take hours."""


def did_you_mean(name: object, options: Iterable[str], likeness: float = 0.6) -> str:
    """The repair for an unknown name: the closest option if it is alike, or all options."""
    import difflib  # imported late: only failures need it

    names = sorted(options)
    matches = difflib.get_close_matches(str(name), names, n=1, cutoff=likeness)
    if matches:
        return f"did you mean {matches[0]!r}?"
    return f"known: {', '.join(names)}"


def nearest_setting(name: str, settings: Iterable[str]) -> str:
    """The repair for an unknown setting: what other programs call so, or `did_you_mean`."""
    settings = [*settings]
    for flag in COMMON_NAMES.get(name, ()):
        setting, _, value = flag.removeprefix("--").replace("-", "_").partition(" ")
        if setting in settings:
            return f"use {setting}" + (f"={value!r}" if value.isalnum() else "")
    return did_you_mean(name, settings)


def warn(warning: Warning) -> None:
    """Issues a warning at the line outside the package that led to it."""
    level = 1
    outside = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        level += 1
        if frame.f_globals["__name__"].partition(".")[0] == "regard":
            outside = level
        frame = frame.f_back
    warnings.warn(warning, stacklevel=outside)
