"""The tree of a beam search: every prefix that was kept, finished or pruned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from regard.core.finite_outputs import non_finite_error
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.constraints import NEG_INF
from regard.decode.events import BeamStep, TokenStep
from regard.decode.strategy import BeamSearch
from regard.look import drawing
from regard.look.decoding_steps import input_title
from regard.look.drawing import terminal
from regard.look.generation import decoding_settings, translate, written
from regard.look.inspectable import Input, Inspectable
from regard.look.probe_names import Head
from regard.look.result import AnalysisResult, Array
from regard.system.errors import SettingError

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
        marks: list[drawing.Mark] = [drawing.Text(0, 14, self.title, strong=True)]
        for i, node in enumerate(self.nodes):
            x = 8 + (node.step + 1) * column
            y = 36 + rows[i] * ROW
            label = "start"
            if i > 0:
                parent = self.nodes[node.parent]
                x_parent = 8 + (parent.step + 2) * column - 22
                y_parent = 32 + rows[node.parent] * ROW
                marks.append(_edge(node, (x_parent, y_parent, x - 4, y - 4)))
                label = _label(node)
            faint = node.fate in ("pruned", "left")
            colour = "#8a8a93" if faint else "ink"
            marks.append(drawing.Text(x, y, label, colour=colour, strong=node.fate == "best"))
        steps = max(node.step for node in self.nodes) + 2
        return drawing.Scene(8 + steps * column, 44 + (max(rows) + 1) * ROW, tuple(marks))

    def _rows(self) -> list[float]:
        """The row of each node: leaves one after the other, parents level with their first child.

        The way to the answer comes first: it is the first row, where a page opens.
        """
        children: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes[1:], start=1):
            children[node.parent].append(i)
        for siblings in children:
            siblings.sort(key=lambda i: self.nodes[i].fate != "best")  # stable
        rows = [0.0] * len(self.nodes)
        leaves = 0
        # Depth-first with a stack instead of recursion: a hypothesis may be long.
        pending: list[tuple[int, bool]] = [(0, False)]
        while pending:
            i, children_done = pending.pop()
            if children_done:
                rows[i] = rows[children[i][0]]
            elif children[i]:
                pending.append((i, True))
                pending += [(child, False) for child in reversed(children[i])]
            else:
                rows[i] = float(leaves)
                leaves += 1
        return rows

    # ------------------------------------------------------------------ terminal

    def lines(self, width: int = 100) -> list[str]:
        by_step: dict[int, list[str]] = {}
        for node in self.nodes[1:]:
            before = ""
            if node.parent:
                before = f"{drawing.shown(self.nodes[node.parent].token)}·"
            token = f"{before}{drawing.shown(node.token)}"
            cell = f"{SIGNS[node.fate]}{token} {node.log_probability:.1f}"
            by_step.setdefault(node.step, []).append(cell)
        lines = [
            terminal.fitted(f"{step:3} " + "  ".join(cells), width).rstrip()
            for step, cells in by_step.items()
        ]
        return [
            *lines,
            "",
            "★ best hypothesis  ● finished  ✗ pruned  · unfinished when the search ended",
        ]


def _label(node: Node) -> str:
    mark = "" if node.score is None else "●"
    return f"{drawing.shown(node.token)}{mark} {node.log_probability:.2f}"


def _edge(node: Node, ends: tuple[float, float, float, float]) -> drawing.Line:
    """The line from a parent: bold on the way to the answer, faint to what was turned down."""
    if node.fate == "best":
        return drawing.Line(*ends, 2.0, 1.0)
    if node.fate in ("pruned", "left"):
        return drawing.Line(*ends, 1.0, 0.15)
    return drawing.Line(*ends, 1.0, 0.5)


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
