"""The head that resolves "it": it looks at what the pronoun stands for.

Two sentences differ in their last adjective, and only it tells which of two nouns is meant. A head
that resolves the pronoun looks at the one noun in the first sentence and at the other in the
second (Vaswani et al. 2017, attention visualizations).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.decoder import Decoder
from regard.dual_encoder import DualEncoder
from regard.look import Look, look
from regard.models import Model

TEXT = "The animal did not cross the street because it was too {}."
# The adjective of each sentence → the noun that it is said of, and the other one.
READINGS = {"tired": ("animal", "street"), "wide": ("street", "animal")}


@dataclass(frozen=True)
class ReferentHead:
    """A head, and the share of its attention on the right noun in each sentence."""

    name: str
    head: int
    texts: tuple[str, ...]
    position: int  # of the token that looks
    token: str
    right: tuple[float, ...]
    wrong: tuple[float, ...]

    @property
    def resolves(self) -> bool:
        """Whether it prefers the right noun in both sentences."""
        return all(r > w for r, w in zip(self.right, self.wrong, strict=True))


def referent_head(model: Model) -> ReferentHead | None:
    """The self-attention head that tells the two readings apart best.

    None for a model without self-attention over text, or whose vocabulary lacks the words.
    """
    core = model.model
    if not model.accepts_text or isinstance(core, DualEncoder):
        return None
    texts = tuple(TEXT.format(adjective) for adjective in READINGS)
    # Weights of all heads, of both sentences.
    runs = [look(model, text) for text in texts]
    stack = "decoder" if isinstance(core, Decoder) else "encoder"
    pattern = re.compile(rf"{stack}\.\d+\.self")
    names = [name for name in runs[0].probe.attentions if pattern.fullmatch(name)]
    positions = [_positions(model, text) for text in texts]
    if not names or any(words is None for words in positions):
        return None
    # Before the adjective is read, nothing can tell the readings apart: a causal model looks
    # back from it.
    query_words = list(READINGS) if isinstance(core, Decoder) else ["it"] * len(texts)
    candidates = [
        candidate
        for name in names
        for candidate in _heads(name, runs, texts, positions, query_words)  # type: ignore[arg-type]
    ]
    return max(candidates, key=_margin)


def _margin(candidate: ReferentHead) -> float:
    """By how much the right noun is preferred, in the sentence where it is preferred least."""
    return min(r - w for r, w in zip(candidate.right, candidate.wrong, strict=True))


def _heads(
    name: str,
    runs: Sequence[Look],
    texts: tuple[str, ...],
    positions: Sequence[dict[str, list[int]]],
    query_words: Sequence[str],
) -> list[ReferentHead]:
    """What each head of one attention looks at from the query words."""
    right = []
    wrong = []
    for run, words, query, nouns in zip(
        runs, positions, query_words, READINGS.values(), strict=True
    ):
        weights = run.weights(name, rows=[words[query][-1]])[:, 0]  # [H, S]
        # A word of several tokens gets the sum of their attention.
        right.append(weights[:, words[nouns[0]]].sum(axis=1))
        wrong.append(weights[:, words[nouns[1]]].sum(axis=1))
    # Where a page pins it: in the first sentence.
    position = positions[0][query_words[0]][-1]
    rights = np.array(right)  # [sentences, H]
    wrongs = np.array(wrong)
    return [
        ReferentHead(
            name,
            head,
            texts,
            position,
            runs[0].source[position],
            tuple(map(float, rights[:, head])),
            tuple(map(float, wrongs[:, head])),
        )
        for head in range(rights.shape[1])
    ]


def _positions(model: Model, text: str) -> dict[str, list[int]] | None:
    """The positions of the tokens of each word; None where one of those needed is unknown."""
    tokenizer = model.input_tokenizer
    unknown = tokenizer.special_token_id("unk")
    ids = tokenizer.input_ids(text)
    offsets = tokenizer.input_offsets(text)
    words: dict[str, list[int]] = {}
    for match in re.finditer(r"\w+", text):
        first, last = match.span()
        words[match.group()] = [
            i for i, (start, end) in enumerate(offsets) if start < last and end > first
        ]
    needed = [position for word in ("animal", "street", "it") for position in words[word]]
    if not all(words[word] for word in ("animal", "street", "it")):
        return None
    # As the unknown token, all three would be one word.
    if unknown is not None and any(ids[position] == unknown for position in needed):
        return None
    return words
