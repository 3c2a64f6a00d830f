"""regard doctor"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regard.cli.shared_options import (
    FILE,
    MODEL_FOLDER,
    RECIPE,
    Number,
    json_option,
    json_text,
    option,
    refuse_flags,
    refuse_other_flags,
)
from regard.cli.texts_and_files import PAGE, check_page

EXAMPLES = """\b
Examples:
  regard doctor                          the installation
  regard doctor runs/mine                a run, finished or in progress, and its data
  regard doctor my.toml                  a recipe, before training
  regard doctor runs/mine --html report.html
  regard doctor runs/mine --json | jq .findings[0].check
"""


@click.command(epilog=EXAMPLES)
@click.argument("run", type=RECIPE, required=False)
@json_option("print JSON (an array for the installation)")
@option(
    "--data-dir", "folder with the recipe's data files  [$REGARD_DATA]", MODEL_FOLDER, metavar="DIR"
)
@option("--html", "write the report as an HTML page, with loss curves", FILE, metavar="FILE")
@option(
    "--trial-seconds",
    "time for short trials of other settings if a run has learned little; 0 disables them",
    Number(),
    default=60.0,
)
def command(
    run: str | None, as_json: bool, data_dir: str | None, html: str | None, trial_seconds: float
) -> None:
    """Diagnose the installation, or a RUN folder or RECIPE with its data.

    Each finding comes with its evidence, cause, suggested fix and confidence, most likely cause
    first. The same checks also run during training. The exit code is 1 if there are any findings.
    For runs with custom parts, use Python: regard.doctor.examine(RUN, objective=…, kinds=…).
    """
    if run is None:
        refuse_other_flags(("as_json",), "only used with a run or a recipe", "give a RUN")
        _installation(as_json)
        return
    if Path(run).is_dir():
        refuse_flags(("data_dir",), "a run folder contains its data")
    check_page("--html", html, PAGE, [run])
    # Imported late: help does not wait for torch.
    from regard.lab.doctor import examine
    from regard.lab.doctor.report_page import text_lines, write_page

    report = examine(run, data_root=data_dir, trial_seconds=trial_seconds)
    if html is not None:
        write_page(report, Path(html))
    click.echo(report.to_json() if as_json else "\n".join(text_lines(report)))
    sys.exit(not report.is_healthy)


def _installation(as_json: bool) -> None:
    from regard.lab.doctor.installation import check_installation

    checks = []
    for check in check_installation():
        checks.append(check)
        if as_json:
            continue
        mark = {"good": "  ", "warning": "! ", "bad": "✗ "}[check.state]
        click.echo(f"{mark}{check.name:14} {check.value}")
        if check.change:
            click.echo(f"{'':17}→ {check.change}")
    if as_json:
        click.echo(json_text([check.to_dict() for check in checks]))
    sys.exit(any(check.state == "bad" for check in checks))
