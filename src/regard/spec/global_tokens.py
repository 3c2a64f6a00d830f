"""Tokens chosen by their place in a row: the first ones, or those of a question."""

from __future__ import annotations

from dataclasses import dataclass

from regard.spec.validation import sizes


@dataclass(frozen=True)
class FirstTokens:
    """The first tokens of a row: [CLS], where there is one."""

    count: int = 1

    def __post_init__(self) -> None:
        sizes(self, "count")


@dataclass(frozen=True)
class QuestionTokens:
    """The tokens of a question, which a separator divides from its context."""

    separator: int  # id of the token; the first one in a row counts


# Which tokens are global (Longformer) where a call does not choose them.
GlobalTokens = FirstTokens | QuestionTokens
