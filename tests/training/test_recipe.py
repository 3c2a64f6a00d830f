"""Recipes: precedence, closed keys, and answers to mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.decode.strategy import parse_length_penalty
from regard.system.errors import SettingError
from regard.training.recipe import loading, schema
from regard.training.recipe.options import (
    Average,
    Best,
    Ema,
    Last,
    parse_weights,
)


def test_flags_stand_over_the_recipe_and_the_recipe_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[train]\nsteps = 7\nseed = 3\n[data]\nsource = "a.en"\ntarget = "/b.de"\n')
    recipe = loading.load(file, {"steps": 9})
    assert (recipe.train.steps, recipe.train.seed, recipe.train.warmup_steps) == (9, 3, 4000)
    assert (recipe.data.source, recipe.data.target) == (str(tmp_path / "a.en"), "/b.de")


def test_a_data_root_comes_from_flag_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_DATA", raising=False)
    with pytest.raises(SettingError, match="REGARD_DATA"):
        loading.load("multi30k", {})
    monkeypatch.setenv("REGARD_DATA", "/root-of-data")
    assert (
        loading.load("multi30k", {}).data.source == "/root-of-data/multi30k/train.lc.norm.tok.en.gz"
    )
    assert (loading.load("multi30k", {}, "/other").data.source or "").startswith("/other/")


def test_every_packaged_recipe_is_valid() -> None:
    assert {"builtin", "multi30k"} <= set(loading.packaged())
    for name in loading.packaged():
        assert loading.load(name, {}, "/data").train.steps > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nstep = 3\n", "did you mean 'steps'"),
        ("[trian]\nsteps = 3\n", "did you mean 'train'"),
        ("[model]\nsteps = 3\n", r"belongs in \[train\]"),
        ("[train]\nsteps = 0\n", "steps"),
        ('[train]\nsteps = "many"\n', "steps"),
        ('[train]\nfinal_weights = "avrage:3"\n', "did you mean 'average'"),
        ('[decode]\nlength_penalty = "gnmt:x"\n', "gnmt:NUMBER"),
        ("[train]\nwarmup = 3\n", "did you mean 'warmup_steps'"),
        ("[train\n", "not valid TOML"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=message):
        loading.load(file, {})


def test_unknown_recipes_and_keys() -> None:
    with pytest.raises(SettingError, match="did you mean 'builtin'"):
        loading.load("builtins", {})
    with pytest.raises(SettingError, match="did you mean 'batch_tokens'"):
        loading.load(None, {"batch_token": 5})


def test_the_training_data_is_of_the_kind_of_the_objective(tmp_path: Path) -> None:
    recipe = tmp_path / "masked.toml"
    recipe.write_text('[train]\nobjective = "masked"\n')
    assert loading.choose(recipe, {"data": "x.txt"})[0].data.text == "x.txt"
    assert loading.choose(None, {"data": "x.txt", "model": "gpt2:tiny"})[0].data.text == "x.txt"
    assert loading.choose(None, {"data": "x.tsv"})[0].data.pairs == "x.tsv"
    with pytest.raises(SettingError, match="the same data"):
        loading.choose(recipe, {"data": "x.txt", "text": "y.txt"})


def test_validation_and_test_data_are_of_the_kind_of_the_objective(tmp_path: Path) -> None:
    recipe = tmp_path / "pairs.toml"
    recipe.write_text(
        '[data]\nsource = "a"\ntarget = "b"\nvalid_source = "c"\nvalid_target = "d"\n'
    )
    files = {"data": "x.tsv", "valid": "v.tsv", "test": "t.tsv"}
    pairs = loading.choose(recipe, files)[0].data
    assert (pairs.pairs, pairs.valid_pairs, pairs.test_pairs) == tuple(files.values())
    assert pairs.source is pairs.valid_source is None
    classes = loading.choose(None, {**files, "objective": "classify"})[0]
    assert classes.files == {"train": ["x.tsv"], "valid": ["v.tsv"], "test": ["t.tsv"]}
    with pytest.raises(SettingError, match="the same data"):
        loading.choose(None, {"valid": "v.tsv", "valid_pairs": "w.tsv"})
    with pytest.raises(SettingError, match="`graph` has all splits"):
        loading.choose(None, {**files, "objective": "nodes"})


def test_what_is_asked_for_without_a_recipe() -> None:
    assert loading.choose(None, {"steps": 5})[0] == loading.load("builtin", {"steps": 5})
    assert loading.choose(None, {"source": "a", "target": "b"})[1] == "run"
    # What learns something else than translation does not begin with the built-in language.
    assert loading.choose(None, {"model": "memory:tiny"})[1] == "stories"
    assert loading.choose(None, {"objective": "stories"})[1] == "stories"
    assert loading.choose(None, {"objective": "classify"})[0].model.model is None
    with pytest.raises(SettingError, match="learns from one text"):
        loading.choose(None, {"model": "llama:tiny"})
    assert loading.choose("multi30k", {}, "/d")[1] == "multi30k"


def test_keys_are_unique_across_sections() -> None:
    assert len(schema.KEYS) == sum(
        len(section.model_fields) for section in schema.SECTIONS.values()
    )


def test_choices() -> None:
    assert [parse_weights(w) for w in ("last", "best", "average:3", "ema:0.9")] == [
        Last(),
        Best(),
        Average(3),
        Ema(0.9),
    ]
    assert parse_length_penalty("power:2").divisor(3) == 9


def test_a_size_is_said_once_and_replaces_that_of_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[data]\ntext = "a.txt"\n[model]\nmodel = "gpt2:medium"\n')
    (tmp_path / "a.txt").write_text("text")
    assert loading.load(recipe, {}).preset_name == "gpt2:medium"
    assert loading.load(recipe, {"preset": "large"}).preset_name == "gpt2:large"
    assert loading.load(recipe, {"model": "llama:7b"}).preset_name == "llama:7b"
    # A cell alone is what the objective needs.
    cells = {"model": "lstm:tiny", "preset": None, "text": "a.txt"}
    assert loading.load(None, {**cells, "objective": "causal"}).preset_name == "lstm-lm:tiny"
    assert loading.load(None, {**cells, "objective": "denoise"}).preset_name == "lstm:tiny"
    both = {"model": "gpt2:small", "preset": "small"}
    assert loading.load(recipe, both).preset_name == "gpt2:small"
    with pytest.raises(SettingError, match="both 'small' and 'large'"):
        loading.load(recipe, both | {"preset": "large"})
