"""regard lesson"""

from __future__ import annotations

from pathlib import Path

import click

from regard.cli.shared_options import FILE, MODEL_FOLDER, WholeNumber, flag, option

EXAMPLES = """\b
Examples:
  regard lesson                                     the lessons that come with the package
  regard lesson play pronouns                       in the browser, on the packaged model
  regard lesson play pronouns runs/builtin          on a model of yours
  regard lesson play mine.md                        a lesson of yours
  regard lesson export pronouns lecture.html        as one file, to show or to hand out
"""


@click.group(invoke_without_command=True, epilog=EXAMPLES)
@click.pass_context
def command(context: click.Context) -> None:
    """Lessons in the studio: a few steps, each a sentence or two and a view of a real model.

    Without a command, lists those that come with the package. A lesson is a Markdown file, and
    needs no programming: docs/guides/lecture.md shows how to write one.
    """
    if context.invoked_subcommand is not None:
        return
    from regard.studio.lesson import open_lesson, packaged

    for name in packaged():
        lesson = open_lesson(name)
        click.echo(f"{name:16} {lesson.title} ({len(lesson.steps)} steps)")
        click.echo(f"{'':16} {lesson.summary}")


@command.command()
@click.argument("lesson")
@click.argument("model", type=MODEL_FOLDER, required=False)
@option("--port", "port; 0 picks a free one", WholeNumber(0, 65535), default=8420)
@flag("--browser/--no-browser", "open the page in a browser", default=True)
def play(lesson: str, model: str | None, port: int, browser: bool) -> None:
    """Show a lesson in the studio: → and ← step, digits answer, F fills the screen."""
    from regard.studio.model_store import with_lesson
    from regard.studio.server import serve

    serve(with_lesson(lesson, model), "127.0.0.1", port, browser)


@command.command()
@click.argument("lesson")
@click.argument("out", type=FILE)
@click.argument("model", type=MODEL_FOLDER, required=False)
def export(lesson: str, out: str, model: str | None) -> None:
    """Write a lesson with its model as one HTML file that needs no server."""
    from regard.studio.model_store import with_lesson
    from regard.studio.offline.page import export as write

    write(with_lesson(lesson, model), Path(out))
    click.echo(out)
