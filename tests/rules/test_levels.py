"""A file imports from lower levels only; inside a room imports run one way, without cycles."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_graph import Edge, When, find_cycle, import_edges, module_edges, modules

SOURCE = Path(__file__).parents[2] / "src" / "regard"
MODULES = modules(SOURCE)
EDGES = import_edges(SOURCE)

# From the lowest to the highest. An entry is a room, or one file of a room that its other files
# must not import: the parts do not know the block and the stack that they are assembled into.
LEVELS = (
    # The library.
    ("system.errors",),
    ("system",),
    ("spec",),
    ("core",),
    ("core.block",),
    ("core.stack",),
    # Variants of a stack, and what is made of one.
    ("core.stacks", "core.heads.pixel_decoder"),
    ("wirings.core_model",),
    ("wirings.baselines",),
    ("wirings",),
    ("builder",),
    ("data.text", "evaluation.metrics", "look.drawing"),
    ("data",),
    ("families", "decode"),
    ("look",),
    ("models",),
    ("evaluation",),
    ("training",),
    # What others build on, by one name.
    ("extend",),
    # The laboratories.
    ("lab",),
    ("lab.measure",),
    ("lab.compare", "lab.verify"),
    ("lab.show",),
    ("lab.plan",),
    ("lab.doctor", "lab.tune"),
    ("lab.convert",),
    ("lab.bench",),
    ("lab.study",),
    # The applications.
    ("studio",),
    ("serve",),
    ("cli",),
)
LEVEL = {entry: level for level, entries in enumerate(LEVELS) for entry in entries}

# The public face and `python -m regard` stand above all rooms.
ABOVE_ALL = ("regard", "regard.__main__")

# Imports against the order that are there today, none of them executed at import time. This list
# may only become shorter: an entry that is no longer needed fails a test.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def entry(module: str) -> str:
    """The entry of LEVELS that a module belongs to: the longest one that begins its name."""
    parts = module.split(".")[1:]
    for size in range(len(parts), 0, -1):
        name = ".".join(parts[:size])
        if name in LEVEL:
            return name
    return parts[0]


def is_exception(edge: Edge) -> bool:
    """An import of the list above; at import time there are no exceptions."""
    return edge.when is not When.IMPORT and (edge.importer, edge.imported) in EXCEPTIONS


def against_the_levels(edges: list[Edge]) -> list[str]:
    """The imports that do not go down."""
    wrong = []
    for edge in edges:
        if edge.importer in ABOVE_ALL:
            continue
        if edge.imported == "regard":
            # The public names are those of `models` and `training`, whoever hands them on.
            allowed = edge.name == "__version__" or LEVEL[entry(edge.importer)] > LEVEL["training"]
        else:
            importer = entry(edge.importer)
            imported = entry(edge.imported)
            allowed = importer == imported or LEVEL[imported] < LEVEL[importer]
        if not allowed:
            wrong.append(str(edge))
    return wrong


def against_the_order(edges: list[Edge]) -> list[str]:
    """One cycle among all imports, as a list of module names, if there is one."""
    return find_cycle([edge for edge in edges if edge.importer != "regard"])


def required(edges: list[Edge]) -> list[Edge]:
    """All imports without the exceptions."""
    return [edge for edge in edges if not is_exception(edge)]


# --- the package ---


def test_every_module_has_a_level() -> None:
    inside = [name for name in MODULES if name not in ABOVE_ALL]
    assert [name for name in inside if entry(name) not in LEVEL] == []


def test_every_level_has_a_module() -> None:
    assert set(LEVEL) - {entry(name) for name in MODULES if name not in ABOVE_ALL} == set()


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    edges = [edge for edge in required(EDGES) if edge.importer == module]
    assert against_the_levels(edges) == []


def test_no_cycles_at_import_time() -> None:
    assert against_the_order([edge for edge in EDGES if edge.when is When.IMPORT]) == []


def test_no_cycles_at_any_time() -> None:
    assert against_the_order(required(EDGES)) == []


@pytest.mark.parametrize("pair", EXCEPTIONS, ids=" imports ".join)
def test_every_exception_is_needed(pair: tuple[str, str]) -> None:
    excepted = [edge for edge in EDGES if (edge.importer, edge.imported) == pair]
    assert excepted, "this import is gone: take the entry away"
    edges = required(EDGES) + excepted
    assert against_the_levels(edges) or against_the_order(edges), "take the entry away"


def test_the_library_imports_no_laboratory_and_no_application() -> None:
    above = ("lab", "studio", "serve", "cli")
    wrong = []
    for edge in EDGES:
        room, imported = (name.split(".")[1:2] for name in (edge.importer, edge.imported))
        if edge.importer not in ABOVE_ALL and room[0] not in above and imported[:1]:
            wrong += [str(edge)] * (imported[0] in above)
    assert wrong == []


# --- the rules themselves ---

NAMES = {"regard", "regard.core", "regard.core.norm", "regard.core.stack", "regard.core.kernels"}
NAMES |= {"regard.core.kernels.topk", "regard.spec", "regard.system.errors"}


def shown_imports(
    source: str, importer: str = "regard.core.stack", file: str = "stack.py"
) -> list[str]:
    """What a module with this text imports, as `module` or `module:name`, with the time if late."""
    shown = []
    for edge in module_edges(source, importer, Path(file), NAMES):
        target = f"{edge.imported}:{edge.name}".removesuffix(":")
        late = {When.IMPORT: "", When.CALL: " (call)", When.NEVER: " (never)"}[edge.when]
        shown.append(target + late)
    return shown


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import regard.core.norm", ["regard.core.norm"]),
        (
            "import regard.core.norm as n, regard.system.errors",
            ["regard.core.norm", "regard.system.errors"],
        ),
        ("import os, torch.nn", []),
        ("from torch import nn", []),
        ("from regard.core import norm", ["regard.core.norm"]),
        ("from regard.core import norm as n, stack", ["regard.core.norm", "regard.core.stack"]),
        ("from regard.core import Part", ["regard.core:Part"]),
        ("from regard.core.norm import Norm", ["regard.core.norm:Norm"]),
        ("from regard.core.norm import *", ["regard.core.norm:*"]),
        ("from regard import spec", ["regard.spec"]),
        ("from regard import __version__", ["regard:__version__"]),
        ("from . import norm", ["regard.core.norm"]),
        ("from .norm import Norm", ["regard.core.norm:Norm"]),
        ("from .kernels import topk", ["regard.core.kernels.topk"]),
        ("from .. import spec", ["regard.spec"]),
        ("from ..spec import Window", ["regard.spec:Window"]),
        ("def f():\n    from regard.core import norm", ["regard.core.norm (call)"]),
        ("async def f():\n    import regard.system.errors", ["regard.system.errors (call)"]),
        ("class A:\n    def f(self):\n        from . import norm", ["regard.core.norm (call)"]),
        ("class A:\n    from regard.core import norm", ["regard.core.norm"]),
        ("try:\n    from . import norm\nexcept ImportError:\n    pass", ["regard.core.norm"]),
        ("if TYPE_CHECKING:\n    from regard.core import norm", ["regard.core.norm (never)"]),
        (
            "if typing.TYPE_CHECKING:\n    import regard.system.errors",
            ["regard.system.errors (never)"],
        ),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from . import norm", ["regard.core.norm"]),
    ],
)
def test_every_form_of_import_is_seen(source: str, expected: list[str]) -> None:
    assert shown_imports(source) == expected


def test_a_package_counts_its_dots_from_itself() -> None:
    assert shown_imports("from . import topk", "regard.core.kernels", "__init__.py") == [
        "regard.core.kernels.topk"
    ]
    assert shown_imports("from .. import norm", "regard.core.kernels", "__init__.py") == [
        "regard.core.norm"
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "from regard.core import stack",
        "from regard.core.stack import Stack",
        "import regard.core.stack",
        "from . import stack",
        "if TYPE_CHECKING:\n    from regard.core import stack",
        "def late() -> None:\n    from regard.core import stack",
    ],
)
def test_a_part_that_imports_the_stack_is_caught(statement: str) -> None:
    part = SOURCE / "core" / "norm.py"
    source = part.read_text(encoding="utf-8") + f"\n{statement}\n"
    edges = required([*EDGES, *module_edges(source, "regard.core.norm", part, NAMES)])
    wrong = against_the_levels(edges)
    assert len(wrong) == 1
    assert "regard.core.norm" in wrong[0]
    assert "imports regard.core.stack" in wrong[0]
    cycle = against_the_order(edges)
    assert {"regard.core.norm", "regard.core.stack"} <= set(cycle)


def test_the_public_names_are_not_for_lower_rooms() -> None:
    for statement in ("from regard import load", "import regard"):
        edges = module_edges(statement, "regard.core.norm", Path("norm.py"), NAMES)
        assert len(against_the_levels(edges)) == 1
