"""Head roles: which heads look where a grammar says that one word belongs to another."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from regard.core.probe import Probe
from regard.data.builtin import Sentence
from regard.data.builtin import sentences as stream
from regard.errors import DataError, SettingError, did_you_mean
from regard.look import drawing, terminal
from regard.look.recording import array
from regard.look.result import Array, Result
from regard.look.target import Holds, Subject, at_rest, hidden, stacks, subject_of
from regard.look.target import batch as batched
from regard.model import EncoderDecoder

PLACES = ("previous token", "next token", "first token")


@dataclass(frozen=True)
class Roles(Result):
    """For each role the mean attention that each head gives to the word the role points to, and what a head that looks at
    everything alike would give (`chance`). `best` is the strongest head of each role."""

    names: tuple[str, ...]
    roles: tuple[str, ...]
    scores: Array  # [roles, attentions, heads]
    chance: tuple[float, ...]
    links: tuple[int, ...]  # how many were seen
    best: dict[str, tuple[str, int]]

    note = "Mean attention from the first word to the second, over all such pairs of the sentences; ÷ chance in brackets."

    @property
    def title(self) -> str:
        return "head roles against known structure"

    def numpy(self) -> Array:
        return self.scores

    def scene(self) -> drawing.Scene:
        heads = [f"{name} {head}" for name in self.names for head in range(self.scores.shape[2])]
        return drawing.heat(
            self.scores.reshape(len(self.roles), -1), self.roles, heads, title=self.title, most=1.0
        )

    def lines(self, width: int = 100) -> list[str]:
        rows = [["role", "strongest head", "attention", "chance", "pairs"]]
        for i, role in enumerate(self.roles):
            name, head = self.best[role]
            score = self.scores[i].max()
            many = f"{score:.2f} ({score / max(self.chance[i], 1e-9):.1f}×)"
            rows.append([role, f"{name} {head}", many, f"{self.chance[i]:.2f}", str(self.links[i])])
        return terminal.table(rows, width=width)


def roles(
    held: Subject | Holds,
    sentences: Sequence[Sentence] | None = None,
    *,
    stack: str | None = None,
    size: int = 64,
) -> Roles:
    """The self-attention of a stack, the first unless said, on sentences whose parse is known: of the built-in language, 100
    of its test split and 100 with pronouns, unless given. `size` sentences are run at a time."""
    subject = subject_of(held)
    known = stacks(subject.model)
    name = stack or next(iter(known))
    if name not in known:
        raise SettingError(f"this model has no stack {name!r}", did_you_mean(name, known))
    if isinstance(subject.model, EncoderDecoder) and name == "decoder":
        raise SettingError("the grammar parses the source, not the target", "ask for the encoder")
    if sentences is None:
        sentences = [s for p in (False, True) for s in islice(stream("test", pronouns=p), 100)]
    if not sentences:
        raise DataError("there are no sentences to score heads on", "give some, or leave them out")
    names = [f"{name}.{inner}" for inner in known[name].attentions() if inner.endswith(".self")]
    if not names:
        raise SettingError(
            f"the {name} of this model does not look at itself", "roles are of self-attention"
        )
    tally = _Tally(names)
    for first in range(0, len(sentences), size):
        _count(subject, sentences[first : first + size], tally)
    return tally.result()


class _Tally:
    """Attention to where roles point, and what evenness would give, summed over pairs of words."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.sums: dict[str, Array] = {}
        self.chance: dict[str, float] = {}
        self.pairs: dict[str, int] = {}

    def add(self, role: str, given: Array, even: float, pairs: int) -> None:
        """given [attentions, heads]"""
        self.sums[role] = self.sums.get(role, 0.0) + given
        self.chance[role] = self.chance.get(role, 0.0) + even
        self.pairs[role] = self.pairs.get(role, 0) + pairs

    def result(self) -> Roles:
        order = (*PLACES, *sorted(role for role in self.sums if role not in PLACES))
        kept = [role for role in order if self.pairs.get(role)]
        scores = np.stack([self.sums[role] / self.pairs[role] for role in kept])
        places = [np.unravel_index(int(score.argmax()), score.shape) for score in scores]
        best = {
            role: (self.names[int(i)], int(head))
            for role, (i, head) in zip(kept, places, strict=True)
        }
        chance = tuple(self.chance[role] / self.pairs[role] for role in kept)
        return Roles(
            self.names, tuple(kept), scores, chance, tuple(self.pairs[role] for role in kept), best
        )


