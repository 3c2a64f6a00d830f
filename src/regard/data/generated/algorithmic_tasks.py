"""Algorithmic tasks that tell models apart: copying, sorting, addition, parity and others.

An example is a function of split, seed and its number, so that a stream can begin anywhere. Which
of train, valid and test an input belongs to follows from its hash: splits never share one, however
many examples are drawn and whatever the seeds. Lengths of which there are few inputs are for
training only.
"""

from __future__ import annotations

import hashlib
import math
import random
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from statistics import median_high, median_low
from typing import IO, ClassVar, Literal

from regard.data.generated import molecules
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

    # "pairs": input and target sequence; "classify": text and label; "texts": no target
    kind: ClassVar[Literal["pairs", "classify", "texts"]] = "pairs"

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
    """Writes that many examples, one a line: as TSV, which readers of pairs and classes take; texts
    stand alone."""
    for source, target in islice(examples, lines):
        out.write(f"{source}{separator if target else ''}{target}\n")


def digest(text: str) -> int:
    """A hash of the text that is the same on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def check_split(split: str) -> None:
    """Refuses a name that is no split."""
    if split not in SPLITS:
        raise SettingError(f"there is no split {split!r}", did_you_mean(split, SPLITS))


LISTS = 0.25  # the probability that a node is a list
MOST_DISCARDED = 2_000_000  # tokens of trees before one fits: 1,500 by the values below


OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    # of an even number, the mean of the middle two, rounded down
    "[MED": lambda values: (median_low(values) + median_high(values)) // 2,
    # sum modulo 10
    "[SM": lambda values: sum(values) % 10,
}
NAMES = tuple(OPERATIONS)


@dataclass(frozen=True)
class ListOps(GeneratedTask):
    """ListOps: the value of nested lists of digits.

    A length is the number of tokens.
    """

    # Long Range Arena's values: more than 500 tokens and fewer than 2,000.
    min_length: int = 501
    max_length: int = 1999
    depth: int = 10
    arguments: int = 10  # of a list, at most

    kind = "classify"

    def examples(self, split: str, seed: int = 0) -> Iterator[tuple[str, str]]:
        """An endless stream of expressions (tokens with spaces between) and their values."""
        check_split(split)
        task = self
        if split == "longer":
            task = replace(self, min_length=self.max_length + 1, max_length=2 * self.max_length)
        rng = random.Random(f"listops {seed} {SPLITS.index(split)}")
        digests: set[int] = set()  # of earlier expressions: shorter than the texts
        discarded = 0  # tokens since the last expression
        while True:
            if discarded > MOST_DISCARDED:
                raise DataError(
                    f"random trees of depth {self.depth} and up to {self.arguments} arguments "
                    f"hardly ever have {task.min_length} to {task.max_length} tokens",
                    "lower the least length, or come nearer to depth 10 and 10 arguments",
                )
            tokens: list[str] = []
            value = _grow(rng, task, 1, tokens)
            discarded += len(tokens)
            if value is None or not task.min_length <= len(tokens) <= task.max_length:
                continue
            text = " ".join(tokens)
            key = digest(text)
            if key not in digests:
                digests.add(key)
                discarded = 0
                yield text, str(value)


def _grow(rng: random.Random, task: ListOps, depth: int, tokens: list[str]) -> int | None:
    """The value of a random node, whose tokens are appended; None once there are too many."""
    if depth >= task.depth or rng.random() > LISTS:
        digit = int(rng.random() * 10)
        tokens.append(str(digit))
        return digit
    name = NAMES[int(rng.random() * len(NAMES))]
    tokens.append(name)
    values = []
    for _ in range(rng.randint(2, task.arguments)):
        value = _grow(rng, task, depth + 1, tokens)
        if value is None or len(tokens) > task.max_length:
            return None
        values.append(value)
    tokens.append("]")
    return OPERATIONS[name](values)


LETTERS = tuple(string.ascii_lowercase)
NUMBERS = tuple(str(number) for number in range(100))
KEYS = tuple(f"k{number}" for number in range(100))
VALUES = tuple(f"v{number}" for number in range(100))
BRACKETS = {"(": ")", "[": "]"}

# With fewer inputs of a length than this, a tenth of them would be no fair sample.
FEWEST_INPUTS = 1000


@dataclass(frozen=True)
class AlgorithmicTask(GeneratedTask):
    """A task with inputs of any length and a rule for their target."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input_count(self.max_length) < FEWEST_INPUTS:
            raise DataError(
                f"too few inputs have a length of {self.max_length} to divide them into splits",
                f"give a length of which there are {FEWEST_INPUTS}",
            )

    @abstractmethod
    def input_count(self, length: int) -> int:
        """The number of different inputs of this length, or fewer."""

    @abstractmethod
    def generate(self, rng: random.Random, length: int) -> tuple[str, str]:
        """A random example of this length."""

    def examples(self, split: str, seed: int = 0) -> Iterator[tuple[str, str]]:
        for index in count():
            yield self.example(split, index, seed)

    def example(self, split: str, index: int, seed: int = 0) -> tuple[str, str]:
        """The example of this number in the stream of a split."""
        check_split(split)
        # A string as the seed: Python hashes it with SHA-512, the same in every process.
        rng = random.Random(f"{type(self).__name__} {seed} {split} {index}")
        length = rng.choice(self.lengths(split))
        while True:
            source, target = self.generate(rng, length)
            if split == "longer" or self.split_of_input(source, length) == split:
                return source, target

    def lengths(self, split: str) -> range:
        """The lengths that occur in a split, one as often as another."""
        if split == "longer":
            return range(self.max_length + 1, 2 * self.max_length + 1)
        shortest = self.min_length
        while split != "train" and self.input_count(shortest) < FEWEST_INPUTS:
            shortest += 1
        return range(shortest, self.max_length + 1)

    def split_of_input(self, source: str, length: int) -> str:
        """The split that an input belongs to, by its hash: 80 % train, 10 % valid, 10 % test."""
        if self.input_count(length) < FEWEST_INPUTS:
            return "train"
        return {0: "valid", 1: "test"}.get(digest(source) % 10, "train")


