"""Decoding step by step: the candidates at each step, and the tree of a beam search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch

from regard.core.finite_outputs import non_finite_error
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.constraints import NEG_INF
from regard.decode.events import BeamStep, TokenStep
from regard.decode.greedy_and_sampling import filtered_distribution
from regard.decode.strategy import BeamSearch, Greedy, Sampling, Strategy
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.generation import decoding_settings, translate, written
from regard.look.inspectable import Input, Inspectable
from regard.look.probe_names import Head
from regard.look.result import AnalysisResult, Array
from regard.system.arguments import whole_number
from regard.system.errors import SettingError


@dataclass(frozen=True)
class Candidate:
    """A token that could come next.

    `probability` is the model's; `drawn` is what temperature and filters leave of it.
    """

    id: int
    token: str
    probability: float
    drawn: float


@dataclass(frozen=True)
class DecodingStep:
    """The token that was taken at one step, and the candidates there were."""

    token: str
    id: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Steps(AnalysisResult):
    """Greedy decoding or sampling: at each step the most probable tokens and the one taken."""

    text: str
    output: str
    steps: tuple[DecodingStep, ...]

    note = "The chosen token, then the most probable tokens with their probabilities."

    @property
    def title(self) -> str:
        return f"{self.text} → {self.output}"

    def numpy(self) -> Array:
        """[steps, candidates], filled up with zeros."""
        most = max((len(step.candidates) for step in self.steps), default=0)
        probabilities = np.zeros((len(self.steps), most))
        for row, step in zip(probabilities, self.steps, strict=True):
            row[: len(step.candidates)] = [c.probability for c in step.candidates]
        return probabilities

    def scene(self) -> drawing.Scene:
        values = self.numpy()
        most = values.shape[1]
        # A token that is not among the likeliest was drawn by chance: one candidate more.
        tokens = [[drawing.shown(one.token) for one in step.candidates] for step in self.steps]
        inside = [row + [""] * (most - len(row)) for row in tokens]
        columns = [str(i + 1) for i in range(most)]
        rows = [f"{i}. {drawing.shown(step.token)}" for i, step in enumerate(self.steps)]
        return drawing.heat(values, rows, columns, title=self.title, most=1.0, inside=inside)

    def table(self) -> list[list[str]]:
        rows = []
        for i, step in enumerate(self.steps):
            cells = [f"{drawing.shown(c.token)} {c.probability:.2f}" for c in step.candidates]
            rows.append([str(i), drawing.shown(step.token), *cells])
        return rows


def steps(
    model: Inspectable,
    text: Input,
    strategy: Greedy | Sampling | DecodingSettings | None = None,
    *,
    top: int = 5,
    off: Sequence[Head] = (),
) -> Steps:
    """The `top` candidates at each step of greedy decoding or sampling.

    Decoding is greedy by default; `off` are heads to ablate.
    """
    settings = decoding_settings(strategy, Greedy())
    whole_number("top", top, least=1)
    recorded: list[DecodingStep] = []

    def watch(event: BeamStep | TokenStep) -> None:
        if not isinstance(event, TokenStep):
            raise SettingError(
                "this view shows single decoding steps, but decoding uses beam search",
                "use --what beam, or greedy decoding: --beam 1",
            )
        recorded.append(_step(model, event, settings.strategy, top))

    best = translate(model, text, settings, off=off, watch=watch)[0]
    return Steps(input_title(text), written(model, best), tuple(recorded))


def input_title(text: Input) -> str:
    """The text of an input, for titles; other inputs have none."""
    return str(text) if isinstance(text, str | Path) else ""


def _step(model: Inspectable, event: TokenStep, strategy: Strategy, top: int) -> DecodingStep:
    logits = event.logits[:1]  # [1, V]
    probabilities = logits.softmax(dim=-1)[0]  # [V]
    taken = int(event.tokens[0])
    drawn = torch.zeros_like(probabilities, dtype=torch.float64)  # [V]
    if isinstance(strategy, Sampling):
        # Top-k and top-p leave some ids, whose shares sum to 1.
        shares, ids_left = filtered_distribution(logits, strategy)
        drawn[ids_left[0]] = shares[0]
    else:
        drawn[taken] = 1.0
    ids = probabilities.topk(min(top, len(probabilities))).indices.tolist()
    # A sampled token may be none of the most probable ones.
    if taken not in ids:
        ids.append(taken)
    tokens = model.output_tokenizer.tokens(ids)
    candidates = tuple(
        Candidate(i, token, probabilities[i].item(), drawn[i].item())
        for i, token in zip(ids, tokens, strict=True)
        if probabilities[i] > 0  # banned tokens are no candidates
    )
    return DecodingStep(model.output_tokenizer.tokens([taken])[0], taken, candidates)


Fate = Literal["open", "finished", "pruned", "left", "best"]
SIGNS: dict[Fate, str] = {"open": " ", "finished": "●", "pruned": "✗", "left": "·", "best": "★"}
ROW = 18  # pixels between the rows of the picture


@dataclass
class Node:
    """One prefix: its last token, the log-probability of all of it, and its fate.

    `open`: it was extended; `finished`: it ended and was scored; `pruned`: others were better;
    `left`: the search ended before it was extended; `best`: a prefix of the answer.
    """

    parent: int
    step: int
    id: int
    token: str
    log_probability: float
    fate: Fate
    score: float | None = None  # of a finished hypothesis, with the length penalty


@dataclass(frozen=True)
class BeamTree(AnalysisResult):
    """Every prefix that a beam search considered.

    `nodes[0]` is the empty prefix; parents come before their children.
    """

    text: str
    output: str
    width: int
    nodes: tuple[Node, ...]
    answer: int  # the node that the best hypothesis ends in

    note = (
        "Bold: the best hypothesis. Faint: pruned. ●: finished. "
        "Numbers are log-probabilities of the whole prefix."
    )

    @property
    def title(self) -> str:
        return f"beam of {self.width}: {self.text} → {self.output}"

    def path(self, node: int) -> list[int]:
        """The token ids of a prefix."""
        ids: list[int] = []
        while node > 0:
            ids.append(self.nodes[node].id)
            node = self.nodes[node].parent
        return ids[::-1]

    def numpy(self) -> Array:
        """[nodes, 4]: parent, step, token id, log-probability."""
        return np.array([[n.parent, n.step, n.id, n.log_probability] for n in self.nodes])

    # ------------------------------------------------------------------ picture

    def scene(self) -> drawing.Scene:
        """Steps go to the right, each leaf has a row."""
        rows = self._rows()
        longest = max((len(drawing.shown(node.token)) for node in self.nodes), default=4)
        column = longest * drawing.WIDTH + 62  # room for the log-probability
        marks: drawing.Marks = []
        for i, node in enumerate(self.nodes):
            x = 8 + (node.step + 1) * column
            y = 12 + rows[i] * ROW
            is_best = node.fate == "best"
            is_faint = node.fate in ("pruned", "left")
            label = "start"
            if i > 0:
                sign = "" if node.score is None else "●"
                label = f"{drawing.shown(node.token)}{sign} {node.log_probability:.2f}"
                # The line from its parent: bold on the way to the answer, faint to what was not.
                x_parent = 8 + (self.nodes[node.parent].step + 2) * column - 22
                ends = (x_parent, 8 + rows[node.parent] * ROW, x - 4, y - 4)
                opacity = 0.15 if is_faint else 0.5
                style = (2.0, 1.0) if is_best else (1.0, opacity)
                marks.append(drawing.Line(*ends, *style))
            colour = "#8a8a93" if is_faint else "ink"
            marks.append(drawing.Text(x, y, label, colour=colour, strong=is_best))
        steps = max(node.step for node in self.nodes) + 2
        size = (8 + steps * column, 20 + (max(rows) + 1) * ROW)
        return drawing.titled(self.title, drawing.Scene(*size, tuple(marks)))

    def _rows(self) -> list[int]:
        """The row of each node: leaves one after the other, parents level with their first child.

        The way to the answer comes first: it is the first row, where a page opens.
        """
        paths: list[tuple[tuple[bool, int], ...]] = [()]
        for i, node in enumerate(self.nodes[1:], start=1):
            paths.append((*paths[node.parent], (node.fate != "best", i)))
        inner = {node.parent for node in self.nodes}
        leaves = sorted(set(range(len(paths))) - inner, key=paths.__getitem__)
        rows = [0] * len(paths)
        # Upwards from each leaf, the first one last: a parent keeps the row of its first child.
        for row, i in reversed(list(enumerate(leaves))):
            while i >= 0:
                rows[i] = row
                i = self.nodes[i].parent
        return rows

    # ------------------------------------------------------------------ terminal

    def lines(self, width: int = 100) -> list[str]:
        by_step: dict[int, str] = {}
        for node in self.nodes[1:]:
            token = drawing.shown(node.token)
            if node.parent:
                token = f"{drawing.shown(self.nodes[node.parent].token)}·{token}"
            before = by_step.setdefault(node.step, f"{node.step:3}")
            cell = f"{SIGNS[node.fate]}{token} {node.log_probability:.1f}"
            by_step[node.step] = f"{before}  {cell}"
        lines = [terminal.fitted(line, width).rstrip() for line in by_step.values()]
        signs = "★ best hypothesis  ● finished  ✗ pruned  · unfinished when the search ended"
        return [*lines, "", signs]


def beam(
    model: Inspectable,
    text: Input,
    strategy: BeamSearch | DecodingSettings | None = None,
    *,
    off: Sequence[Head] = (),
) -> BeamTree:
    """The tree of all prefixes that a beam search kept, finished and pruned.

    `off` are heads to ablate.
    """
    settings = decoding_settings(strategy, BeamSearch())
    if not isinstance(settings.strategy, BeamSearch):
        raise SettingError(
            "the beam tree needs beam search, but decoding is greedy or samples",
            "set --beam 2 or more (in Python, pass a BeamSearch), or use --what steps",
        )
    tree = _TreeBuilder(model)
    best = translate(model, text, settings, off=off, watch=tree)[0]
    answer = tree.finish()
    return BeamTree(
        input_title(text), written(model, best), settings.strategy.width, tuple(tree.nodes), answer
    )


class _TreeBuilder:
    """The callback that grows the tree, step by step of a search over one source."""

    def __init__(self, model: Inspectable) -> None:
        self.model = model
        self.nodes = [Node(-1, -1, -1, "", 0.0, "open")]
        self.beam = [0]  # the node in each slot of the beam

    def __call__(self, event: BeamStep | TokenStep) -> None:
        assert isinstance(event, BeamStep)
        parents = event.parents[0].tolist()
        ids = event.tokens[0].tolist()
        sums = event.sums[0].tolist()
        if any(math.isnan(one) for one in sums):  # −∞ is a slot without a hypothesis
            raise non_finite_error(self.model.model)
        scores = event.scores[0].tolist()
        tokens = self.model.output_tokenizer.tokens(ids)
        node_of_rank: dict[int, int] = {}
        for rank, parent in enumerate(parents):
            if sums[rank] == NEG_INF:  # no candidate: a slot without a hypothesis
                continue
            node_of_rank[rank] = len(self.nodes)
            # Whoever is not taken into the next beam below stays pruned.
            node = Node(
                self.beam[parent], event.step, ids[rank], tokens[rank], sums[rank], "pruned"
            )
            if scores[rank] > NEG_INF:
                node.fate = "finished"
                node.score = scores[rank]
            self.nodes.append(node)
        ranks = event.survivors[0].tolist()
        active = event.active[0].tolist()
        self.beam = [
            node_of_rank.get(rank, 0) if is_active else 0
            for rank, is_active in zip(ranks, active, strict=True)
        ]
        for number in self.beam:
            if number and self.nodes[number].fate == "pruned":
                self.nodes[number].fate = "open"

    def finish(self) -> int:
        """Marks the best hypothesis and what was never extended; the number of its last node."""
        extended = {node.parent for node in self.nodes}
        for i, node in enumerate(self.nodes):
            if node.fate == "open" and i not in extended:
                node.fate = "left"
        finished = [i for i, node in enumerate(self.nodes) if node.score is not None]
        # Of equal scores the first one counts, as in the search.
        answer = max(finished, key=lambda i: (cast(float, self.nodes[i].score), -i))
        i = answer
        while i >= 0:
            self.nodes[i].fate = "best"
            i = self.nodes[i].parent
        return answer
