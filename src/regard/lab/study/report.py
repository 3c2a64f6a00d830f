"""The result of a study, and its reports: self-contained HTML, and text for a terminal."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from regard.lab.study import listing
from regard.lab.study.figure import Shown, Table
from regard.lab.study.study import Effort, Numbers, Outcome, Study, Verdict
from regard.look import drawing
from regard.look.drawing import Figure, terminal
from regard.look.result import to_json
from regard.system import disk
from regard.system.errors import DataError

LONG_CELL = 36  # letters of a cell that is a sentence
MOST_LETTERS = 66  # of a row of a table that fits beside a figure
MOST_COLUMNS = 240  # of a table in a terminal, which breaks the lines that are longer than it is

# ------------------------------------------------------------------ style

_STUDY_STYLE = """
.regard .study { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.2rem clamp(.9rem, 2.5vw, 1.6rem); margin: 0 0 1.2rem; scroll-margin-top: 1rem; }
.regard .study h3 { font-size: 1.3rem; }
.regard .claim { font-size: 1.08rem; max-width: 75ch; margin: .5rem 0 .2rem; }
.regard .faint { color: var(--faint); font-size: .9rem; margin: .2rem 0; max-width: 85ch; }
.regard .verdict { border-radius: 8px; padding: .6rem .9rem; margin: .9rem 0 .3rem; }
.regard .verdict b { margin-right: .5em; text-transform: uppercase; font-size: .84rem;
  letter-spacing: .04em; }
.regard .holds { background: var(--good-soft); } .regard .holds b { color: var(--good); }
.regard .limits { background: var(--warm-soft); } .regard .limits b { color: var(--warm); }
.regard .fails { background: var(--bad-soft); } .regard .fails b { color: var(--bad); }
.regard .open { border: 1px solid var(--line); } .regard .open b { color: var(--faint); }
.regard .charts { display: grid; gap: 1.2rem; align-items: start; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
.regard .charts figcaption { color: var(--ink); font-weight: 600; font-size: .95rem;
  margin: 0 0 .4rem; }
.regard .charts svg { display: block; max-width: 100%; height: auto; }
.regard .note { color: var(--faint); font-size: .86rem; margin: .3rem 0 0; }
.regard .scroll { overflow-x: auto; }
.regard table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: .93rem; color: inherit; }
.regard th.sentence { text-align: left; }
.regard td.sentence { white-space: normal; text-align: left; min-width: 15rem; }
.regard .wide { grid-column: 1 / -1; }
.regard sup { font-size: .72em; line-height: 0; }
.regard th, .regard td { padding: .28rem .8rem .28rem 0; text-align: right;
  border-bottom: 1px solid var(--line); background: none; white-space: nowrap; }
.regard th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
.regard td:first-child, .regard th:first-child { text-align: left; }
.regard details { margin-top: .6rem; font-size: .9rem; color: var(--faint); max-width: 85ch; }
.regard summary { cursor: pointer; }
"""
STYLE = drawing.STYLE + _STUDY_STYLE  # for a fragment of another page
_PAGE_STYLE = """
body { padding: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 1.6rem clamp(.7rem, 3vw, 2rem) 3rem; }
.top { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: baseline; }
main .top h1 { font-size: 1.8rem; }
.top label { margin-left: auto; font-size: .9rem; color: var(--faint); cursor: pointer; }
.contents { columns: 2 420px; column-gap: 2.5rem; margin: 1.2rem 0 2rem; }
.contents section { break-inside: avoid; margin-bottom: .9rem; }
main .contents h2 { font-size: 1rem; }
.contents ul { list-style: none; padding: 0; margin: .25rem 0; }
.contents li { display: flex; gap: .6rem; padding: .12rem 0; align-items: baseline; }
.contents a { text-decoration: none; } .contents a:hover { text-decoration: underline; }
.mark { flex: 0 0 auto; width: 9.6rem; text-align: right; margin-left: auto; font-size: .8rem;
  white-space: nowrap; font-weight: 600; }