# --- sequences to sequences ---


@dataclass(frozen=True)
class SymbolTask(AlgorithmicTask):
    """A task on symbols, each as likely as another; a length is their number."""

    symbols: ClassVar[Sequence[str]] = LETTERS

    @abstractmethod
    def answer(self, symbols: list[str]) -> str:
        """The target of an input."""

    def input_count(self, length: int) -> int:
        return len(self.symbols) ** length

    def generate(self, rng: random.Random, length: int) -> tuple[str, str]:
        symbols = rng.choices(self.symbols, k=length)
        return " ".join(symbols), self.answer(symbols)


@dataclass(frozen=True)
class Copying(SymbolTask):
    """Copying of letters.

    A length is the number of letters.
    """

    def answer(self, symbols: list[str]) -> str:
        return " ".join(symbols)


@dataclass(frozen=True)
class Reversing(SymbolTask):
    """Reversing of letters.

    A length is the number of letters.
    """

    def answer(self, symbols: list[str]) -> str:
        return " ".join(reversed(symbols))


@dataclass(frozen=True)
class Sorting(SymbolTask):
    """Sorting of numbers from 0 to 99.

    A length is the number of numbers.
    """

    symbols = NUMBERS

    def answer(self, symbols: list[str]) -> str:
        return " ".join(sorted(symbols, key=int))


@dataclass(frozen=True)
class Addition(AlgorithmicTask):
    """Addition of two numbers, digit by digit.

    A length is the number of digits of the longer one.
    """

    max_length: int = 10

    def input_count(self, length: int) -> int:
        numbers = 9 * 10 ** (length - 1)  # without leading zeros
        return numbers**2  # both of this length

    def generate(self, rng: random.Random, length: int) -> tuple[str, str]:
        terms = [_number(rng, length), _number(rng, rng.randint(1, length))]
        rng.shuffle(terms)
        first, second = terms
        total = first + second
        return f"{_digits(first)} + {_digits(second)}", _digits(total)


