"""Head roles: attention along the dependencies of parsed sentences (CoNLL-U)."""

from __future__ import annotations

import importlib.resources
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.conllu import parse_conllu, read_conllu, write_conllu
from regard.data.generated import builtin
from regard.data.generated.builtin import Sentence
from regard.lab.study.evidence import every, share, some
from regard.lab.study.figure import Shown, Table, column
from regard.lab.study.study import Effort, Numbers, Study, Truth, Verdict, judge
from regard.look.drawing import Axis, BarChart, Bars
from regard.look.head_roles import POSITIONAL, Roles, roles
from regard.look.probe_names import Head
from regard.models.loading import load

# The standard error of a mean over 20 weights is below a quarter of their deviation.
FEWEST_PAIRS = 20  # of words, below which a role is open
TIMES_UNIFORM = 3  # what a head must attend, in uniform attention
TIMES_CONTROL = 2  # and in its own attention to other words at the same distance


class HeadRoles(Study):
    """Some heads specialise: they attend to the neighbouring token, or along a grammatical relation
    such as subject and verb.

    The packaged translator of the built-in language on parsed sentences in CoNLL-U: those of the
    file in $REGARD_CONLLU, or test sentences of the built-in language. The mean attention of each
    encoder head from the first word of a relation to the second, and what uniform attention would
    give. The strongest head of each role is chosen on one half of the sentences and measured on the
    other; there also its attention to words at the same distance between which the relation is not,
    as a control for position.
    """

    name = "head_roles"
    source = "Voita et al. 2019, Section 5; Clark et al. 2019, Section 4"
    seeds = (1, 1)  # the model is trained already

    def measure(self, effort: Effort) -> Numbers:
        sentences, name = _sentences(effort.choose(100, 1000))
        # The model that the studio opens with: nothing is trained here.
        with importlib.resources.as_file(importlib.resources.files("regard")) as package:
            model = load(package / "studio" / "demo")
        half = len(sentences) // 2
        chosen = roles(model, sentences[:half])
        scored = roles(model, sentences[half:])
        control = roles(model, [at_same_distance(one) for one in sentences[half:]])
        rows = [
            {
                "role": role,
                "head": "{} {}".format(*chosen.best[role]),
                "attention": _attention(scored, role, chosen.best[role]),
                "chance": scored.chance[index],
                "control": _attention(control, role, chosen.best[role]),
                "pairs": scored.links[index],
            }
            for index, role in enumerate(scored.roles)
            if role in chosen.best and role in control.best
        ]
        return {"sentences": len(sentences), "text": name, "roles": rows}

    def verdict(self, numbers: Numbers) -> Verdict:
        """A relation has a head if that attends {TIMES_UNIFORM} times as much as uniform attention
        and {TIMES_CONTROL} times as much as in the control; a positional role, if the first is so.
        With fewer than {FEWEST_PAIRS} pairs of words a role is open. Holds if at least half of the
        relations and one positional role have a head; within limits if one relation has; too small
        to say where the open ones decide that."""
        # Voita et al. judge positional and syntactic heads apart, and so does the rule.
        relations = [row for row in numbers["roles"] if row["role"] not in POSITIONAL]
        related = [_has_head(row) for row in relations]
        # Heads for neighbours are the commonest (Voita et al., Section 5.2).
        near = [_has_head(row) for row in numbers["roles"] if row["role"] in POSITIONAL]
        best = max(relations, key=lambda row: row["attention"] / max(row["chance"], row["control"]))
        reason = (
            f"{related.count(True)} of {len(related)} relations and {near.count(True)} of "
            f"{len(near)} positional roles have a head on {numbers['text']}; the strongest is "
            f"{best['head']} for {best['role']}: {best['attention'] / best['chance']:.1f} times "
            f"uniform attention, {best['attention'] / best['control']:.1f} times the control."
        )
        return judge(every([share(related, 0.5), some(near)]), some(related), reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        counted = [row for row in numbers["roles"] if row["pairs"] >= FEWEST_PAIRS]
        keys = {
            "attention": "strongest head",
            "chance": "uniform attention",
            "control": "same distance",
        }
        rows = [
            [row["role"], row["head"], *(f"{row[key]:.2f}" for key in keys), str(row["pairs"])]
            for row in numbers["roles"]
        ]
        return [
            BarChart(
                "The strongest head for each role",
                Axis("mean attention", low=0.0, high=1.0),
                column(counted, "role"),
                [Bars(name, [[row[key]] for row in counted]) for key, name in keys.items()],
            ),
            Table(
                f"{numbers['sentences']} sentences of {numbers['text']}",
                ["role", "strongest head", "attention", "uniform", "same distance", "pairs"],
                rows,
            ),
        ]


def _has_head(row: dict[str, Any]) -> Truth:
    # Means over a few pairs are chance.
    if row["pairs"] < FEWEST_PAIRS:
        return None
    # The control of a positional role is the role itself.
    control = 0.0 if row["role"] in POSITIONAL else row["control"]
    least = max(TIMES_UNIFORM * row["chance"], TIMES_CONTROL * control)
    return bool(row["attention"] >= least)


def _attention(scored: Roles, role: str, head: Head) -> float:
    """The mean attention of a head along a role."""
    name, number = head
    return float(scored.scores[scored.roles.index(role), scored.names.index(name), number])


def at_same_distance(sentence: Sentence) -> Sentence:
    """The sentence with links between other words, each as far apart as two that are related."""
    words = range(len(sentence.source.split()))
    links = [
        replace(link, start=start, end=start + link.end - link.start)
        for link in sentence.links
        for start in words
        if start + link.end - link.start in words
    ]
    # What is related in truth, by the same kind of relation, is no control.
    related = {(link.kind, link.start, link.end) for link in sentence.links}
    others = [link for link in links if (link.kind, link.start, link.end) not in related]
    return replace(sentence, links=tuple(others))


def _sentences(count: int) -> tuple[list[Sentence], str]:
    """Parsed sentences, and the name of their text."""
    file = os.environ.get("REGARD_CONLLU")
    if file:
        return read_conllu(file)[:count], Path(file).name
    generated = islice(builtin.sentences("test", pronouns=False), count)
    # Through the format: what holds for these holds for a file of the user's.
    return list(parse_conllu(write_conllu(generated))), "the built-in language"