.mark.holds { color: var(--good); background: none; }
.mark.limits { color: var(--warm); background: none; }
.mark.fails { color: var(--bad); background: none; }
.mark.open { color: var(--faint); border: 0; }
main .topic { font-size: 1.45rem; margin: 2.2rem 0 .8rem; }
@media print { .top label { display: none; } .study { break-inside: avoid; } }
"""
# Of each outcome: its class in the style, and how several studies have it.
_OUTCOMES = {
    Outcome.HOLDS: ("holds", "hold"),
    Outcome.LIMITED: ("limits", "hold within limits"),
    Outcome.FAILS: ("fails", "do not hold here"),
    Outcome.UNDECIDED: ("open", "are too small to say"),
}


# ------------------------------------------------------------------ the result of a study


@dataclass(frozen=True)
class StudyResult:
    """Numbers of a study with verdict, figures and tables; shown as a page in notebooks."""

    study: Study
    effort: Effort
    numbers: Numbers  # as `measure` returned them
    seconds: float  # of measuring
    fingerprint: str  # of code and settings
    measurement: str  # how the numbers were measured, which the study may do otherwise today

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def title(self) -> str:
        return listing.STUDIES[self.name].title

    @property
    def topic(self) -> str:
        """The heading that it stands under."""
        return next(topic for topic, lines in listing.TOPICS.items() if self.name in lines)

    # A page asks for it several times.
    @cached_property
    def verdict(self) -> Verdict:
        return self.study.verdict(self.numbers)

    @cached_property
    def shown(self) -> Shown:
        return self.study.show(self.numbers)

    @property
    def figures(self) -> list[Figure]:
        return [one for one in self.shown if not isinstance(one, Table)]

    @property
    def tables(self) -> list[Table]:
        return [one for one in self.shown if isinstance(one, Table)]

    @property
    def settings(self) -> str:
        """How it was made, in a few words."""
        # Quick results must not be taken for full ones.
        seeds = len(self.effort.seeds)
        kind = self.effort.choose("quick", "full")
        runs = "1 seed" if seeds == 1 else f"{seeds} seeds"
        return f"{kind}, {runs}, {self.seconds:.0f} s"

    # --- for people ---

    def html(self) -> str:
        """An HTML fragment, for a page that has `report.STYLE`."""
        # The verdict stands before the figures: a reader looks for it first.
        parts = [
            f'<article class="study" id="{escape(self.name)}"><h3>{escape(self.title)}</h3>',
            f'<p class="claim">{escape(self.study.claim)}</p>',
            f'<p class="faint">{escape(self.study.source)}</p>',
            f'<p class="verdict {self.mark}"><b>{escape(self.verdict.outcome)}</b> '
            f"{_prose(self.verdict.reason)}</p>",
            '<div class="charts">',
            *(_figure(figure) for figure in self.figures),
            *(_table(table) for table in self.tables),
            "</div>",
            f"<details><summary>How it was measured ({escape(self.settings)})</summary>"
            f"<p>{escape(self.measurement)}</p><p>Rule: {escape(self.study.rule)}</p>"
            f"<p><code>regard study {escape(self.name)}</code></p></details></article>",
        ]
        return "\n".join(parts)

    @property
    def mark(self) -> str:
        """The class of its outcome in the style."""
        return _OUTCOMES[self.verdict.outcome][0]

    def _repr_html_(self) -> str:
        return f'<div class="regard"><style>{STYLE}</style>{self.html()}</div>'

    def to_html(self, path: str | Path) -> None:
        """Writes a self-contained HTML page."""
        disk.write_file(Path(path), page([self]))

    def __str__(self) -> str:
        """Claim, tables and verdict, for a terminal."""
        wrapped = partial(textwrap.wrap, width=100)
        text = [self.title, "", *wrapped(f"Claim: {self.study.claim}")]
        text += wrapped(f"Source: {self.study.source}")
        text += wrapped(f"Measured: {self.measurement}")
        for table in self.tables:
            rows = [list(row) for row in (table.columns, *table.rows)]
            text += ["", table.title, *terminal.table(rows, width=MOST_COLUMNS)]
        text += ["", *wrapped(f"Rule: {self.study.rule}")]
        text += wrapped(f"Verdict: {self.verdict.outcome}. {self.verdict.reason}")
        return "\n".join([*text, f"({self.settings})"])

    # --- for programs ---

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "study": self.name,
            "title": self.title,
            "topic": self.topic,
            "claim": self.study.claim,
            "source": self.study.source,
            "measurement": self.measurement,
            "rule": self.study.rule,
            "outcome": self.verdict.outcome.value,
            "reason": self.verdict.reason,
            "quick": self.effort.quick,
            "seeds": list(self.effort.seeds),
            "seconds": round(self.seconds, 3),
            "fingerprint": self.fingerprint,
            "numbers": to_json(self.numbers),
        }

    def save(self, folder: Path) -> None:
        """Writes NAME.json, atomically."""
        disk.write_json(folder / f"{self.name}.json", self.to_dict())

    @classmethod
    def read(cls, file: Path) -> StudyResult:
        """A result that `save` has written."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            return cls(
                # Verdict, figures and tables follow from the numbers, as the code is today.
                listing.load(values["study"]),
                Effort(values["quick"], tuple(values["seeds"])),
                values["numbers"],
                values["seconds"],
                values["fingerprint"],
                values["measurement"],
            )
        except (KeyError, TypeError, json.JSONDecodeError):
            raise DataError(f"{file} is no result of a study", "delete it") from None


