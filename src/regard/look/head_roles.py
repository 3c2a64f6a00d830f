"""Head roles: heads that attend to the next or previous token, or along grammatical relations."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import Probe
from regard.data.generated import builtin
from regard.data.generated.builtin import Sentence
from regard.look import drawing
from regard.look.forward import evaluation_mode, hidden_states
from regard.look.inspectable import Inspectable
from regard.look.model_inputs import batch
from regard.look.probe_names import Head
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array, Names
from regard.look.views import other_views, viewed_stack
from regard.system.arguments import whole_number
from regard.system.errors import DataError, SettingError

POSITIONAL = ("previous token", "next token", "first token")


@dataclass(frozen=True)
class Roles(AnalysisResult):
    """The mean attention of each head to the word that a role points to.

    `chance` is what uniform attention would give, `best` the strongest head of each role.
    """

    names: Names
    roles: Names
    scores: Array  # [roles, attentions, heads]
    chance: tuple[float, ...]
    links: tuple[int, ...]  # how many pairs of words each role was scored on
    best: dict[str, Head]

    note = (
        "Mean attention from the first word to the second, over all such pairs of the sentences; "
        "÷ chance in brackets."
    )
    title = "head roles, scored on parsed sentences"
    numbers = "scores"

    def scene(self) -> drawing.Scene:
        heads = [f"{name} {head}" for name in self.names for head in range(self.scores.shape[2])]
        scores = self.scores.reshape(len(self.roles), -1)
        return drawing.heat(scores, self.roles, heads, title=self.title, most=1.0)

    def table(self) -> list[list[str]]:
        rows = [["role", "strongest head", "attention", "chance", "pairs"]]
        for i, role in enumerate(self.roles):
            name, head = self.best[role]
            score = self.scores[i].max()
            attention = f"{score:.2f} ({score / max(self.chance[i], 1e-9):.1f}×)"
            chance = f"{self.chance[i]:.2f}"
            rows.append([role, f"{name} {head}", attention, chance, str(self.links[i])])
        return rows


def roles(
    model: Inspectable,
    sentences: Sequence[Sentence] | None = None,
    *,
    stack: str | None = None,
    size: int = 64,
) -> Roles:
    """The roles of the self-attention heads of a stack, by default the first one.

    They are scored on sentences whose parse is known: by default 100 of the built-in language's
    test split and 100 with pronouns. `size` sentences make a batch.
    """
    core = model.model
    whole_number("size", size, least=1)
    stack = viewed_stack(model, "roles", stack)
    # Links of the grammar are between words of the source.
    if core.reads_target and stack == "decoder":
        raise SettingError(
            "head roles need parsed sentences, and only the source is parsed", "set stack='encoder'"
        )
    if sentences is None:
        plain = islice(builtin.sentences("test", pronouns=False), 100)
        ambiguous = islice(builtin.sentences("test", pronouns=True), 100)
        sentences = [*plain, *ambiguous]
    if not sentences:
        raise DataError("the list of sentences is empty", "add some, or remove the argument")
    attentions = core.stacks()[stack].attentions()
    names = [f"{stack}.{name}" for name in attentions if name.endswith(".self")]
    if not names:
        raise SettingError(f"the {stack} of this model has no self-attention", other_views(model))
    tally = _Tally(names)
    for first in range(0, len(sentences), size):
        _count(model, sentences[first : first + size], tally)
    return tally.result()


class _Tally:
    """Sums over pairs of words: attention along each role, and that of uniform attention."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.attention: dict[str, Any] = defaultdict(float)  # [attentions, heads] each
        self.chance: dict[str, float] = defaultdict(float)
        self.pairs: dict[str, int] = defaultdict(int)

    def result(self) -> Roles:
        grammatical = sorted({*self.attention}.difference(POSITIONAL))
        names = [role for role in (*POSITIONAL, *grammatical) if self.pairs.get(role)]
        scores = np.stack([self.attention[role] / self.pairs[role] for role in names])
        best: dict[str, Head] = {}
        for role, score in zip(names, scores, strict=True):
            attention, head = divmod(int(score.argmax()), score.shape[1])
            best[role] = (self.names[attention], head)
        chance = tuple(self.chance[role] / self.pairs[role] for role in names)
        pairs = tuple(self.pairs[role] for role in names)
        return Roles(self.names, tuple(names), scores, chance, pairs, best)