def _count(subject: Subject, sentences: Sequence[Sentence], tally: _Tally) -> None:
    data = batched(subject, [s.source for s in sentences], [s.target for s in sentences])
    probe = Probe(tally.names)
    with at_rest(subject.model):
        hidden(subject.model, data.inputs, data.outputs, data.padding_mask, probe)
    weights = [probe.weights(name) for name in tally.names]  # [B, H, T, T] each
    every = torch.arange(data.inputs.shape[1], device=data.inputs.device)
    mask = probe.attentions[tally.names[0]].visible(every).any(dim=1, keepdim=True)
    mask = mask.expand(len(sentences), 1, len(every), len(every))[:, 0]
    seen = array(mask.sum(dim=-1))  # [B, T]
    lengths = data.padding_mask.sum(dim=1).tolist()
    for role, spots in _pointed(subject, sentences, lengths).items():
        rows, queries, keys, shares, pairs = spots
        if not pairs:
            continue
        index = torch.tensor([rows, queries, keys], dtype=torch.long, device=every.device)
        share = torch.tensor(shares, device=every.device)
        picked = [
            (w[index[0], :, index[1], index[2]] * share[:, None].to(w.dtype)).sum(dim=0)
            for w in weights
        ]
        even = float((np.array(shares) / np.maximum(seen[rows, queries], 1)).sum())
        tally.add(role, np.stack([array(p.double()) for p in picked]), even, pairs)


Spots = tuple[list[int], list[int], list[int], list[float], int]


def _pointed(
    subject: Subject, sentences: Sequence[Sentence], lengths: Sequence[int]
) -> dict[str, Spots]:
    """For each role: sentences, queries, keys and the share with which each weight counts, and how many pairs of words."""
    found: dict[str, Spots] = {}

    def point(role: str, row: int, queries: Iterable[int], keys: Sequence[int]) -> None:
        rows, starts, ends, shares, pairs = found.get(role, ([], [], [], [], 0))
        queries = list(queries)
        for query in (
            queries
        ):  # from a word: the mean over its tokens; to a word: their sum (Clark et al. 2019)
            for key in keys:
                rows.append(row)
                starts.append(query)
                ends.append(key)
                shares.append(1 / len(queries))
        found[role] = (rows, starts, ends, shares, pairs + 1)

    for row, (sentence, length) in enumerate(zip(sentences, lengths, strict=True)):
        for i in range(length):
            if i > 0:
                point("previous token", row, [i], [i - 1])
                point("first token", row, [i], [0])
            if i + 1 < length:
                point("next token", row, [i], [i + 1])
        words = word_tokens(subject, sentence.source)
        for link in sentence.links:
            one, other = words.get(link.start, []), words.get(link.end, [])
            if one and other:
                first, second = link.kind.split("-")
                point(f"{first}→{second}", row, one, other)
                point(f"{second}→{first}", row, other, one)
    return found


def word_tokens(subject: Subject, text: str) -> dict[int, list[int]]:
    """The places of the tokens of each word of `text.split()`, without its punctuation."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    words = subject.reads
    found: dict[int, list[int]] = {}
    tokens = zip(words.spans(text), words.tokens(words.ids(text)), strict=True)
    for place, ((start, end), token) in enumerate(tokens):
        if end > start and any(letter.isalnum() for letter in token):
            found.setdefault(max(0, bisect_left(starts, end) - 1), []).append(place)
    return found
