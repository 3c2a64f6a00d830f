"""The graph of imports inside a package: which module imports which, and when.

Read from the syntax trees, so that imports inside functions and under TYPE_CHECKING are edges too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class When(Enum):
    """When Python executes an import statement."""

    IMPORT = "at import time"
    CALL = "inside a function"
    NEVER = "under TYPE_CHECKING"


@dataclass(frozen=True)
class Edge:
    """One module of the package imports another, or a name out of it."""

    importer: str
    imported: str
    name: str  # `Norm` in `from regard.core.norm import Norm`; empty where a module is imported
    when: When
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}: imports {self.imported} {self.when.value}"


def module_name(path: Path, package: Path) -> str:
    """The dotted name of a file below the folder `package`: core/norm.py is regard.core.norm."""
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def modules(package: Path) -> dict[str, Path]:
    """All modules of a package by their dotted names; a package is the name of its __init__.py."""
    return {module_name(path, package): path for path in sorted(package.rglob("*.py"))}


def import_edges(package: Path) -> list[Edge]:
    """Every import of one module of the package by another."""
    files = modules(package)
    edges = []
    for name, path in files.items():
        edges += module_edges(path.read_text(encoding="utf-8"), name, path, set(files))
    return edges


def module_edges(source: str, importer: str, path: Path, names: set[str]) -> list[Edge]:
    """The edges of one module, whose text is `source`. `names` are the modules of the package."""
    edges = []
    for node, when in _import_statements(ast.parse(source), When.IMPORT):
        for imported, name in _imported(node, importer, path, names):
            edges.append(Edge(importer, imported, name, when, node.lineno))
    return edges


def external_imports(path: Path) -> set[str]:
    """Top-level names of everything that a file imports absolutely, at any time."""
    roots = set()
    for node, _ in _import_statements(ast.parse(path.read_text(encoding="utf-8")), When.IMPORT):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif node.level == 0 and node.module:
            roots.add(node.module.split(".")[0])
    return roots


def find_cycle(edges: list[Edge]) -> list[str]:
    """The modules of one cycle, the first repeated at the end; empty if there is none."""
    graph: dict[str, list[str]] = {}
    for edge in edges:
        graph.setdefault(edge.importer, []).append(edge.imported)
    finished: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in finished:
            return []
        for target in graph.get(name, ()):
            cycle = visit(target, [*trail, name])
            if cycle:
                return cycle
        finished.add(name)
        return []

    for name in list(graph):
        cycle = visit(name, [])
        if cycle:
            return cycle
    return []


def _import_statements(
    node: ast.AST, when: When
) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    """All import statements below a node, and when each of them is executed."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, when
    elif isinstance(node, ast.If) and _asks_for_type_checking(node.test):
        for statement in node.body:
            yield from _import_statements(statement, When.NEVER)
        for statement in node.orelse:
            yield from _import_statements(statement, when)
    else:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and when is When.IMPORT:
            when = When.CALL
        for child in ast.iter_child_nodes(node):
            yield from _import_statements(child, when)


def _asks_for_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _imported(
    node: ast.Import | ast.ImportFrom, importer: str, path: Path, names: set[str]
) -> list[tuple[str, str]]:
    """(module of the package, name taken out of it) for everything that one statement imports."""
    if isinstance(node, ast.Import):
        targets = [(alias.name, "") for alias in node.names]
    else:
        base = _absolute_base(node, importer, path)
        targets = []
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            # `from regard.core import norm` imports a module, `from regard.core.norm import Norm`
            # a name that this module defines.
            if submodule in names:
                targets.append((submodule, ""))
            else:
                targets.append((base, alias.name))
    package = importer.split(".")[0]
    return [target for target in targets if target[0].split(".")[0] == package]


def _absolute_base(node: ast.ImportFrom, importer: str, path: Path) -> str:
    """The absolute name of X in `from X import y`, where X may begin with dots."""
    module = node.module or ""
    if node.level == 0:
        return module
    parts = importer.split(".")
    # One dot is the package that holds the module; in an __init__.py that is the module itself.
    climb = node.level - 1 if path.name == "__init__.py" else node.level
    parent = parts[: len(parts) - climb]
    return ".".join([*parent, module] if module else parent)
