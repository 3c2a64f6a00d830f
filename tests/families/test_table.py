"""Tables of tensors, read in both directions, and the closed schema of config keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import ModelError
from regard.families.tensor_table import (
    ConfigSchema,
    Constant,
    Moved,
    PerHead,
    Reshaped,
    Rows,
    Rule,
    Same,
    Transposed,
    Unread,
    each,
    module,
    modules,
    to_ours,
    to_theirs,
)

TABLE: list[Rule] = [
    Same("in.weight", "shared.weight", aliases=("encoder.weight", "head.weight")),
    *each(
        2,
        [
            *modules("block.{i}.qkv", ["l.{i}.q", "l.{i}.k", "l.{i}.v"], (4, 2, 3)),
            *module("n.{i}", "norm.{i}"),
        ],
    ),
    Reshaped("head.bias", "bias", (1, 5)),
    Transposed("out.weight", "conv.weight"),
    PerHead("fused.weight", "per_head.weight", heads=2),
    *modules("some", ["s.q", "s.k", "s.v"], (2, 1, 1), bias=(True, False, True)),
    Unread("forgotten"),
    Constant("positions", lambda: torch.arange(6.0), tolerance=1e-5),
    Constant("silent", lambda: torch.zeros(2), written=False),
]


def parameters() -> dict[str, Tensor]:
    layers = {
        f"{name}.{i}.{rest}": shape
        for i in range(2)
        for name, rest, shape in [
            ("block", "qkv.weight", (9, 6)), ("block", "qkv.bias", (9,)), ("n", "weight", (6,)), ("n", "bias", (6,)),
        ]
    }  # fmt: skip
    shapes = {"in.weight": (5, 6), **layers, "head.bias": (5,), "out.weight": (6, 7)}
    shapes |= {"fused.weight": (12, 3), "some.weight": (4, 6), "some.bias": (3,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def error(theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        to_ours(TABLE, theirs, shapes(ours))
    return caught.value


@st.composite
def fused(draw: st.DrawFn) -> tuple[list[Rule], dict[str, Tensor]]:
    """A few fused parameters, each of any number of parts of any heights, with any further dimensions."""
    rules: list[Rule] = []
    tensors: dict[str, Tensor] = {}
    for n in range(draw(st.integers(1, 4))):
        parts = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
        rest = draw(st.lists(st.integers(1, 3), max_size=2))
        rules.append(Rows(f"ours{n}", tuple(f"theirs{n}.{i}" for i in range(len(parts))), parts))
        tensors[f"ours{n}"] = torch.randn(sum(parts), *rest)
    return rules, tensors


@given(fused())
def test_rows_come_apart_and_together_again(case: tuple[list[Rule], dict[str, Tensor]]) -> None:
    rules, ours = case
    theirs = to_theirs(rules, ours)
    for rule in rules:
        assert isinstance(rule, Rows)
        assert [len(theirs[name]) for name in rule.theirs] == list(rule.parts)
        assert torch.equal(torch.cat([theirs[name] for name in rule.theirs]), ours[rule.ours])
    assert equal(to_ours(rules, theirs, shapes(ours)), ours)


def test_every_kind_of_rule_round_trips() -> None:
    ours = parameters()
    theirs = to_theirs(TABLE, ours)
    assert equal(to_ours(TABLE, theirs, shapes(ours)), ours)
    assert theirs["l.1.k.weight"].equal(ours["block.1.qkv.weight"][4:6])
    assert theirs["conv.weight"].equal(ours["out.weight"].T)
    assert theirs["bias"].shape == (1, 5)
    assert theirs["positions"].equal(torch.arange(6.0))
    assert "silent" not in theirs
    # Rows of ours: q of head 0 and 1, then k, then v; of theirs: q, k, v of head 0, then of head 1.
    assert theirs["per_head.weight"].equal(
        ours["fused.weight"][[0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]]
    )
    assert theirs["s.v.bias"].equal(ours["some.bias"][2:])
    assert "s.k.bias" not in theirs


def test_what_nothing_reads_may_be_there() -> None:
    ours = parameters()
    theirs = to_theirs(TABLE, ours)
    assert "forgotten" not in theirs
    assert equal(to_ours(TABLE, {**theirs, "forgotten": torch.ones(3)}, shapes(ours)), ours)


def test_layers_are_numbered() -> None:
    rules: list[Moved] = [
        Rows("a.{i}", ("b.{i}.x", "b.{i}.y"), (1, 2)),
        Same("c.{i}", "d.{i}", aliases=("e.{i}",)),
    ]
    assert each(2, rules) == [
        Rows("a.0", ("b.0.x", "b.0.y"), (1, 2)),
        Same("c.0", "d.0", aliases=("e.0",)),
        Rows("a.1", ("b.1.x", "b.1.y"), (1, 2)),
        Same("c.1", "d.1", aliases=("e.1",)),
    ]


def test_tied_copies_may_stand_in_but_not_differ() -> None:
    ours = parameters()
    theirs = to_theirs(TABLE, ours)
    theirs["head.weight"] = theirs["shared.weight"].clone()
    assert equal(to_ours(TABLE, dict(theirs), shapes(ours)), ours)
    del theirs["shared.weight"]
    assert equal(to_ours(TABLE, dict(theirs), shapes(ours)), ours)
    theirs["encoder.weight"] = theirs["head.weight"] + 1
    assert "encoder.weight and head.weight differ" in error(theirs, ours).problem


def test_constants_may_be_absent_but_not_wrong() -> None:
    ours = parameters()
    theirs = to_theirs(TABLE, ours)
    theirs["positions"] = theirs["positions"] + 1e-6
    assert equal(to_ours(TABLE, theirs, shapes(ours)), ours)
    assert equal(
        to_ours(TABLE, {k: v for k, v in theirs.items() if k != "positions"}, shapes(ours)), ours
    )
    assert (
        "positions is not what"
        in error({**theirs, "positions": torch.arange(6.0).flip(0)}, ours).problem
    )
    assert "silent is not what" in error({**theirs, "silent": torch.full((2,), 1e-9)}, ours).problem
    assert (
        "positions has the shape (7,)"
        in error({**theirs, "positions": torch.arange(7.0)}, ours).problem
    )


def test_what_is_missing_or_left_over_is_named() -> None:
    ours = parameters()
    theirs = to_theirs(TABLE, ours)
    lacking = {
        name: tensor for name, tensor in theirs.items() if name not in ("bias", "l.0.k.weight")
    }
    assert error(lacking, ours).problem == "the file lacks bias, l.0.k.weight"
    extra = {**theirs, **{f"extra.{i}": torch.zeros(1) for i in range(7)}}
    found = error(extra, ours)
    assert found.problem.startswith(
        "the file has extra.0, extra.1, extra.2, extra.3, extra.4 and 2 more"
    )
    assert "config.json" in found.repair


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("shared.weight", (6, 5), "(5, 6)"),
        ("l.1.v.weight", (2, 6), "(3, 6)"),
        ("bias", (5,), "(1, 5)"),
        ("conv.weight", (6, 7), "(7, 6)"),
    ],
)
def test_a_wrong_shape_is_named_with_the_right_one(
    name: str, shape: tuple[int, ...], expected: str
) -> None:
    ours = parameters()
    problem = error({**to_theirs(TABLE, ours), name: torch.zeros(shape)}, ours).problem
    assert problem == f"{name} has the shape {shape}, but {expected} is expected"


def test_numbers_that_are_not_floating_point_are_refused() -> None:
    ours = parameters()
    theirs = to_theirs(TABLE, ours)
    assert "int8" in error({**theirs, "bias": torch.zeros(1, 5, dtype=torch.int8)}, ours).problem


def test_writing_names_what_does_not_fit_the_table() -> None:
    ours = parameters()
    with pytest.raises(ModelError, match=r"lacks head\.bias"):
        to_theirs(TABLE, {name: tensor for name, tensor in ours.items() if name != "head.bias"})
    with pytest.raises(ModelError, match=r"has more, which nothing uses"):
        to_theirs(TABLE, {**ours, "more": torch.zeros(1)})
    with pytest.raises(ModelError, match=r"block\.0\.qkv\.bias has the shape \(8,\), but \(9,\)"):
        to_theirs(TABLE, {**ours, "block.0.qkv.bias": torch.zeros(8)})
    with pytest.raises(ModelError, match=r"head\.bias has the shape \(4,\)"):
        to_theirs(TABLE, {**ours, "head.bias": torch.zeros(4)})


KEYS = ConfigSchema(
    read={"width": 8, "rate": 0.1, "kind": "relu", "flag": True},
    fixed={"before": False},
    equal={"hidden": "width"},
)


def test_keys_have_defaults_and_other_names() -> None:
    defaults = {"width": 8, "rate": 0.1, "kind": "relu", "flag": True}
    assert KEYS({}) == defaults
    assert KEYS({"width": 16, "hidden": 16, "rate": 0, "before": False, "model_type": "x"}) == {
        **defaults,
        "width": 16,
        "rate": 0,
    }
    assert KEYS({"kind": None}) == defaults


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"before": True}, "before"),
        ({"hidden": 16}, "hidden"),
        ({"width": 0}, "width"),
        ({"width": 8.5}, "width"),
        ({"width": True}, "width"),
        ({"rate": -0.1}, "rate"),
        ({"rate": "0.1"}, "rate"),
        ({"kind": 3}, "kind"),
        ({"flag": 1}, "flag"),
        ({"window": 4}, "window"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
    ],
)
def test_keys_that_are_not_understood_are_refused(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        KEYS(config)