@dataclass(frozen=True)
class AssociativeRecall(AlgorithmicTask):
    """Associative recall of the value of a key.

    Pairs of keys and values, then one of the keys (Ba et al., 2016, section 4.1). A length is the
    number of pairs. No key has two values.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(KEYS) // 2  # twice as many are in the split `longer`
        if self.max_length > most:
            raise DataError(
                f"{self.max_length} pairs, but there are {len(KEYS)} keys",
                f"give a length of {most} or less",
            )

    def input_count(self, length: int) -> int:
        return math.perm(len(KEYS), length) * len(VALUES) ** length * length

    def generate(self, rng: random.Random, length: int) -> tuple[str, str]:
        memory = dict(zip(rng.sample(KEYS, length), rng.choices(VALUES, k=length), strict=True))
        pairs = " ".join(f"{key} {value}" for key, value in memory.items())
        query = rng.choice(list(memory))
        return f"{pairs} ? {query}", memory[query]


# --- classes ---


@dataclass(frozen=True)
class Parity(SymbolTask):
    """Parity: is the number of ones even?

    A length is the number of bits.
    """

    max_length: int = 40

    kind = "classify"
    symbols = "01"

    def answer(self, symbols: list[str]) -> str:
        return ("even", "odd")[symbols.count("1") % 2]


@dataclass(frozen=True)
class Dyck(AlgorithmicTask):
    """Dyck words: are two kinds of brackets balanced?

    A length is half the number of brackets. Half of the words are balanced; the others are nearly
    so, with one bracket replaced or two exchanged, so that counting brackets does not suffice.
    """

    kind = "classify"

    def input_count(self, length: int) -> int:
        catalan = math.comb(2 * length, length) // (length + 1)
        return catalan * len(BRACKETS) ** length  # the balanced ones

    def generate(self, rng: random.Random, length: int) -> tuple[str, str]:
        word = _balanced_word(rng, length)
        if rng.random() < 0.5:
            return " ".join(word), "balanced"
        while is_balanced(word):
            # A bracket is replaced, or two of them exchanged.
            if rng.random() < 0.5:
                word[rng.randrange(len(word))] = rng.choice([*BRACKETS, *BRACKETS.values()])
            else:
                i, j = rng.sample(range(len(word)), 2)
                word[i], word[j] = word[j], word[i]
        return " ".join(word), "unbalanced"


def is_balanced(word: Sequence[str]) -> bool:
    """Whether each bracket closes the last open one of its kind."""
    closers: list[str] = []  # that open brackets wait for
    for bracket in word:
        if bracket in BRACKETS:
            closers.append(BRACKETS[bracket])
        elif not closers or closers.pop() != bracket:
            return False
    return not closers


def _balanced_word(rng: random.Random, pairs: int) -> list[str]:
    """A random Dyck word, every shape as likely as another (Arnold and Sleep, 1980)."""
    word: list[str] = []
    closers: list[str] = []
    for rest in range(2 * pairs, 0, -1):  # brackets still to come, this one included
        depth = len(closers)
        # The share of the ways to go on from here that begin with an opening bracket.
        opening = (depth + 2) * (rest - depth) / (2 * rest * (depth + 1))
        if rng.random() < opening:
            bracket = rng.choice(list(BRACKETS))
            word.append(bracket)
            closers.append(BRACKETS[bracket])
        else:
            word.append(closers.pop())
    return word


def _number(rng: random.Random, digits: int) -> int:
    """A random number with so many digits; 0 has one."""
    if digits == 1:
        return rng.randrange(10)
    return rng.randrange(10 ** (digits - 1), 10**digits)


def _digits(number: int) -> str:
    return " ".join(str(number))


# Each takes `min_length` and `max_length`.
# --- texts ---


@dataclass(frozen=True)
class Molecules(AlgorithmicTask):
    """Molecules in SMILES, for language models.

    A length is the number of atoms besides hydrogen.
    """

    min_length: int = 4

    kind = "texts"

    def input_count(self, length: int) -> int:
        return 3**length  # carbon, nitrogen and oxygen in a chain

    def generate(self, rng: random.Random, length: int) -> tuple[str, str]:
        return molecules.write(molecules.grown(rng, length), rng), ""


TASKS: dict[str, type[GeneratedTask]] = {
    "copying": Copying,
    "reversing": Reversing,
    "sorting": Sorting,
    "addition": Addition,
    "associative_recall": AssociativeRecall,
    "parity": Parity,
    "dyck": Dyck,
    "listops": ListOps,
    "smiles": Molecules,
}
