"""The report of an examination as text for a terminal, and as a self-contained HTML page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from regard.lab.doctor.examination import Report
from regard.look import drawing
from regard.system import disk
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.run_log import RunLog, finite

WIDTH = 96
_STYLE = """
body { margin: 2rem auto; padding: 0 1rem; max-width: 48rem; }
.regard h1 { font-size: 1.4rem; } .regard h2 { font-size: 1.05rem; margin: 0 0 .4rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.2rem; margin: 1rem 0; }
section.first { border-left: 6px solid var(--warm); }
dl { display: grid; grid-template-columns: 6.5rem 1fr; gap: .3rem .8rem; margin: 0; }
dt { color: var(--faint); } dd { margin: 0; }
@media (max-width: 32rem) { dl { grid-template-columns: 1fr; } dt { margin-top: .4rem; } }
"""


# --- text -----------------------------------------------------------------------------------------


def text_lines(report: Report) -> Iterator[str]:
    """The report for a terminal."""
    if report.is_healthy:
        yield f"{report.name}: no findings" + " in what could be examined" * bool(report.problems)
    else:
        count = len(report.findings)
        yield f"{report.name}: {count} finding{'s' if count > 1 else ''}, most probable cause first"
    for number, finding in enumerate(report.findings, 1):
        yield ""
        yield f"{number}. {finding.check}  ({100 * finding.confidence:.0f} % confidence)"
        for word, value in _rows(finding):
            yield textwrap.fill(
                value,
                WIDTH,
                initial_indent=f"   {word:10}",
                subsequent_indent=" " * 13,
                break_on_hyphens=False,
            )
    if report.problems:
        yield ""
        yield "not examined:"
        yield from (f"   {problem}" for problem in report.problems)


def _rows(finding: Finding) -> list[tuple[str, str]]:
    rows = [
        ("evidence", finding.evidence),
        ("cause", finding.cause),
        ("change", finding.change),
    ]
    if finding.step is not None:
        rows.insert(0, ("step", f"{finding.step:,}"))
    return rows


# --- HTML -----------------------------------------------------------------------------------------


def write_page(report: Report, path: Path) -> None:
    title = f"regard doctor: {report.name}"
    body = "".join(_page_parts(report))
    disk.write_file(path, drawing.page(title, body, _STYLE))


def _page_parts(report: Report) -> Iterator[str]:
    yield f"<h1>{escape(report.name)}</h1>"
    if report.is_healthy:
        yield "<section><h2>No findings</h2><p>All checks passed.</p></section>"
    for number, finding in enumerate(report.findings):
        yield _finding_section(finding, is_first=number == 0)
    if report.log is not None and len(finite(report.log.losses)) > 1:
        yield f"<section><h2>Losses</h2>{_chart(report.log, report.findings)}</section>"
    if report.problems:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in report.problems)
        yield f"<section><h2>Not examined</h2><ul>{items}</ul></section>"


def _finding_section(finding: Finding, is_first: bool) -> str:
    rows = [*_rows(finding), ("confidence", f"{100 * finding.confidence:.0f} %")]
    items = "".join(f"<dt>{escape(word)}</dt><dd>{escape(value)}</dd>" for word, value in rows)
    mark = ' class="first"' if is_first else ""
    return f"<section{mark}><h2>{escape(finding.check)}</h2><dl>{items}</dl></section>"


def _chart(log: RunLog, findings: Sequence[Finding]) -> str:
    """Training and validation losses over steps, with a line where a finding begins."""
    highest = max(finite([*log.losses, *log.validation_losses]))
    chart = drawing.Chart(
        "losses",
        drawing.Axis("step", low=0.0),
        drawing.Axis("nats per label", low=0.0),
        [
            drawing.Series("training", log.steps, log.losses),
            drawing.Series("validation", log.validation_steps, log.validation_losses),
            *(
                drawing.Series(f.check, [f.step, f.step], [0.0, highest], style="dashed")
                for f in findings
                if f.step is not None
            ),
        ],
    )
    return drawing.figure(chart.scene(), chart.title)
