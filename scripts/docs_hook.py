"""What mkdocs generates while it builds the site.

`<!-- insert … -->` in a page is replaced by what the code itself says: the source of a function,
the settings of a recipe, the help of the commands, a file of the repository, a chart of a table.
The blocks of a page with `execute: true` in its front matter are executed, and their outputs shown.
Notebooks, studies and modules of the reference become pages; formulas in TeX become MathML.
"""

from __future__ import annotations

import ast
import functools
import html
import importlib
import inspect
import itertools
import json
import pkgutil
import re
import sys
import tempfile
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# mkdocs imports this file by its path.
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

import docs_pages  # noqa: E402

if TYPE_CHECKING:
    from regard.lab.study.report import StudyResult

STUDIES = ROOT / "docs" / "studies"
_INSERT = re.compile(r"^<!-- insert (\w+) ?(.*?) -->$", re.M)


# ------------------------------------------------------------------ events of mkdocs


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts generated pages into the menu, below the page that lists them."""
    for entry in config.nav or []:
        if "Studies" in entry:
            pages = [{title: f"studies/{name}.md"} for name, title in _study_titles().items()]
            entry["Studies"] = ["studies.md", *pages]
        for group in entry.get("Reference", []):
            for package in PACKAGES:
                if package in group:
                    name = package.rpartition(".")[2]
                    pages = [
                        {module: f"reference/{name}/{module}.md"} for module in modules(package)
                    ]
                    group[package] = [f"reference/{name}.md", *pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each notebook, study and module of the reference, and the live demo."""
    for path in sorted((Path(config.docs_dir) / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, name, content=notebook_page(path)))
    for result in _study_results():
        name = f"studies/{result.name}.md"
        files.append(File.generated(config, name, content=study_page(result)))
    for package in PACKAGES:
        for module in modules(package):
            name = f"reference/{package.rpartition('.')[2]}/{module}.md"
            content = f"---\nsearch: {{boost: 0.4}}\n---\n\n::: {package}.{module}\n"
            files.append(File.generated(config, name, content=content))
    files.append(File.generated(config, "assets/lecture.html", content=live_demo()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = _INSERT.sub(lambda match: INSERTS[match[1]](match[2]), markdown)
    if page.file.src_uri.startswith("log/"):
        page.meta["search"] = {"boost": 0.1}  # where things are explained comes first
    if page.meta.get("execute"):
        return with_outputs(markdown, page.file.src_uri)
    return markdown


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return _FORMULA.sub(_mathml, content)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Names the dialog of the search, which the theme leaves without a name."""
    search = 'class="md-search" data-md-component'
    return output.replace(search, f'aria-label="Search" {search}')


# ------------------------------------------------------------------ formulas

# What `pymdownx.arithmatex` makes of $…$ and $$…$$.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def _mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    display = "block" if match[1] == "div" else "inline"
    return convert(html.unescape(match[2]), display=display)


# ------------------------------------------------------------------ generated pages

# Their modules have a page each in the reference.
PACKAGES = ("regard.spec", "regard.look")


def modules(package: str) -> list[str]:
    """The public modules of a package that have a docstring with more than private names."""
    path = importlib.import_module(package).__path__
    return [one.name for one in pkgutil.iter_modules(path) if not one.ispkg]


def live_demo() -> str:
    """The studio with the packaged model in one HTML file, which the start page shows."""
    from regard.studio.model_store import DEMO, ModelStore
    from regard.studio.offline.page import page

    return page(ModelStore([DEMO]))


# ------------------------------------------------------------------ executed pages


def with_outputs(markdown: str, name: str) -> str:
    """The page with the output of each block behind it."""
    parts = []
    start = 0
    with tempfile.TemporaryDirectory() as folder:
        execution = docs_pages.Execution(name, Path(folder))
        for block in docs_pages.blocks(markdown):
            output = execution.run(block)
            parts.append(markdown[start : block.end])
            start = block.end
            if block.shown:
                parts.append(_output(output))
    return "".join([*parts, markdown[start:]])


def _output(output: docs_pages.Output) -> str:
    parts = []
    if output.text.strip():
        # Raw HTML, whose lines must not be read as Markdown.
        text = html.escape(output.text.rstrip()).replace("\n", "&#10;")
        parts.append(f'<div class="output"><pre>{text}</pre></div>')
    if output.html:
        content = _on_one_line(output.html)
        parts.append(f'<div class="output">{content}</div>')
    return "".join(f"\n\n{part}\n" for part in parts)


def _on_one_line(fragment: str) -> str:
    """HTML without line breaks, behind which Markdown would read on.

    In a style sheet a character reference is no line break but two letters of a selector, which
    would end the rules: there it is a space.
    """
    styles = re.compile("<style>.*?</style>", re.DOTALL)
    fragment = styles.sub(lambda match: match[0].replace("\n", " "), fragment)
    return fragment.replace("\n", "&#10;")


def notebook_page(path: Path) -> str:
    """The cells of a notebook as a page that is executed."""
    parts = ["---\nexecute: true\n---\n"]
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    parts.append(f"[Download this notebook]({path.name}). To run it: `pip install jupyter`.")
    return "\n\n".join(parts)


# ------------------------------------------------------------------ inserts


def insert_source(name: str) -> str:
    """The source of a function or class, `regard.core.block.Block.forward`, from its file."""
    module = name
    while True:
        module = module.rpartition(".")[0]
        try:
            value: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            continue
    for part in name.removeprefix(module + ".").split("."):
        value = getattr(value, part)
    code = textwrap.dedent(inspect.getsource(value)).rstrip()
    file = Path(inspect.getfile(value)).relative_to(ROOT)
    return f'```py title="{file}"\n{code}\n```'


def insert_commands(_: str) -> str:
    """The help of every command, as it is printed."""
    import click

    from regard.cli import VERBS, regard

    def write(command: click.Command, path: list[str], context: click.Context) -> Iterator[str]:
        inner = click.Context(
            command,
            info_name=path[-1],
            parent=context,
            terminal_width=88,
            help_option_names=["-h", "--help"],
        )
        yield f"{'#' * len(path)} {' '.join(path)}\n\n```text\n{command.get_help(inner)}\n```"
        if isinstance(command, click.Group):
            for name in command.list_commands(inner):
                child = command.get_command(inner, name)
                assert child is not None
                yield from write(child, [*path, name], inner)

    context = click.Context(regard, info_name="regard", terminal_width=88)
    parts: list[str] = []
    for name in VERBS:
        command = regard.get_command(context, name)
        assert command is not None
        parts += write(command, ["regard", name], context)
    return "\n\n".join(parts)


def insert_recipe(_: str) -> str:
    """Every key of a recipe by section: its type, default and meaning."""
    from regard.training.recipe import schema

    parts = []
    for name, section in schema.SECTIONS.items():
        rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
        for key, field in section.model_fields.items():
            meaning = (field.description or "").replace("|", "\\|").replace("<", "&lt;")
            rows.append(
                f"| `{key}` | {_type(field.annotation)} | {_value(field.default)} | {meaning} |"
            )
        text = inspect.cleandoc(section.__doc__ or "")
        table = "\n".join(rows)
        # The class lets the style sheet turn rows into paragraphs on a phone.
        parts.append(f'## [{name}]\n\n{text}\n\n<div class="keys" markdown>\n\n{table}\n\n</div>')
    return "\n\n".join(parts)


def _type(annotation: Any) -> str:
    """A type as one says it."""
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{option}`" for option in options)
    if typing.get_origin(annotation) is typing.Annotated:
        return _type(options[0])  # a number with its limits
    named = [option for option in options if option is not type(None)]
    if typing.get_origin(annotation) is tuple:
        return "list"
    if named and named != [...]:
        return " or ".join(_type(option) for option in named)
    return {int: "integer", float: "number", str: "text", bool: "true, false"}.get(
        annotation, "list"
    )


def _value(value: Any) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


def insert_recipes(_: str) -> str:
    """The recipes of the package, with what their first lines say."""
    rows = ["| recipe | what it is |", "|---|---|"]
    for path in sorted((ROOT / "src" / "regard" / "training" / "recipes").glob("*.toml")):
        comment = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                break
            comment.append(line.lstrip("# "))
        rows.append(f"| `{path.stem}` | {' '.join(comment)} |")
    return "\n".join(rows)


def insert_presets(_: str) -> str:
    """All presets, as `regard show` lists them."""
    from regard.lab.show import listing

    return "```text\n" + "\n".join(listing.lines()) + "\n```"


def insert_file(name: str) -> str:
    """A file of the repository; links to files that the site does not have become plain text."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]+\)", r"\1", text)


def insert_section(name: str) -> str:
    """A file of the repository as part of a page: without its title, headings one level lower."""
    text = insert_file(name).split("\n", 1)[1]
    return re.sub(r"^(#+ )", r"#\1", text, flags=re.M)


def _study_titles() -> dict[str, str]:
    from regard.lab.study import listing

    return {name: line.title for name, line in listing.STUDIES.items()}


@functools.cache
def _study_results() -> list[StudyResult]:
    """Results of `regard study --all`: the numbers; all else follows from them as the code is."""
    from regard.lab.study.report import StudyResult

    return [StudyResult.read(STUDIES / f"{name}.json") for name in _study_titles()]


def _study_style() -> str:
    from regard.lab.study import report
    from regard.look import drawing

    # The theme's switch says which colours are right, and not the reader's system alone.
    schemes = "".join(
        f"[data-md-color-scheme={scheme}] .regard {{ {colours} }}\n"
        for scheme, colours in (("default", drawing.LIGHT), ("slate", drawing.DARK))
    )
    return _on_one_line(f"<style>{report.STYLE}{schemes}</style>")


def study_page(result: StudyResult) -> str:
    """A page for one study: claim, verdict, figures, and how it was measured."""
    fragment = _on_one_line(result.html())
    return (
        f"# {result.title}\n\n{_study_style()}\n\n"
        f'<div class="regard one">{fragment}</div>\n\n'
        "[All studies](../studies.md) · [Run them yourself](../guides/studies.md)\n"
    )


def insert_studies(_: str) -> str:
    """A card for each study, by topic: its title, its verdict and its first figure."""
    from regard.look import drawing

    results = _study_results()
    minutes = sum(result.seconds for result in results) / 60
    parts = [f"{len(results)} studies, {minutes:.0f} minutes of one core in all.", _study_style()]
    for topic, group in itertools.groupby(results, lambda result: result.topic):
        cards = []
        for result in group:
            figure = next(iter(result.figures), None)
            picture = drawing.svg(figure.scene(), figure.title) if figure else ""
            cards.append(
                f'<a class="card" href="studies/{result.name}.html">'
                f'<span class="thumbnail" aria-hidden="true">{picture}</span>'
                f"<b>{html.escape(result.title)}</b>"
                f'<span class="chip {result.mark}">{html.escape(result.verdict.outcome)}</span></a>'
            )
        fragment = _on_one_line("".join(cards))
        parts.append(f'## {topic}\n\n<div class="regard cards">{fragment}</div>')
    return "\n\n".join(parts)


def insert_modules(package: str) -> str:
    """The modules of a package, with a link to the page of each and its first sentence."""
    rows = ["| module | |", "|---|---|"]
    for name in modules(package):
        docstring = inspect.getdoc(importlib.import_module(f"{package}.{name}")) or ""
        sentence = " ".join(docstring.split("\n\n")[0].split()).replace("|", "&#124;")
        rows.append(f"| [`{name}`]({package.rpartition('.')[2]}/{name}.md) | {sentence} |")
    return "\n".join(rows)


def insert_folded(name: str) -> str:
    """The source of a function or class, folded under its name."""
    code = textwrap.indent(insert_source(name), "    ")
    return f'??? note "In the code: `{name}`"\n\n{code}'


def insert_chart(arguments: str) -> str:
    """A bar chart of tables in bench/RESULTS.md: TITLE | COLUMN | HEADING | …

    The numbers stand in the tables alone. With "÷ peer" behind the column, those of a table are
    divided by that of its fastest peer.
    """
    from regard.look import drawing

    title, column, *headings = (part.strip() for part in arguments.split("|"))
    name = column.removesuffix("÷ peer").strip()
    tables = [_measured(heading, name) for heading in headings]
    if name != column:
        for table in tables:
            fastest = max(value for row, value in table.items() if not row.startswith("regard"))
            table.update({row: value / fastest for row, value in table.items()})
    contenders = list(dict.fromkeys(row for table in tables for row in table))
    series = [
        drawing.Bars(row, [[table[row]] if row in table else [] for table in tables])
        for row in contenders
    ]
    chart = drawing.BarChart(title, drawing.Axis(column), headings, series)
    figure = _on_one_line(drawing.figure(chart.scene(), title))
    return f'<div class="output"><b>{html.escape(title)}</b>{figure}</div>'


def _measured(heading: str, column: str) -> dict[str, float]:
    """The numbers of a column, by row, in the section of bench/RESULTS.md that begins so."""
    text = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    (section,) = (part for part in text.split("\n## ") if part.startswith(heading))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    at = rows[0].index(column)
    numbers = {row[0]: re.sub(r"[^\d.]", "", row[at]) for row in rows[2:]}
    return {row: float(number) for row, number in numbers.items() if number}


def insert_map(_: str) -> str:
    """Every file of the package, room by room, with the first sentence of its docstring."""
    source = ROOT / "src" / "regard"
    parts = []
    for folder in sorted({path.parent for path in source.rglob("*.py")}):
        rows = []
        for path in sorted(folder.glob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            sentence = " ".join(docstring.split("\n\n")[0].split())
            if path.name == "__init__.py":
                parts.append(f"## `{folder.relative_to(source.parent)}/`\n\n{sentence}\n")
            else:
                rows.append(f"| `{path.name}` | {sentence.replace('|', '&#124;')} |")
        parts.append("\n".join(["| file | |", "|---|---|", *rows]) if rows else "")
    return "\n\n".join(parts)


INSERTS: dict[str, Callable[[str], str]] = {
    "chart": insert_chart,
    "commands": insert_commands,
    "file": insert_file,
    "folded": insert_folded,
    "map": insert_map,
    "modules": insert_modules,
    "presets": insert_presets,
    "recipe": insert_recipe,
    "recipes": insert_recipes,
    "section": insert_section,
    "source": insert_source,
    "studies": insert_studies,
}
