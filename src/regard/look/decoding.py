"""Decoding, watched: candidates step by step, the tree of a beam search, the growth of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from regard.core.cache import KVCache, LayerCache
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.constraints import NEG_INF
from regard.decode.events import BeamStep, TokenStep
from regard.decode.sampling import filtered_distribution
from regard.decode.strategy import BeamSearch, Greedy, Sampling
from regard.errors import SettingError
from regard.look import drawing, terminal
from regard.look.result import Array, Result
from regard.look.target import (
    Head,
    Holds,
    Subject,
    Words,
    at_rest,
    room,
    subject_of,
    translate,
    written,
)
from regard.model import Decoder, EncoderDecoder

# ------------------------------------------------------------------ step by step


@dataclass(frozen=True)
class Candidate:
    """`probability` is the model's, `drawn` what is left of it after temperature and filters."""

    id: int
    token: str
    probability: float
    drawn: float


@dataclass(frozen=True)
class Step:
    token: str
    id: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Steps(Result):
    """Greedy decoding or sampling: at each step the likeliest tokens, and the one that was taken."""

    text: str
    output: str
    steps: tuple[Step, ...]

    note = "The token that was taken, then the likeliest ones with their probability."

    @property
    def title(self) -> str:
        return f"{self.text} → {self.output}"

    def numpy(self) -> Array:
        """[steps, candidates]"""
        most = max((len(step.candidates) for step in self.steps), default=0)
        found = np.zeros((len(self.steps), most))
        for i, step in enumerate(self.steps):
            found[i, : len(step.candidates)] = [
                candidate.probability for candidate in step.candidates
            ]
        return found

    def scene(self) -> drawing.Scene:
        values = self.numpy()
        inside = [[drawing.shown(c.token) for c in step.candidates] for step in self.steps]
        inside = [[*row, *[""] * (values.shape[1] - len(row))] for row in inside]
        columns = [str(i + 1) for i in range(values.shape[1])]
        rows = [f"{i}. {drawing.shown(step.token)}" for i, step in enumerate(self.steps)]
        return drawing.heat(values, rows, columns, title=self.title, most=1.0, inside=inside)

    def lines(self, width: int = 100) -> list[str]:
        rows = [
            [
                str(i),
                drawing.shown(step.token),
                *(f"{drawing.shown(c.token)} {c.probability:.2f}" for c in step.candidates),
            ]
            for i, step in enumerate(self.steps)
        ]
        return terminal.table(rows, width=width)


def steps(
    held: Subject | Holds,
    text: str | Tensor,
    strategy: Greedy | Sampling | DecodingSettings | None = None,
    *,
    top: int = 5,
    off: Sequence[Head] = (),
) -> Steps:
    """What could be written at each step and what was, greedily unless said."""
    subject = subject_of(held)
    settings = (
        strategy
        if isinstance(strategy, DecodingSettings)
        else DecodingSettings(strategy or Greedy())
    )
    found: list[Step] = []

    def watch(seen: BeamStep | TokenStep) -> None:
        if not isinstance(seen, TokenStep):
            raise SettingError(
                "a beam search has no single step to show", "ask for its tree, or decode greedily"
            )
        found.append(_step(seen, settings.strategy, subject.writes, top))

    best = translate(subject, _one(text), settings, off=off, watch=watch)[0]
    return Steps(_named(text), written(subject, best), tuple(found))


def _one(text: str | Tensor) -> str | Tensor:
    """Without the batch of 1 that other inputs than text come in."""
    return text if isinstance(text, str) else text[0]


def _named(text: str | Tensor) -> str:
    return text if isinstance(text, str) else ""


def _step(seen: TokenStep, strategy: Any, words: Words, top: int) -> Step:
    logits = seen.logits[:1]
    own = logits.softmax(dim=-1)[0]
    drawn = torch.zeros_like(own, dtype=torch.float64)
    if isinstance(strategy, Sampling):
        probabilities, tokens = filtered_distribution(logits, strategy)
        drawn[tokens[0]] = probabilities[0]
    else:
        drawn[seen.tokens[0]] = 1.0
    ids = own.topk(min(top, len(own))).indices.tolist()
    chosen = int(seen.tokens[0])
    ids += [chosen] if chosen not in ids else []
    names = words.tokens(ids)
    candidates = tuple(
        Candidate(i, name, own[i].item(), drawn[i].item())
        for i, name in zip(ids, names, strict=True)
        if own[i] > 0
    )
    return Step(words.tokens([chosen])[0], chosen, candidates)


# ------------------------------------------------------------------ the tree of a beam search

Fate = Literal["open", "finished", "pruned", "left", "best"]


@dataclass
class Node:
    """One beginning: its last token, the log-probability of all of it, and what became of it.

    `open`: it was continued; `finished`: it ended and was scored; `pruned`: others were better; `left`: the search was
    decided before its turn; `best`: on the way to the answer.
    """

    parent: int
    step: int
    id: int
    token: str
    log_probability: float
    fate: Fate
    score: float | None = None


