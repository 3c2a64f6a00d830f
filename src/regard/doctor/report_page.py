"""The report of an examination as text for a terminal, and as a self-contained HTML page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from regard import disk
from regard.doctor.examination import Report
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.run_log import RunLog, finite

WIDTH = 96
# The drawing of the losses.
_CHART_WIDTH = 720
_CHART_HEIGHT = 220
_MARGIN = 40

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --card: #f5f5f8; --line: #0072b2;
  --other: #d55e00; --faint: #6b6b76; --edge: #dcdce4; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #ececf1; --paper: #17171b; --card: #212127;
  --line: #56b4e9; --other: #ff9b4a; --faint: #a0a0ac; --edge: #3a3a44; }} }}
body {{ margin: 2rem auto; padding: 0 1rem; max-width: 48rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.4rem; }} h2 {{ font-size: 1.05rem; margin: 0 0 .4rem; }}
section {{ background: var(--card); border: 1px solid var(--edge); border-radius: 10px;
  padding: 1rem 1.2rem; margin: 1rem 0; }}
section.first {{ border-left: 6px solid var(--other); }}
dl {{ display: grid; grid-template-columns: 6.5rem 1fr; gap: .3rem .8rem; margin: 0; }}
dt {{ color: var(--faint); }} dd {{ margin: 0; }}
figure {{ margin: 0; overflow-x: auto; }}
svg {{ width: 100%; min-width: 32rem; height: auto; }}
svg text {{ fill: var(--faint); font-size: 11px; }}
.faint {{ color: var(--faint); }}
@media (max-width: 32rem) {{ dl {{ grid-template-columns: 1fr; }} dt {{ margin-top: .4rem; }} }}
</style></head><body>{body}</body></html>
"""


# --- text -----------------------------------------------------------------------------------------


def text_lines(report: Report) -> Iterator[str]:
    """The report for a terminal."""
    if report.is_healthy:
        yield f"{report.name}: no findings"
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
    disk.write_file(path, _PAGE.format(title=escape(title), body=body))


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
    highest = max([*finite(log.losses), *finite(log.validation_losses)])
    last = max([1, *log.steps, *log.validation_steps])

    def x(step: int) -> float:
        return _MARGIN + step / last * (_CHART_WIDTH - 2 * _MARGIN)

    def y(loss: float) -> float:
        return _CHART_HEIGHT - _MARGIN / 2 - loss / highest * (_CHART_HEIGHT - _MARGIN)

    def curve(steps: Sequence[int], losses: Sequence[float], colour: str) -> str:
        pairs = zip(steps, losses, strict=True)
        points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in pairs if finite([v]))
        return f'<polyline points="{points}" fill="none" stroke="var({colour})" stroke-width="2"/>'

    marks = "".join(
        f'<line x1="{x(f.step):.1f}" x2="{x(f.step):.1f}" y1="10" y2="{_CHART_HEIGHT - 20}" '
        f'stroke="var(--faint)" stroke-dasharray="4 4"><title>{escape(f.check)}</title></line>'
        for f in findings
        if f.step is not None
    )
    return (
        f'<figure><svg viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" role="img" aria-label="losses">'
        f'<text x="4" y="{y(highest) + 4:.0f}">{highest:.2f}</text>'
        f'<text x="4" y="{y(0) + 4:.0f}">0</text>'
        f'<text x="{x(last):.0f}" y="{_CHART_HEIGHT - 4}" text-anchor="end">step {last:,}</text>'
        f"{curve(log.steps, log.losses, '--line')}"
        f"{curve(log.validation_steps, log.validation_losses, '--other')}{marks}</svg></figure>"
        '<p class="faint">blue: training, orange: validation, nats per label</p>'
    )
