"""ListOps as in Long Range Arena (Nangia and Bowman 2018, Tay et al. 2021): nested lists of digits, each with an operation,
whose value is a digit. To know it, a model must follow brackets over hundreds of places.

The same tree as there is grown: a place is a list with probability ¼ until the depth is reached, of two to `arguments`
parts; what is not between the lengths is thrown away. Splits are seeded apart, and no expression comes twice.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from regard.errors import DataError

LISTS = 0.25  # the probability that a part is a list
SPLITS = ("train", "valid", "test")


def _median(values: Sequence[int]) -> int:
    """Of an even number, the mean of the middle two, rounded down."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
}
NAMES = tuple(OPERATIONS)


@dataclass(frozen=True)
class Shape:
    """Expressions have more than `least` tokens and fewer than `most`."""

    least: int = 500
    most: int = 2000
    depth: int = 10
    arguments: int = 10

    def __post_init__(self) -> None:
        longest = 1
        for _ in range(self.depth - 1):
            longest = min(2 + self.arguments * longest, self.most)
        if not self.least + 1 < longest:
            raise DataError(
                f"no expression of depth {self.depth} and {self.arguments} arguments has more than {self.least} and fewer "
                f"than {self.most} tokens",
                "lower the least, or raise one of the others",
            )


def expressions(split: str, seed: int = 0, shape: Shape | None = None) -> Iterator[tuple[str, int]]:
    """Expressions, tokens with spaces between, and their values, without end."""
    chosen = shape or Shape()
    chance = random.Random(f"listops {seed} {SPLITS.index(split)}")
    seen: set[bytes] = set()
    while True:
        tokens: list[str] = []
        value = _grown(chance, chosen, 1, tokens)
        if value is None or not chosen.least < len(tokens) < chosen.most:
            continue
        text = " ".join(tokens)
        mark = hashlib.blake2b(text.encode(), digest_size=8).digest()
        if mark not in seen:
            seen.add(mark)
            yield text, value


def _grown(chance: random.Random, shape: Shape, depth: int, tokens: list[str]) -> int | None:
    """The value of a part, whose tokens are added; None once there are too many."""
    if depth >= shape.depth or chance.random() > LISTS:
        digit = int(chance.random() * 10)
        tokens.append(str(digit))
        return digit
    name = NAMES[int(chance.random() * len(NAMES))]
    tokens.append(name)
    values = []
    for _ in range(chance.randint(2, shape.arguments)):
        value = _grown(chance, shape, depth + 1, tokens)
        if value is None or len(tokens) >= shape.most:
            return None
        values.append(value)
    tokens.append("]")
    return OPERATIONS[name](values)


def evaluate(text: str) -> int:
    """The value of an expression, by its text alone."""
    stack: list[tuple[str, list[int]]] = []
    for token in text.split():
        if token in OPERATIONS:
            stack.append((token, []))
            continue
        value = int(token) if token != "]" else OPERATIONS[stack[-1][0]](stack.pop()[1])
        if not stack:
            return value
        stack[-1][1].append(value)
    raise ValueError(f"brackets are open: {text}")


def write_tsv(
    out: IO[str], split: str, lines: int, *, seed: int = 0, shape: Shape | None = None
) -> None:
    """Text, tab, label: what `data/labelled` reads."""
    for _, (text, value) in zip(range(lines), expressions(split, seed, shape), strict=False):
        out.write(f"{text}\t{value}\n")
