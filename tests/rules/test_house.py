"""The plan of the house, as tests: levels, what may be imported, what must not be written."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "regard"
FILES = sorted(SOURCE.rglob("*.py"))

# A file imports from lower levels only, or from its own room.
LEVELS = {
    "errors": 0, "options": 0.05, "allocator": 0, "disk": 0.1, "memory": 0.1, "spec": 0.1, "size": 0.2, "checkpoint": 0.2,
    "core": 1, "baselines": 1.5, "model": 2, "build": 2.5, "edit": 2.5, "metrics": 2.6, "text": 3, "data": 3.5,
    "families": 4, "decode": 4, "look": 4.5, "models": 5, "training": 6,
    "bench": 7.8, "compare": 7, "show": 7, "verify": 7, "studio": 7, "convert": 7.5, "cli": 8,
}  # fmt: skip


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "regard"
                else [node.module]
            )
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    own = room(path)
    if own in ("__init__", "__main__"):
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "regard" or len(parts) == 1 or parts[1] == "__version__":
            continue
        assert parts[1] in LEVELS, f"{path.name} imports {name}, which is in no room"
        assert parts[1] == own or LEVELS[parts[1]] < LEVELS[own], f"{own} imports {name}"


def test_rooms_have_no_cycles_inside() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        name = "regard." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        graph[name] = {found for found in imports(path) if found.startswith("regard.")}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join([*trail, name])
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_nothing_below_the_families_knows_one() -> None:
    names = ("vaswani", "marian", "pegasus", "bert", "gpt", "llama", "whisper")
    for path in FILES:
        if LEVELS.get(room(path), 9) <= 2:
            identifiers = {
                node.id.lower()
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Name)
            }
            assert not [n for n in names if any(n in word for word in identifiers)], path


def test_modules_are_made_in_the_core_only() -> None:
    for path in FILES:
        classes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ClassDef)]
        made = [
            c.name
            for c in classes
            for b in c.bases
            if ast.unparse(b) in ("nn.Module", "torch.nn.Module")
        ]
        assert not made or room(path) in ("core", "baselines", "model"), (path, made)


# What several families share, and the folder around them; every other file of the room is one family.
SHARED = (
    "__init__",
    "chunked",
    "encoder",
    "folder",
    "judge",
    "parts",
    "rotary",
    "sequence",
    "table",
    "tower",
    "write",
)
FAMILIES = [path for path in FILES if room(path) == "families" and path.stem not in SHARED]


@pytest.mark.parametrize("path", FAMILIES, ids=lambda p: p.stem)
def test_a_family_is_one_short_file(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 125
    assert max(map(len, text.splitlines())) <= 128
    assert "PREFIX" in text or "Kin(" in text or "Tower(" in text, (
        "a file that is no family belongs to SHARED"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_pickle_no_eval(path: Path) -> None:
    assert path.name != "utils.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in (
                "eval",
                "exec",
                "torch.load",
                "torch.save",
                "pickle.load",
                "pickle.loads",
                "hasattr",
            ), called
    assert "pickle" not in imports(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["data", "builtin", "--help"],
        ["show", "--help"],
        ["convert", "--help"],
        ["trian"],
    ],
)
def test_help_imports_no_torch(arguments: list[str]) -> None:
    script = (
        "import sys; sys.argv = ['regard', *sys.argv[1:]]\n"
        "from regard.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'tokenizers', 'sacrebleu'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True
    )
    assert "heavy: []" in done.stderr


def test_importing_regard_imports_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import regard, sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "False"
