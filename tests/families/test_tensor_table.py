"""Tables of tensor names, read in both directions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.families.state_dict import from_hf, to_hf
from regard.families.tensor_table import (
    Concat,
    Constant,
    InterleavedQkv,
    ParameterRule,
    Rename,
    Reshape,
    Rule,
    Transpose,
    Unused,
    fused_module_rules,
    module_rules,
    per_layer,
)
from regard.system.errors import ModelError

TABLE: list[Rule] = [
    Rename("in.weight", "shared.weight", aliases=("encoder.weight", "head.weight")),
    *per_layer(
        2,
        [
            *fused_module_rules("block.{i}.qkv", ["l.{i}.q", "l.{i}.k", "l.{i}.v"], (4, 2, 3)),
            *module_rules("n.{i}", "norm.{i}"),
        ],
    ),
    Reshape("head.bias", "bias", (1, 5)),
    Transpose("out.weight", "conv.weight"),
    InterleavedQkv("fused.weight", "per_head.weight", heads=2),
    *fused_module_rules("some", ["s.q", "s.k", "s.v"], (2, 1, 1), bias=(True, False, True)),
    Unused("forgotten"),
    Constant("positions", lambda: torch.arange(6.0), tolerance=1e-5),
    Constant("silent", lambda: torch.zeros(2), written=False),
]


def parameters() -> dict[str, Tensor]:
    layers = {
        f"{name}.{i}.{rest}": shape
        for i in range(2)
        for name, rest, shape in [
            ("block", "qkv.weight", (9, 6)),
            ("block", "qkv.bias", (9,)),
            ("n", "weight", (6,)),
            ("n", "bias", (6,)),
        ]
    }
    shapes = {"in.weight": (5, 6), **layers, "head.bias": (5,), "out.weight": (6, 7)}
    shapes |= {"fused.weight": (12, 3), "some.weight": (4, 6), "some.bias": (3,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def error(state_dict: dict[str, Tensor], params: dict[str, Tensor]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        from_hf(TABLE, state_dict, shapes(params))
    return caught.value


@st.composite
def fused(draw: st.DrawFn) -> tuple[list[Rule], dict[str, Tensor]]:
    """A few fused parameters, each of any number of parts of any heights, with any further dimensions."""
    rules: list[Rule] = []
    tensors: dict[str, Tensor] = {}
    for n in range(draw(st.integers(1, 4))):
        parts = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
        rest = draw(st.lists(st.integers(1, 3), max_size=2))
        rules.append(
            Concat(f"params{n}", tuple(f"state_dict{n}.{i}" for i in range(len(parts))), parts)
        )
        tensors[f"params{n}"] = torch.randn(sum(parts), *rest)
    return rules, tensors


@given(fused())
def test_rows_come_apart_and_together_again(case: tuple[list[Rule], dict[str, Tensor]]) -> None:
    rules, params = case
    state_dict = to_hf(rules, params)
    for rule in rules:
        assert isinstance(rule, Concat)
        assert [len(state_dict[name]) for name in rule.hf] == list(rule.rows)
        assert torch.equal(
            torch.cat([state_dict[name] for name in rule.hf]), params[rule.parameter]
        )
    assert equal(from_hf(rules, state_dict, shapes(params)), params)


def test_every_kind_of_rule_round_trips() -> None:
    params = parameters()
    state_dict = to_hf(TABLE, params)
    assert equal(from_hf(TABLE, state_dict, shapes(params)), params)
    assert state_dict["l.1.k.weight"].equal(params["block.1.qkv.weight"][4:6])
    assert state_dict["conv.weight"].equal(params["out.weight"].T)
    assert state_dict["bias"].shape == (1, 5)
    assert state_dict["positions"].equal(torch.arange(6.0))
    assert "silent" not in state_dict
    # Our rows: q of heads 0 and 1, then k, then v. Theirs: q, k, v of head 0, then of head 1.
    assert state_dict["per_head.weight"].equal(
        params["fused.weight"][[0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]]
    )
    assert state_dict["s.v.bias"].equal(params["some.bias"][2:])
    assert "s.k.bias" not in state_dict


def test_what_nothing_reads_may_be_there() -> None:
    params = parameters()
    state_dict = to_hf(TABLE, params)
    assert "forgotten" not in state_dict
    assert equal(from_hf(TABLE, {**state_dict, "forgotten": torch.ones(3)}, shapes(params)), params)


def test_layers_are_numbered() -> None:
    rules: list[ParameterRule] = [
        Concat("a.{i}", ("b.{i}.x", "b.{i}.y"), (1, 2)),
        Rename("c.{i}", "d.{i}", aliases=("e.{i}",)),
    ]
    assert per_layer(2, rules) == [
        Concat("a.0", ("b.0.x", "b.0.y"), (1, 2)),
        Rename("c.0", "d.0", aliases=("e.0",)),
        Concat("a.1", ("b.1.x", "b.1.y"), (1, 2)),
        Rename("c.1", "d.1", aliases=("e.1",)),
    ]


def test_tied_copies_may_stand_in_but_not_differ() -> None:
    params = parameters()
    state_dict = to_hf(TABLE, params)
    state_dict["head.weight"] = state_dict["shared.weight"].clone()
    assert equal(from_hf(TABLE, dict(state_dict), shapes(params)), params)
    del state_dict["shared.weight"]
    assert equal(from_hf(TABLE, dict(state_dict), shapes(params)), params)
    state_dict["encoder.weight"] = state_dict["head.weight"] + 1
    assert "encoder.weight and head.weight differ" in error(state_dict, params).problem


def test_constants_may_be_absent_but_not_wrong() -> None:
    params = parameters()
    state_dict = to_hf(TABLE, params)
    state_dict["positions"] = state_dict["positions"] + 1e-6
    assert equal(from_hf(TABLE, state_dict, shapes(params)), params)
    assert equal(
        from_hf(TABLE, {k: v for k, v in state_dict.items() if k != "positions"}, shapes(params)),
        params,
    )
    assert (
        "positions has other values than"
        in error({**state_dict, "positions": torch.arange(6.0).flip(0)}, params).problem
    )
    assert (
        "silent has other values than"
        in error({**state_dict, "silent": torch.full((2,), 1e-9)}, params).problem
    )
    assert (
        "positions has the shape (7,)"
        in error({**state_dict, "positions": torch.arange(7.0)}, params).problem
    )


def test_what_is_missing_or_left_over_is_named() -> None:
    params = parameters()
    state_dict = to_hf(TABLE, params)
    lacking = {
        name: tensor for name, tensor in state_dict.items() if name not in ("bias", "l.0.k.weight")
    }
    assert error(lacking, params).problem == "the file lacks bias, l.0.k.weight"
    extra = {**state_dict, **{f"extra.{i}": torch.zeros(1) for i in range(7)}}
    raised = error(extra, params)
    assert raised.problem.startswith(
        "the file has unexpected tensors: extra.0, extra.1, extra.2, extra.3, extra.4 and 2 more"
    )
    assert "config.json" in raised.repair


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
    params = parameters()
    problem = error({**to_hf(TABLE, params), name: torch.zeros(shape)}, params).problem
    assert problem == f"{name} has the shape {shape}, but {expected} is expected"


def test_numbers_that_are_not_floating_point_are_refused() -> None:
    params = parameters()
    state_dict = to_hf(TABLE, params)
    assert (
        "int8" in error({**state_dict, "bias": torch.zeros(1, 5, dtype=torch.int8)}, params).problem
    )


def test_writing_names_what_does_not_fit_the_table() -> None:
    params = parameters()
    with pytest.raises(ModelError, match=r"lacks head\.bias"):
        to_hf(TABLE, {name: tensor for name, tensor in params.items() if name != "head.bias"})
    with pytest.raises(ModelError, match=r"has unexpected tensors: more"):
        to_hf(TABLE, {**params, "more": torch.zeros(1)})
    with pytest.raises(ModelError, match=r"block\.0\.qkv\.bias has the shape \(8,\), but \(9,\)"):
        to_hf(TABLE, {**params, "block.0.qkv.bias": torch.zeros(8)})
    with pytest.raises(ModelError, match=r"head\.bias has the shape \(4,\)"):
        to_hf(TABLE, {**params, "head.bias": torch.zeros(4)})
