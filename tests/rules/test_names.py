"""Names that are banned, because they say nothing of the thing they name."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "regard"

# Files without a subject, where everything ends up.
BANNED_FILES = ("common", "util", "utils", "helper", "helpers", "misc", "tools", "stuff")

# Functions, classes, attributes and modules named by a bare participle; may only become fewer.
# Variables and arguments are counted by scripts/readability.
PARTICIPLE_DEFINITIONS = 35


@functools.cache
def participles() -> tuple[str, ...]:
    """The list that scripts/readability counts."""
    command = [sys.executable, str(ROOT / "scripts" / "readability"), "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(json.loads(printed)["banned_names"])


def defined_name(node: ast.AST) -> str:
    """The name of a function or class, or of an attribute that is assigned."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return ""


def banned_definitions(source: str) -> list[str]:
    banned = participles()
    names = []
    for node in ast.walk(ast.parse(source)):
        name = defined_name(node)
        if name.strip("_").lower() in banned:
            names.append(f"line {getattr(node, 'lineno', 0)}: {name}")
    return names


def test_no_definition_is_a_bare_participle() -> None:
    names = []
    for path in sorted(SOURCE.rglob("*.py")):
        for name in banned_definitions(path.read_text(encoding="utf-8")):
            names.append(f"{path.relative_to(SOURCE)} {name}")
    assert len(names) <= PARTICIPLE_DEFINITIONS, "\n".join(names)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def found(): ...", 1),
        ("def _held(): ...", 1),
        ("class Held: ...", 1),
        ("class A:\n    def f(self):\n        self.kept = 1", 1),
        ("def founding(): ...", 0),
        ("x = a.kept", 0),
    ],
)
def test_which_definitions_are_banned(source: str, count: int) -> None:
    assert len(banned_definitions(source)) == count


def test_no_file_is_named_after_nothing() -> None:
    names = []
    for folder in ("src", "tests", "bench", "examples", "scripts"):
        for path in (ROOT / folder).rglob("*"):
            if path.stem in (*BANNED_FILES, *participles()):
                names.append(str(path.relative_to(ROOT)))
    assert names == []
