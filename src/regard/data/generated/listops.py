"""ListOps as in Long Range Arena (Nangia and Bowman, 2018; Tay et al., 2021), generated.

Nested lists of digits, each with an operation; the value of an expression is a digit. To predict
it, a model must match brackets over hundreds of tokens.

Trees grow as in Long Range Arena: a node is a list with probability ¼ until the depth is reached,
with two to `arguments` children; expressions outside the limits of length are discarded. Splits
have seeds of their own, and no expression comes twice.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from regard.data.generated.generated_task import SPLITS, GeneratedTask, check_split
from regard.system.errors import DataError

LISTS = 0.25  # the probability that a node is a list
DEEPEST = 100  # trees grow by recursion
MOST_DISCARDED = 2_000_000  # tokens of trees before one fits: 1,500 by the values below


def _median(values: Sequence[int]) -> int:
    """Of an even number, the mean of the middle two, rounded down."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    # sum modulo 10
    "[SM": lambda values: sum(values) % 10,
}
NAMES = tuple(OPERATIONS)


@dataclass(frozen=True)
class Shape:
    """Limits of expressions, which have more than `least` tokens and fewer than `most`."""

    # Long Range Arena's values.
    least: int = 500
    most: int = 2000
    depth: int = 10
    arguments: int = 10  # of a list, at most

    def __post_init__(self) -> None:
        if self.arguments < 2:
            raise DataError(f"lists of {self.arguments} arguments", "give at least 2")
        if self.depth > DEEPEST:
            raise DataError(f"a depth of {self.depth}", f"give at most {DEEPEST}")
        longest = 1  # tokens of a digit; a list has two more than its arguments
        for _ in range(self.depth - 1):
            longest = min(2 + self.arguments * longest, self.most)
        if not self.least + 1 < longest:
            raise DataError(
                f"no expression of depth {self.depth} and {self.arguments} arguments "
                f"has more than {self.least} and fewer than {self.most} tokens",
                "lower the least, or raise one of the others",
            )


def expressions(split: str, seed: int = 0, shape: Shape | None = None) -> Iterator[tuple[str, int]]:
    """An endless stream of expressions (tokens with spaces between) and their values."""
    check_split(split)
    shape = shape or Shape()
    if split == "longer":
        shape = replace(shape, least=shape.most - 1, most=2 * shape.most - 1)
    rng = random.Random(f"listops {seed} {SPLITS.index(split)}")
    digests: set[bytes] = set()  # of earlier expressions: shorter than the texts
    discarded = 0  # tokens since the last expression
    while True:
        if discarded > MOST_DISCARDED:
            raise DataError(
                f"random trees of depth {shape.depth} and up to {shape.arguments} arguments hardly "
                f"ever have more than {shape.least} and fewer than {shape.most} tokens",
                "lower the least length, or come nearer to depth 10 and 10 arguments",
            )
        tokens: list[str] = []
        value = _grow(rng, shape, 1, tokens)
        discarded += len(tokens)
        if value is None or not shape.least < len(tokens) < shape.most:
            continue
        text = " ".join(tokens)
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        if digest not in digests:
            digests.add(digest)
            discarded = 0
            yield text, value


def _grow(rng: random.Random, shape: Shape, depth: int, tokens: list[str]) -> int | None:
    """The value of a random node, whose tokens are appended; None once there are too many."""
    if depth >= shape.depth or rng.random() > LISTS:
        digit = int(rng.random() * 10)
        tokens.append(str(digit))
        return digit
    name = NAMES[int(rng.random() * len(NAMES))]
    tokens.append(name)
    values = []
    for _ in range(rng.randint(2, shape.arguments)):
        value = _grow(rng, shape, depth + 1, tokens)
        if value is None or len(tokens) >= shape.most:
            return None
        values.append(value)
    tokens.append("]")
    return OPERATIONS[name](values)


def evaluate(text: str) -> int:
    """The value of an expression, by its text alone."""
    stack: list[tuple[str, list[int]]] = []  # open lists: operation, values so far
    for token in text.split():
        if token in OPERATIONS:
            stack.append((token, []))
            continue
        if token == "]":
            operation, values = stack.pop()
            value = OPERATIONS[operation](values)
        else:
            value = int(token)
        if not stack:
            return value
        stack[-1][1].append(value)
    raise ValueError(f"brackets are open: {text}")


@dataclass(frozen=True)
class ListOps(GeneratedTask):
    """ListOps: the value of nested lists of digits.

    A length is the number of tokens.
    """

    # Long Range Arena's values: more than 500 tokens and fewer than 2,000.
    min_length: int = 501
    max_length: int = 1999
    depth: int = 10
    arguments: int = 10

    kind = "classify"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shape()  # refuses lengths that no expression has

    def shape(self) -> Shape:
        return Shape(self.min_length - 1, self.max_length + 1, self.depth, self.arguments)

    def examples(self, split: str, seed: int = 0) -> Iterator[tuple[str, str]]:
        for text, value in expressions(split, seed, self.shape()):
            yield text, str(value)