@dataclass(frozen=True)
class BeamTree(Result):
    """Every beginning that a beam search held or turned down. `nodes[0]` is the empty one; parents come before children."""

    text: str
    output: str
    width: int
    nodes: tuple[Node, ...]
    answer: int  # the node that the answer ends in

    note = "Bold: the answer. Faint: turned down. ● ended and was scored. Numbers are log-probabilities of the whole beginning."

    @property
    def title(self) -> str:
        return f"beam of {self.width}: {self.text} → {self.output}"

    def path(self, node: int) -> list[int]:
        """The tokens of a beginning."""
        found: list[int] = []
        while node > 0:
            found.append(self.nodes[node].id)
            node = self.nodes[node].parent
        return found[::-1]

    def numpy(self) -> Array:
        """[nodes, 4]: parent, step, token id, log-probability."""
        return np.array([[n.parent, n.step, n.id, n.log_probability] for n in self.nodes])

    def scene(self) -> drawing.Scene:
        """Steps go right, each leaf has a line of its own."""
        rows = self._rows()
        column = (
            max((len(drawing.shown(node.token)) for node in self.nodes), default=4) * drawing.WIDTH
            + 62
        )
        marks: list[drawing.Mark] = [drawing.Text(0, 14, self.title, strong=True)]
        for i, node in enumerate(self.nodes):
            x, y = 8 + (node.step + 1) * column, 36 + rows[i] * 18
            faint, strong = node.fate in ("pruned", "left"), node.fate == "best"
            if i:
                parent = self.nodes[node.parent]
                start = (8 + (parent.step + 1) * column + column - 22, 32 + rows[node.parent] * 18)
                opacity = 1.0 if strong else 0.15 if faint else 0.5
                marks.append(drawing.Line(*start, x - 4, y - 4, 2.0 if strong else 1.0, opacity))
            mark = "●" if node.score is not None else ""
            said = f"{drawing.shown(node.token)}{mark} {node.log_probability:.2f}" if i else "start"
            marks.append(
                drawing.Text(x, y, said, colour="#8a8a93" if faint else "ink", strong=strong)
            )
        steps = max(node.step for node in self.nodes) + 2
        return drawing.Scene(8 + steps * column, 44 + (max(rows) + 1) * 18, tuple(marks))

    def _rows(self) -> list[float]:
        children: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes[1:], start=1):
            children[node.parent].append(i)
        rows = [0.0] * len(self.nodes)
        following = 0
        trail: list[tuple[int, bool]] = [(0, False)]
        while trail:  # children before their parent, without recursion: a beginning may be long
            i, done = trail.pop()
            if done:
                rows[i] = sum(rows[child] for child in children[i]) / len(children[i])
            elif children[i]:
                trail += [(i, True), *((child, False) for child in reversed(children[i]))]
            else:
                rows[i], following = float(following), following + 1
        return rows

    def lines(self, width: int = 100) -> list[str]:
        signs = {"open": " ", "finished": "●", "pruned": "✗", "left": "·", "best": "★"}
        by_step: dict[int, list[Node]] = {}
        for node in self.nodes[1:]:
            by_step.setdefault(node.step, []).append(node)
        found = []
        for step, nodes in by_step.items():
            said = []
            for node in nodes:
                before = f"{drawing.shown(self.nodes[node.parent].token)}·" if node.parent else ""
                said.append(
                    f"{signs[node.fate]}{before}{drawing.shown(node.token)} {node.log_probability:.1f}"
                )
            found.append(terminal.fitted(f"{step:3} " + "  ".join(said), width).rstrip())
        return [*found, "", "★ the answer  ● ended  ✗ pruned  · left when the search was decided"]


def beam(
    held: Subject | Holds,
    text: str | Tensor,
    strategy: BeamSearch | DecodingSettings | None = None,
    *,
    off: Sequence[Head] = (),
) -> BeamTree:
    """The tree of what a beam search held, ended and turned down on the way to its answer."""
    subject = subject_of(held)
    settings = (
        strategy
        if isinstance(strategy, DecodingSettings)
        else DecodingSettings(strategy or BeamSearch())
    )
    if not isinstance(settings.strategy, BeamSearch):
        raise SettingError("only a beam search has a tree", "give a Beam, or ask for the steps")
    tree = _Growing(subject.writes)
    best = translate(subject, _one(text), settings, off=off, watch=tree)[0]
    return BeamTree(
        _named(text),
        written(subject, best),
        settings.strategy.width,
        tuple(tree.nodes),
        tree.ended(),
    )


