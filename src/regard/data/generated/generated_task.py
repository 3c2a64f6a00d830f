"""The contract of a generated task: endless streams of examples, one for each split."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, ClassVar, Literal

from regard.system.errors import DataError, SettingError, did_you_mean

# The last one has lengths beyond training: it tells models that have learned a rule from others.
SPLITS = ("train", "valid", "test", "longer")

# Between input and target, where a causal language model reads both as one text.
SEPARATOR = "="

LONGEST = 100_000  # tokens of an example, which is made as a whole


@dataclass(frozen=True)
class GeneratedTask(ABC):
    """A task whose examples are generated, with lengths from `min_length` to `max_length`.

    Tokens have spaces between them. In the split `longer`, lengths go from there to twice
    `max_length`.
    """

    min_length: int = 1
    max_length: int = 20

    # "pairs": input and target sequence; "classify": text and label
    kind: ClassVar[Literal["pairs", "classify"]] = "pairs"

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length <= LONGEST:
            raise DataError(
                f"no lengths from {self.min_length} to {self.max_length}",
                f"give a minimum of 1 or more and a maximum that is no smaller, up to {LONGEST:,}",
            )

    @abstractmethod
    def examples(self, split: str, seed: int = 0) -> Iterator[tuple[str, str]]:
        """An endless stream of examples: input and target, or text and label."""


def write_examples(
    out: IO[str], examples: Iterable[tuple[str, str]], lines: int, separator: str = "\t"
) -> None:
    """Writes that many examples, one a line: as TSV, which readers of pairs and classes take."""
    for source, target in islice(examples, lines):
        out.write(f"{source}{separator}{target}\n")


def digest(text: str) -> int:
    """A hash of the text that is the same on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def check_split(split: str) -> None:
    """Refuses a name that is no split."""
    if split not in SPLITS:
        raise SettingError(f"there is no split {split!r}", did_you_mean(split, SPLITS))
