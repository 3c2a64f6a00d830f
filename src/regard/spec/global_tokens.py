"""Tokens chosen by their place in a row: the first ones, or those of a question."""

from __future__ import annotations

from dataclasses import dataclass

from regard.spec.validation import Count, Part, Size


@dataclass(frozen=True)
class FirstTokens(Part):
    """The first tokens of a row: [CLS], where there is one."""

    count: Size = 1


@dataclass(frozen=True)
class QuestionTokens(Part):
    """The tokens of a question, which a separator divides from its context."""

    separator: Count  # id of the token; the first one in a row counts
    answers: bool = False  # instead those behind it and a second separator


# Which tokens are global (Longformer) where a call does not choose them.
GlobalTokens = FirstTokens | QuestionTokens