def _count(model: Inspectable, sentences: Sequence[Sentence], tally: _Tally) -> None:
    """Adds one batch of sentences to the tally.

    From a word of several tokens the mean over them counts, to such a word the sum (Clark et al.
    2019).
    """
    core = model.model
    targets = None
    if core.reads_target:
        targets = [sentence.target for sentence in sentences]
    data = batch(model, [sentence.source for sentence in sentences], targets)
    probe = Probe(tally.names)
    with evaluation_mode(core):
        hidden_states(core, data.named, probe)
    # Of each role, how much each weight counts: [B, T, T].
    shape = (*data.padding_mask.shape, data.padding_mask.shape[1])
    factors: dict[str, Array] = defaultdict(lambda: np.zeros(shape))
    lengths = data.padding_mask.sum(dim=1).tolist()
    for number, (sentence, length) in enumerate(zip(sentences, lengths, strict=True)):
        for role, queries, keys in _links(model, sentence, length):
            tally.pairs[role] += 1
            factors[role][number][np.ix_(queries, keys)] += 1 / len(queries)
    # Batches are small enough for all weights at once.
    weights = [probe.weights(name) for name in tally.names]  # [B, H, T, T] each
    visible = _visible_keys(probe, tally.names[0], len(sentences))  # [B, T]
    for role, of_role in factors.items():
        shares = torch.from_numpy(of_role).to(visible.device)
        sums = [torch.einsum("bhqk,bqk->h", one.double(), shares) for one in weights]
        tally.attention[role] += array(torch.stack(sums))
        # Uniform attention gives each visible key the same weight.
        tally.chance[role] += (shares.sum(dim=-1) / visible.clamp_min(1)).sum().item()


def _visible_keys(probe: Probe, name: str, batch_size: int) -> Tensor:
    """[B, T]: how many keys each query may attend to, in at least one head."""
    call = probe.attentions[name]
    length = call.q.shape[2]
    every = torch.arange(length, device=call.q.device)
    mask = call.visible(every).any(dim=1)  # [B or 1, T, T]
    return mask.expand(batch_size, length, length).sum(dim=-1)


def _links(
    model: Inspectable, sentence: Sentence, length: int
) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
    """The roles in one sentence, each with the positions of its queries and of its keys."""
    for i in range(length):
        if i > 0:
            yield "previous token", [i], [i - 1]
            yield "first token", [i], [0]
        if i + 1 < length:
            yield "next token", [i], [i + 1]
    words = word_positions(model, sentence.source)
    for link in sentence.links:
        start = words.get(link.start, [])
        end = words.get(link.end, [])
        if start and end:
            first, second = link.kind.split("-")  # "subject-verb"
            yield f"{first}→{second}", start, end
            yield f"{second}→{first}", end, start


def word_positions(model: Inspectable, text: str) -> dict[int, list[int]]:
    """The positions of the tokens of each word of `text.split()`, without its punctuation."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    tokenizer = model.input_tokenizer
    tokens = tokenizer.tokens(tokenizer.input_ids(text))
    positions: dict[int, list[int]] = {}
    spans = zip(tokenizer.input_offsets(text), tokens, strict=True)
    for position, ((start, end), token) in enumerate(spans):
        special = end <= start
        if not special and any(map(str.isalnum, token)):
            # A token may begin with the space before its word: only its end is surely in it.
            word = max(0, bisect_left(starts, end) - 1)
            positions.setdefault(word, []).append(position)
    return positions
