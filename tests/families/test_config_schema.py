"""The closed schema of config keys: defaults, synonyms, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from regard.families.config_schema import (
    ConfigSchema,
    NonNegative,
    OptionalSizes,
    SizeOrNull,
)
from regard.system.errors import ModelError

SCHEMA = ConfigSchema(
    defaults={"width": 8, "rate": 0.1, "kind": "relu", "flag": True},
    fixed={"before": False},
    synonyms={"hidden": "width"},
)


def test_keys_have_defaults_and_other_names() -> None:
    defaults = {"width": 8, "rate": 0.1, "kind": "relu", "flag": True}
    assert SCHEMA.parse({}) == defaults
    assert SCHEMA.parse(
        {"width": 16, "hidden": 16, "rate": 0, "before": False, "model_type": "x"}
    ) == {
        **defaults,
        "width": 16,
        "rate": 0,
    }
    assert SCHEMA.parse({"kind": None}) == defaults


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
        SCHEMA.parse(config)


def test_null_and_zero_are_values_where_the_default_says_so() -> None:
    schema = ConfigSchema(
        {"window": SizeOrNull(4096), "seed": NonNegative(0), "buckets": OptionalSizes()}
    )
    assert schema.parse({}) == {"window": 4096, "seed": 0, "buckets": None}
    assert schema.parse({"window": None, "seed": 0, "buckets": 8}) == {
        "window": None,
        "seed": 0,
        "buckets": (8,),
    }
    assert schema.parse({"buckets": [4, 2]})["buckets"] == (4, 2)
    refused: list[dict[str, Any]] = [
        {"window": 0},
        {"seed": -1},
        {"seed": True},
        {"buckets": []},
        {"buckets": [0]},
    ]
    for config in refused:
        with pytest.raises(ModelError, match="cannot be"):
            schema.parse(config)
