"""Head roles: attention along the dependencies of parsed sentences (CoNLL-U)."""

from __future__ import annotations

import importlib.resources
import os
from itertools import islice
from pathlib import Path

from regard.data.conllu import parse_conllu, read_conllu, write_conllu
from regard.data.generated import builtin
from regard.data.generated.builtin import Sentence
from regard.lab.study.figure import Table, column
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.look.drawing import Axis, BarChart, Bars, Figure
from regard.look.head_roles import POSITIONAL, roles
from regard.models.loading import load

# The standard error of a mean over 20 weights is below a quarter of their deviation.
FEWEST_PAIRS = 20  # relations with fewer pairs of words are left out


class HeadRoles(Study):
    name = "head_roles"
    claim = (
        "Some heads specialise: they attend to the neighbouring token, or along a grammatical "
        "relation such as subject and verb."
    )
    source = "Voita et al. 2019, Section 5; Clark et al. 2019, Section 4"
    measurement = (
        "The packaged translator of the built-in language on parsed sentences in CoNLL-U: those of "
        "the file in $REGARD_CONLLU, or test sentences of the built-in language. The mean "
        "attention of each encoder head from the first word of a relation to the second, and what "
        "uniform attention would give."
    )
    rule = (
        f"Holds if for at least half of the relations with {FEWEST_PAIRS} pairs or more some head "
        "attends 3 times as much as uniform attention, and the same is so for at least one "
        "positional role; within limits if it is so for one relation."
    )
    quick_seeds = 1  # the model is trained already
    full_seeds = 1

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        progress(0.0, "reading sentences")
        sentences, name = _sentences(effort.choose(100, 1000))
        # The model that the studio opens with: nothing is trained here.
        with importlib.resources.as_file(importlib.resources.files("regard")) as package:
            model = load(package / "studio" / "demo")
        progress(0.2, "attention")
        scored = roles(model, sentences)
        progress(1.0)
        rows = [
            {
                "role": role,
                "head": "{} {}".format(*scored.best[role]),
                "attention": float(scored.scores[index].max()),
                "chance": scored.chance[index],
                "pairs": scored.links[index],
            }
            for index, role in enumerate(scored.roles)
        ]
        return {"sentences": len(sentences), "text": name, "roles": rows}

    def verdict(self, numbers: Numbers) -> Verdict:
        # Means over a few pairs are chance.
        counted = [row for row in numbers["roles"] if row["pairs"] >= FEWEST_PAIRS]
        positional = [row for row in counted if row["role"] in POSITIONAL]
        # Voita et al. judge positional and syntactic heads apart, and so does the rule.
        relations = [row for row in counted if row["role"] not in POSITIONAL]
        has_head = [row for row in relations if row["attention"] >= 3 * row["chance"]]
        # Heads for neighbours are the commonest (Voita et al., Section 5.2).
        near = [row for row in positional if row["attention"] >= 3 * row["chance"]]
        best = max(relations, key=lambda row: row["attention"] / row["chance"], default=None)
        reason = (
            f"{len(has_head)} of {len(relations)} relations and {len(near)} of {len(positional)} "
            f"positional roles have a head with 3 times the uniform attention on {numbers['text']}"
        )
        if best is not None:
            factor = best["attention"] / best["chance"]
            reason += f"; the strongest is {best['head']} for {best['role']}, {factor:.1f} times"
        holds = bool(near) and 2 * len(has_head) >= len(relations)
        return judge(holds, bool(has_head), f"{reason}.")

    def figures(self, numbers: Numbers) -> list[Figure]:
        rows = [row for row in numbers["roles"] if row["pairs"] >= FEWEST_PAIRS]
        series = [
            Bars("strongest head", [[row["attention"]] for row in rows]),
            Bars("uniform attention", [[row["chance"]] for row in rows]),
        ]
        y = Axis("mean attention", low=0.0, high=1.0)
        return [BarChart("The strongest head for each role", y, column(rows, "role"), series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for row in numbers["roles"]:
            shares = [f"{row['attention']:.2f}", f"{row['chance']:.2f}"]
            rows.append([row["role"], row["head"], *shares, str(row["pairs"])])
        columns = ["role", "strongest head", "attention", "uniform", "pairs"]
        return [Table(f"{numbers['sentences']} sentences of {numbers['text']}", columns, rows)]


def _sentences(count: int) -> tuple[list[Sentence], str]:
    """Parsed sentences, and the name of their text."""
    file = os.environ.get("REGARD_CONLLU")
    if file:
        return read_conllu(file)[:count], Path(file).name
    generated = islice(builtin.sentences("test", pronouns=False), count)
    # Through the format: what holds for these holds for a file of the user's.
    return list(parse_conllu(write_conllu(generated))), "the built-in language"
