"""How much there is to read, as numbers that may only become smaller."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from import_graph import When, import_edges

SOURCE = Path(__file__).parents[2] / "src" / "regard"
FILES = sorted(SOURCE.rglob("*.py"))

# Lower them when you can.
TOKENS = 773_800  # of code, without comments, docstrings and line ends
RAISES = 1_184
FILES_THAT_ASK = 2
MODULES_OF_THE_ENCODER_DECODER = 30
ENTRIES_AT_THE_TOP = 19
FILES_IN_A_FOLDER = 30

# Questions for the kind of a model: whatever else needs to know something asks the model itself.
KINDS = {
    "CTCModel",
    "ConvolutionalDecoder",
    "ConvolutionalEncoder",
    "Decoder",
    "DualEncoder",
    "Encoder",
    "EncoderDecoder",
    "GraphModel",
    "ImageCaptioner",
    "ImageEncoder",
    "LanguageModel",
    "LinearForecaster",
    "MaskedLanguageModel",
    "MemoryNetwork",
    "RecomputingDecoder",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "SeriesEncoderDecoder",
    "SeriesModel",
    "SoundClassifier",
    "SpeechToText",
    "TextEncoder",
    "Translator",
    "VisualQuestionModel",
    "WaveformModel",
}
MAY_ASK = ("builder", "families", "spec", "wirings")
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def docstring_lines(path: Path) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_tokens(path: Path) -> int:
    inside = docstring_lines(path)
    readline = io.StringIO(path.read_text(encoding="utf-8")).readline
    return sum(
        token.type not in NOT_CODE
        and not (token.type == tokenize.STRING and token.start[0] in inside)
        for token in tokenize.generate_tokens(readline)
    )


def names(node: ast.AST) -> set[str]:
    """All names and attributes below a node."""
    simple = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return simple | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def asks_for_a_kind(node: ast.AST) -> bool:
    """Whether this is `isinstance`, `issubclass` or a `case` with the class of a model."""
    match node:
        case ast.Call(ast.Name("isinstance" | "issubclass"), [_, classes]):
            return bool(names(classes) & KINDS)
        case ast.MatchClass(classes):
            return bool(names(classes) & KINDS)
    return False


def test_the_code_does_not_grow() -> None:
    assert sum(code_tokens(path) for path in FILES) <= TOKENS


def test_guards_do_not_grow() -> None:
    raises = [
        node for path in FILES for node in ast.walk(tree(path)) if isinstance(node, ast.Raise)
    ]
    assert len(raises) <= RAISES


def test_few_files_ask_for_a_kind_of_model() -> None:
    asking = [
        str(path.relative_to(SOURCE))
        for path in FILES
        if path.relative_to(SOURCE).parts[0] not in MAY_ASK
        and any(asks_for_a_kind(node) for node in ast.walk(tree(path)))
    ]
    assert len(asking) <= FILES_THAT_ASK, "\n".join(asking)


@pytest.mark.parametrize("name", ["stack", "block", "attention"])
def test_the_figure_knows_no_variant(name: str) -> None:
    calls = [
        node
        for node in ast.walk(tree(SOURCE / "core" / f"{name}.py"))
        if isinstance(node, ast.Call)
    ]
    assert [ast.unparse(call) for call in calls if ast.unparse(call.func) == "isinstance"] == []


def test_few_modules_stand_behind_the_encoder_decoder() -> None:
    imports: dict[str, set[str]] = {}
    for edge in import_edges(SOURCE):
        if edge.when is When.IMPORT:
            imports.setdefault(edge.importer, set()).add(edge.imported)
    seen: set[str] = set()
    waiting = ["regard.wirings.encoder_decoder"]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += imports.get(module, set())
    assert len(seen) <= MODULES_OF_THE_ENCODER_DECODER, "\n".join(sorted(seen))


def test_a_folder_can_be_seen_at_once() -> None:
    top = [path for path in SOURCE.iterdir() if path.name not in ("__pycache__", "py.typed")]
    assert len(top) <= ENTRIES_AT_THE_TOP
    sizes = Counter(path.parent for path in FILES)
    assert {folder.name: size for folder, size in sizes.items() if size > FILES_IN_A_FOLDER} == {}
