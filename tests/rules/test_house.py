"""The plan of the house, as tests: what belongs to which room, and what must not be written."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from import_graph import external_imports

from regard.families.registry import FILES as FAMILIES

SOURCE = Path(__file__).parents[2] / "src" / "regard"
FILES = sorted(SOURCE.rglob("*.py"))

# Everything below `families/` that says what a model is made of and builds it.
BELOW_THE_FAMILIES = ("spec", "core", "wirings", "builder")

# Code from a file, or a question about a type that the types should answer.
FORBIDDEN_CALLS = (
    "eval",
    "exec",
    "torch.load",
    "torch.save",
    "pickle.load",
    "pickle.loads",
    "hasattr",
)


def room(path: Path) -> str:
    """The first folder below the package that holds a file, or the file's own name."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def short_path(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_nothing_below_the_families_knows_one() -> None:
    families = ("marian", "pegasus", "bert", "gpt", "llama", "whisper")
    for path in FILES:
        if room(path) not in BELOW_THE_FAMILIES:
            continue
        names = {node.id.lower() for node in ast.walk(tree(path)) if isinstance(node, ast.Name)}
        assert [name for name in names if any(family in name for family in families)] == [], path


def test_modules_are_made_in_the_core_only() -> None:
    for path in FILES:
        classes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
        module_classes = [
            node.name
            for node in classes
            for base in node.bases
            if ast.unparse(base) in ("nn.Module", "torch.nn.Module")
        ]
        allowed = room(path) in ("core", "wirings")
        assert allowed or not module_classes, (path, module_classes)


def family_files() -> list[Path]:
    """The files that the table of families names: one for each family of Hugging Face folders."""
    names = [file for file, families in FAMILIES.items() if families]
    return [SOURCE / "families" / f"{name.replace('.', '/')}.py" for name in names]


def test_the_table_of_families_is_found() -> None:
    assert len(family_files()) >= 25


@pytest.mark.parametrize("path", FILES, ids=short_path)
def test_no_pickle_no_eval(path: Path) -> None:
    calls = [ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    assert [name for name in calls if name in FORBIDDEN_CALLS] == []
    assert "pickle" not in external_imports(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["data", "builtin", "--help"],
        ["show", "--help"],
        ["convert", "--help"],
        ["study"],
        ["trian"],
    ],
)
def test_help_imports_no_torch(arguments: list[str]) -> None:
    script = (
        "import sys; sys.argv = ['regard', *sys.argv[1:]]\n"
        "from regard.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'tokenizers', 'sacrebleu'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
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
