"""The contract of a generated task: endless streams of examples, one for each split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
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
    kind: ClassVar[Literal["pairs", "classify"]]

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length <= LONGEST:
            raise DataError(
                f"no lengths from {self.min_length} to {self.max_length}",
                f"give a minimum of 1 or more and a maximum that is no smaller, up to {LONGEST:,}",
            )

    @abstractmethod
    def examples(self, split: str, seed: int = 0) -> Iterator[tuple[str, str]]:
        """An endless stream of examples: input and target, or text and label."""

    def write_tsv(self, out: IO[str], split: str, lines: int, *, seed: int = 0) -> None:
        """Input, tab, target: what readers of pairs and of labelled texts take."""
        for source, target in islice(self.examples(split, seed), lines):
            out.write(f"{source}\t{target}\n")

    def write_text(self, out: IO[str], split: str, lines: int, *, seed: int = 0) -> None:
        """Input and target in one line, for language models."""
        for source, target in islice(self.examples(split, seed), lines):
            out.write(f"{source} {SEPARATOR} {target}\n")


def check_split(split: str) -> None:
    """Refuses a name that is no split."""
    if split not in SPLITS:
        raise SettingError(f"there is no split {split!r}", did_you_mean(split, SPLITS))
