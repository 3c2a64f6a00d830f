"""regard study"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.shared_options import (
    FILE,
    MODEL_FOLDER,
    SEEDS,
    WholeNumber,
    flag,
    json_option,
    json_text,
    option,
    print_result,
    refuse_other_flags,
)
from regard.cli.texts_and_files import PAGE, check_page
from regard.lab.study import listing
from regard.system.errors import SettingError

if TYPE_CHECKING:
    from rich.progress import Progress

    from regard.lab.study import StudyResult

EXAMPLES = """\b
Examples:
  regard study
  regard study scaling
  regard study scaling --quick --html scaling.html
  regard study scaling --seeds 10 --json
  regard study --all --quick --out runs/study
"""


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False)
@flag("--all every", "run all studies and write one report")
@flag("--quick", "about ten seconds per study instead of several minutes")
@option("--seeds", "number of seeds  [by study]", SEEDS)
@option("--processes", "number of models trained at a time", WholeNumber(1, 4096), default=1)
@option("--html page", "write a self-contained page", FILE, metavar="FILE")
@option("--out", "folder for the results  [runs/study with --all]", MODEL_FOLDER, metavar="DIR")
@json_option("print JSON (an array for the list and for --all)")
def command(name: str | None, every: bool, **options: Any) -> None:
    """Test a claim from the literature by experiment and report whether it holds.

    NAME is a study; without one, all studies are listed by topic. Each states its claim and source,
    measures it over several seeds, and reaches a verdict by a fixed rule. An interrupted --all run
    resumes where it stopped.
    """
    if name and every:
        raise SettingError("--all runs every study", "give a NAME or --all")
    check_page("--html", options["page"], PAGE)
    if options["out"] and Path(options["out"]).is_file():
        raise SettingError(f"{options['out']} is a file, not a folder", "choose another --out")
    if every:
        _run_all(**options)
        return
    if name:
        listing.check(name)
        _run_one(name, **options)
        return
    refuse_other_flags(("as_json",), "not used when listing studies", "give a NAME or --all")
    rows = [{"name": key, **line._asdict()} for key, line in listing.STUDIES.items()]
    print_result(options["as_json"], rows, _list())


def _list() -> list[str]:
    lines = []
    width = max(map(len, listing.STUDIES))
    for topic, studies in listing.TOPICS.items():
        titles = [f"  {name.ljust(width)}  {study.title}" for name, study in studies.items()]
        lines += [topic, *titles, ""]
    last = "Run one with `regard study NAME`, or all of them with `regard study --all`: one report."
    return [*lines, last]


def _run_one(name: str, page: str | None, out: str | None, as_json: bool, **how: Any) -> None:
    from regard.lab.study import run

    with _progress() as bar:
        task = bar.add_task(name, total=1.0, text="")

        def report(share: float, text: str) -> None:
            bar.update(task, completed=share, text=text)

        result = run(name, **how, progress=report)
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
        result.save(Path(out))
    if page:
        result.to_html(page)
        # Standard output holds the result alone, so that it can be piped.
        click.echo(f"page: {page}", err=True)
    print_result(as_json, result.to_dict(), [str(result)])


def _run_all(page: str | None, out: str | None, as_json: bool, **how: Any) -> None:
    from regard.lab.study import run_all

    folder = Path(out or "runs/study")
    names = list(listing.STUDIES)
    results: list[StudyResult] = []
    with _progress() as bar:
        overall = bar.add_task("all studies", total=float(len(names)), text="")

        def report(name: str, share: float, text: str) -> None:
            bar.update(overall, completed=len(results) + share, text=f"{name}: {text}")

        for result in run_all(folder, **how, progress=report):
            results.append(result)
            bar.update(overall, completed=float(len(results)))
            if not as_json:
                bar.console.print(f"{result.verdict.outcome:20} {result.name}", highlight=False)
    report_file = folder / "report.html"
    if page:
        from regard.system import disk

        disk.write_file(Path(page), report_file.read_text(encoding="utf-8"))
        report_file = Path(page)
    click.echo(f"report: {report_file}", err=True)
    if as_json:
        click.echo(json_text([result.to_dict() for result in results]))


def _progress() -> AbstractContextManager[Progress]:
    """A progress bar on standard error, so that tables and JSON can be piped."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
        console=Console(stderr=True),
        transient=True,  # it vanishes when done: the table that follows is the output
    )
