"""The pages of the documentation: their blocks of code, and how these are executed.

The blocks of a page share one namespace and one folder. `python` blocks are executed in this
process, and so are the `regard` lines of `sh` blocks, because a new process would spend its time on
imports; other lines go to bash. A block of data with a title is a file. What stands in an HTML
comment that begins with `run` is executed too, and not shown.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(
    r"^(?P<indent>[ ]*)```(?P<language>\w+)(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.M | re.S,
)
_COMMENT = re.compile(r"<!-- run (?P<language>python|sh)\n(?P<code>.*?)-->", re.S)
_TITLE = re.compile(r'title="([^"]+)"')
# One command with perhaps a line of text as its input, or files at both ends.
_REGARD = re.compile(
    r"^(?:(?:echo|printf) (?P<text>.+) \| )?regard (?P<arguments>.*?)"
    r"(?: < (?P<input>\S+))?(?: > (?P<output>\S+))?$"
)
FILES = ("text", "json", "toml")
# What is put behind the commands of a page, so that all of them together take seconds. A page shows
# what a user would type; the last of two equal flags counts.
_FEW_EXAMPLES = "--builtin-lines 100 --test-lines 8 --warmup-steps 1 --beam 1"
SMALL = {
    "compare": f"--steps 2 --validate-every 2 {_FEW_EXAMPLES}",
    "data": "--lines 40",
    "finetune": "--epochs 0.5",
    "generate": "--max-new-tokens 8",
    "train": f"--steps 2 --validate-every 2 --samples 0 {_FEW_EXAMPLES}",
    # An untrained model does not end its sentences: FACTOR,EXTRA of the source length.
    "translate": "--max-length 1,2",
    "evaluate": "--max-length 1,2",
    "tune": "--builtin-lines 100 --layers 1 --d-model 32 --batch-tokens 256",
}


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its text, and where it stands in the page."""

    language: str
    code: str
    line: int
    end: int  # the character behind it
    title: str | None = None
    shown: bool = True


@dataclass(frozen=True)
class Output:
    """What a block printed, and how a notebook would show the value of its last expression."""

    text: str = ""
    html: str = ""


def blocks(markdown: str) -> list[Block]:
    """The blocks of a page, in its order."""
    found = []
    for match in _FENCE.finditer(markdown):
        title = _TITLE.search(match["options"])
        name = title[1] if title is not None else None
        line = markdown.count("\n", 0, match.start("code"))
        code = textwrap.dedent(match["code"])
        found.append(Block(match["language"], code, line, match.end(), name))
    for match in _COMMENT.finditer(markdown):
        line = markdown.count("\n", 0, match.start("code"))
        found.append(Block(match["language"], match["code"], line, match.end(), shown=False))
    return sorted(found, key=lambda block: block.end)


class PageError(Exception):
    """A block that failed: where it stands, and why."""


class Execution:
    """Executes the blocks of one page in a folder."""

    def __init__(self, name: str, folder: Path, *, in_process: bool = True) -> None:
        self.name = name
        self.folder = folder
        self.in_process = in_process  # whether `regard` lines are executed in this process
        # As in a notebook, code runs as the main program.
        self.namespace: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> Output:
        """Executes a block; one of data with a title is written as a file."""
        try:
            with contextlib.chdir(self.folder):
                if block.language == "python":
                    return self._python(block)
                if block.language == "sh":
                    return Output("".join(self._line(line) for line in command_lines(block.code)))
                if block.title is not None and block.language in FILES:
                    Path(block.title).write_text(block.code, encoding="utf-8")
                return Output()
        except Exception as error:
            place = f"{self.name}, line {block.line + 1}"
            raise PageError(f"{place}: {type(error).__name__}: {error}") from error

    def _python(self, block: Block) -> Output:
        tree = ast.parse(block.code)
        ast.increment_lineno(tree, block.line)  # so that a traceback names the line of the page
        last = tree.body[-1] if tree.body else None
        value: Any = None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if isinstance(last, ast.Expr):
                tree.body.pop()
            exec(compile(tree, self.name, "exec"), self.namespace)
            if isinstance(last, ast.Expr):
                expression = compile(ast.Expression(last.value), self.name, "eval")
                value = eval(expression, self.namespace)
        show = getattr(value, "_repr_html_", None)
        if show is not None:
            return Output(printed.getvalue(), show())
        text = "" if value is None else f"{value!r}\n"
        return Output(printed.getvalue() + text)

    # ------------------------------------------------------------------ shell

    def _line(self, line: str) -> str:
        line = shortened(line)
        match = _REGARD.match(line)
        if self.in_process and match is not None and "|" not in match["arguments"]:
            return self._command(match)
        # The scripts of this environment come first: `regard` and `python` are its own.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{line}\n{done.stderr[-3000:]}")
        return done.stdout

    def _command(self, match: re.Match[str]) -> str:
        # Imported late: a page without commands needs no command line.
        from click.testing import CliRunner

        from regard.cli import regard

        text = " ".join(shlex.split(match["text"])) + "\n" if match["text"] else None
        if match["input"]:
            text = Path(match["input"]).read_text(encoding="utf-8")
        arguments = shlex.split(match["arguments"], comments=True)
        result = CliRunner().invoke(regard, arguments, input=text)
        if result.exit_code != 0:
            reason = f"{result.exception}\n{result.stderr[-3000:]}"
            raise RuntimeError(f"{match[0]}\n{reason}") from result.exception
        if match["output"]:
            Path(match["output"]).write_bytes(result.stdout_bytes)
            return ""
        return result.stdout


def command_lines(code: str) -> Iterator[str]:
    """The lines of a shell block, without comments; a backslash continues a line."""
    for line in code.replace("\\\n", " ").splitlines():
        # Two spaces before the sign: a text in quotes may have one with a single space.
        command = re.split(r"(?:^|  )#", line)[0].strip()
        if command:
            yield command


def shortened(line: str) -> str:
    """A command with the settings of `SMALL` behind its own ones."""
    match = re.search(r"(?:^|\| )regard (\w+)", line)
    small = SMALL.get(match[1]) if match is not None else None
    if small is None or "--resume" in line or "--help" in line:
        return line
    if " evaluate " in line and "--pairs" not in line and "--source" not in line:
        return line  # only translations are decoded
    command, files = re.match(r"^(.*?)((?: [<>] \S+)*)$", line).groups()
    return f"{command} {small}{files}"


def execute(path: Path, folder: Path, *, in_process: bool = True) -> list[tuple[Block, Output]]:
    """Executes all blocks of a page."""
    execution = Execution(path.name, folder, in_process=in_process)
    return [(block, execution.run(block)) for block in blocks(path.read_text(encoding="utf-8"))]