class _Growing:
    """A tree that grows while a search of one text is watched."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.nodes = [Node(-1, -1, -1, "", 0.0, "open")]
        self.places = [0]  # the node that stands in each place of the beam

    def __call__(self, seen: BeamStep | TokenStep) -> None:
        assert isinstance(seen, BeamStep)
        sums, scores = seen.sums[0].tolist(), seen.scores[0].tolist()
        names = self.words.tokens(seen.tokens[0].tolist())
        offered: dict[int, int] = {}  # rank → node
        for rank, (parent, token) in enumerate(
            zip(seen.parents[0].tolist(), seen.tokens[0].tolist(), strict=True)
        ):
            if sums[rank] == NEG_INF:
                continue
            ended = scores[rank] > NEG_INF
            offered[rank] = len(self.nodes)
            fate: Fate = "finished" if ended else "pruned"
            node = Node(self.places[parent], seen.step, token, names[rank], sums[rank], fate)
            node.score = scores[rank] if ended else None
            self.nodes.append(node)
        taken = zip(seen.survivors[0].tolist(), seen.active[0].tolist(), strict=True)
        self.places = [offered.get(rank, 0) if there else 0 for rank, there in taken]
        for node_number in self.places:
            if node_number and self.nodes[node_number].fate == "pruned":
                self.nodes[node_number].fate = "open"

    def ended(self) -> int:
        """Marks the way to the best finished beginning, and what was never continued; the number of that beginning."""
        continued = {node.parent for node in self.nodes}
        for i, node in enumerate(self.nodes):
            if node.fate == "open" and i not in continued:
                node.fate = "left"
        finished = [i for i, node in enumerate(self.nodes) if node.score is not None]
        answer = max(finished, key=lambda i: (cast(float, self.nodes[i].score), -i))
        i = answer
        while i >= 0:
            self.nodes[i].fate, i = "best", self.nodes[i].parent
        return answer


# ------------------------------------------------------------------ the cache


@dataclass(frozen=True)
class Cache(Result):
    """Bytes that decoding remembers: `own` of the tokens so far, after each step, in all layers; `source` of what
    cross-attention reads, which does not grow; `reserved` by the buffers for as many steps as were asked."""

    tokens: tuple[int, ...]
    own: tuple[int, ...]
    source: int
    reserved: int
    parts: dict[str, int] = field(default_factory=dict)  # bytes of each layer at the end

    note = "Keys and values of one sequence. A search holds this once for each beam, less the source's, which beams share."

    @property
    def title(self) -> str:
        each = (self.own[-1] - self.own[0]) / max(1, self.tokens[-1] - self.tokens[0])
        return f"decoding state: {each:,.0f} bytes a token, {self.source:,} of the source"

    def numpy(self) -> Array:
        return np.array(self.own)

    def scene(self) -> drawing.Scene:
        said = [f"{value:,} bytes" for value in self.own]
        return drawing.bars(
            [float(v) for v in self.own], [str(n) for n in self.tokens], title=self.title, said=said
        )

    def lines(self, width: int = 100) -> list[str]:
        rows = [
            [str(n), f"{v:,}", terminal.bar(v, self.own[-1])]
            for n, v in zip(self.tokens, self.own, strict=True)
        ]
        return terminal.table([["tokens", "bytes", ""], *rows], width=width)


def cache(held: Subject | Holds, text: str | Tensor, *, length: int = 16) -> Cache:
    """The state's growth over the first `length` tokens of a greedy output."""
    subject = subject_of(held)
    model = subject.model
    if not isinstance(model, EncoderDecoder | Decoder):
        raise SettingError("this model keeps nothing between steps", "give one that writes")
    with at_rest(model):
        ids = (
            torch.tensor([subject.ids(text)], device=subject.device)
            if isinstance(text, str)
            else text
        )
        known = room(subject, ids.shape[1])
        length = length if known is None else max(1, min(length, known))
        state = model.start(cast(Any, model.encode(ids)), capacity=length)
        last = (
            ids[:, -1:]
            if isinstance(model, Decoder)
            else torch.tensor([subject.start], device=subject.device)
        )
        tokens, own = [], []
        for _ in range(length):
            if state.position + last.shape[1] > length + (
                ids.shape[1] if isinstance(model, Decoder) else 0
            ):
                break
            last = model.step(last, state)[:, -1:].argmax(dim=-1)
            tokens.append(state.position)
            own.append(sum(remembered(layer) for layer in state.layers))
    cross = [layer.cross_attention for layer in state.layers]
    source = sum(_bytes(cache) for cache in cross if cache is not None)
    reserved = sum(_bytes(layer.self_attention) for layer in state.layers)
    parts = {f"decoder.{i}": remembered(layer) for i, layer in enumerate(state.layers)}
    return Cache(tuple(tokens), tuple(own), source, reserved, parts)


def remembered(layer: LayerCache) -> int:
    """Bytes of a layer's own past that are in use."""
    past = layer.self_attention
    if isinstance(past, KVCache):
        return sum(
            part[:, :, : past.filled].numel() * part.element_size() for part in (past.k, past.v)
        )
    return _bytes(past)


def _bytes(part: Any) -> int:
    """Of all tensors of a dataclass."""
    tensors = [getattr(part, f.name) for f in fields(part)]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
