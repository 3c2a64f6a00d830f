"""ListOps as in Long Range Arena (Nangia and Bowman, 2018; Tay et al., 2021), generated.

Nested lists of digits, each with an operation; the value of an expression is a digit. To predict
it, a model must match brackets over hundreds of tokens.

Trees grow as in Long Range Arena: a node is a list with probability ¼ until the depth is reached,
with two to `arguments` children; expressions outside the limits of length are discarded. Splits
have seeds of their own, and no expression comes twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from regard.data.generated.generated_task import SPLITS, GeneratedTask, check_split, digest
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arguments < 2:
            raise DataError(f"lists of {self.arguments} arguments", "give at least 2")
        if self.depth > DEEPEST:
            raise DataError(f"a depth of {self.depth}", f"give at most {DEEPEST}")
        longest = 1  # tokens of a digit; a list has two more than its arguments
        for _ in range(self.depth - 1):
            longest = min(2 + self.arguments * longest, self.max_length + 1)
        if self.min_length >= longest:
            raise DataError(
                f"no expression of depth {self.depth} and {self.arguments} arguments "
                f"has {self.min_length} to {self.max_length} tokens",
                "lower the least, or raise one of the others",
            )

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