# ------------------------------------------------------------------ HTML


def _figure(figure: Figure) -> str:
    note = f'<p class="note">{escape(figure.note)}</p>' if figure.note else ""
    caption = f"<figcaption>{escape(figure.title)}</figcaption>"
    return f"<figure>{caption}{drawing.svg(figure.scene(), figure.title)}{note}</figure>"


def _table(table: Table) -> str:
    # A wide table takes a row of the grid for itself.
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    width = sum(widths) + 2 * len(widths)
    # Columns of sentences are broken into lines, numbers never.
    kinds = [' class="sentence"' if width > LONG_CELL else "" for width in widths]

    def row(tag: str, texts: Sequence[str]) -> str:
        cells = zip(texts, kinds, strict=True)
        return "".join(f"<{tag}{kind}>{_prose(text)}</{tag}>" for text, kind in cells)

    rows = "".join(f"<tr>{row('td', texts)}</tr>" for texts in table.rows)
    kind = "table wide" if width > MOST_LETTERS else "table"
    return (
        f'<figure class="{kind}"><figcaption>{escape(table.title)}</figcaption>'
        f'<div class="scroll"><table><thead><tr>{row("th", table.columns)}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></figure>"
    )


def _prose(text: str) -> str:
    """Text as HTML, with 1.5e-07 as a power of ten."""
    return _SCIENTIFIC.sub(_power, escape(text))


_SCIENTIFIC = re.compile(r"\b(\d(?:\.\d+)?)e([+-]?\d+)\b")


def _power(match: re.Match[str]) -> str:
    mantissa = match[1]
    exponent = int(match[2])
    if exponent == 0:
        return mantissa
    return f"{mantissa}·10<sup>{exponent}</sup>".replace("-", "−").removeprefix("1·")


def page(results: Sequence[StudyResult]) -> str:
    """A self-contained page: contents with the verdicts, then the studies by topic."""
    # Studies come in the order of their topics.
    topics = [(topic, list(group)) for topic, group in groupby(results, lambda one: one.topic)]
    # A page of one study has its title and no contents.
    title = results[0].title
    contents = []
    if len(results) > 1:
        title = "Claims of the literature, measured"
        contents = [_contents(topics)]
    parts = [
        f'<main><div class="top"><h1>{escape(title)}</h1>',
        # Light and dark change places without a script.
        '<label><input type="checkbox" id="theme"> other colours</label></div>',
        *contents,
    ]
    for topic, group in topics:
        parts.append(f'<h2 class="topic">{escape(topic)}</h2>')
        parts += [result.html() for result in group]
    body = "\n".join([*parts, "</main>"])
    return drawing.page(title, body, _STUDY_STYLE + _PAGE_STYLE)


def _contents(topics: Sequence[tuple[str, Sequence[StudyResult]]]) -> str:
    # How many claims hold, at a glance.
    counts = Counter(result.verdict.outcome for _, results in topics for result in results)
    listed = [f"{counts[outcome]} {plural}" for outcome, (_, plural) in _OUTCOMES.items()]
    parts = [
        f'<p class="faint">{counts.total()} studies: {", ".join(listed)}. Every verdict follows '
        "from the numbers by a rule, which stands under each study.</p>",
        '<nav class="contents">',
    ]
    for topic, results in topics:
        items = (
            f'<li><a href="#{escape(result.name)}">{escape(result.title)}</a>'
            f'<span class="mark {result.mark}">{escape(result.verdict.outcome)}</span></li>'
            for result in results
        )
        parts.append(f"<section><h2>{escape(topic)}</h2><ul>{''.join(items)}</ul></section>")
    return "".join([*parts, "</nav>"])
