"""Comparisons of every task: language models, classifiers, generated tasks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from regard.builder.parameter_count import parameter_count
from regard.cli.compare import command
from regard.lab.compare import cost
from regard.lab.compare.contenders import Contender, parse_contenders
from regard.lab.compare.cost import with_length
from regard.lab.compare.experiment import compare
from regard.lab.compare.report import Comparison, lines, scene
from regard.lab.measure.budget import Budget
from regard.look import drawing
from regard.system.errors import SettingError
from regard.training.model_spec import describe, describe_with_head
from regard.training.recipe import loading, schema

pytestmark = pytest.mark.thorough

TINY: dict[str, Any] = {
    "preset": "tiny", "layers": 1, "batch_tokens": 128, "warmup_steps": 2, "builtin_lines": 100, "test_lines": 12, "context": 32,
    "learning_rate": 0.001, "device": "cpu", "threads": 1, "beam": 1, "metric": "loss",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _costs_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "BATCHES", 1)  # the cost of a step need not be exact here


def compared(out: Path, models: str, parameters: int = 60_000, **changes: Any) -> Comparison:
    recipe = loading.load(None, TINY | changes)
    return compare(
        recipe,
        "test",
        parse_contenders(models),
        Budget(steps=2),
        (1, 2),
        out,
        parameters=parameters,
    )


def header(comparison: Comparison) -> str:
    return lines(comparison, width=300)[2]


def test_language_models_are_compared_by_bits_per_character(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    result = compared(
        tmp_path / "out",
        "gpt2,gpt2@position=rope,llama:tiny,lstm",
        objective="causal",
        text=str(text),
        tokenizer="characters",
    )
    for one in result.contestants:
        assert abs(one.parameters / 60_000 - 1) < 0.03, one.word
        for run in one.runs:
            scores = run.scores["validation"]
            # Every token is a character.
            assert scores["bits_per_character"] == pytest.approx(scores["loss"] / math.log(2))
            assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
            assert run.bleu is None
            assert not run.buckets
    table = header(result)
    assert "bits/char" in table
    assert "BLEU" not in table
    assert "decode" not in table
    assert "bits/char" in drawing.svg(scene(result), "test")


def test_classifiers_are_compared_on_lists_and_longer_ones(tmp_path: Path) -> None:
    result = compared(tmp_path / "out", "bert,bert:longformer:8,lstm", generated="listops:3:12")
    assert result.unit == "examples"
    for one in result.contestants:
        assert set(one.runs[0].scores) == {"valid", "test", "longer"}
    table = header(result)
    assert "accuracy longer" in table
    assert "examples/s" in table
    assert "valid" not in table


@pytest.mark.slow
def test_copying_is_compared_beyond_the_training_length(tmp_path: Path) -> None:
    out = tmp_path / "out"
    models = "transformer@position=learned,transformer@position=rope,bahdanau"
    result = compared(out, models, generated="copying:2:5")
    assert "exact longer" in header(result)
    for one in result.contestants:
        for run in one.runs:
            assert run.exact_match == run.scores["test"]["exact_match"]
            # Both sets are in the buckets, by their lengths: words and the end token.
            assert sum(bucket.sentences for bucket in run.buckets) == 24
            assert run.buckets[-1].longest == 11
    # A finished comparison is read back.
    assert compared(out, models, generated="copying:2:5") == result


def test_language_models_answer_generated_tasks(tmp_path: Path) -> None:
    result = compared(
        tmp_path / "out", "gpt2,lstm", generated="copying:2:5", objective="causal", context=16
    )
    table = header(result)
    assert "exact" in table
    assert "exact longer" in table
    for one in result.contestants:
        assert set(one.runs[0].scores) == {"validation", "test", "longer"}


def test_two_models_come_with_a_paired_test(tmp_path: Path) -> None:
    result = compared(tmp_path / "out", "bert,gru", generated="parity:1:12")
    test = result.tests["accuracy"]
    first, second = (one.runs[0].scores["test"]["accuracy"] for one in result.contestants)
    assert test.difference == pytest.approx(second - first)
    assert 0 < test.p_value <= 1
    assert "gru against bert" in lines(result)[-1]


def test_the_first_model_decides_the_objective_of_a_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    words = ["--models", "gpt2,lstm", "--steps", "2", "--parameters", "60000", "--json"]
    settings = [
        "--text",
        str(text),
        "--tokenizer",
        "characters",
        "--context",
        "16",
        "--layers",
        "1",
    ]
    sizes = ["--batch-tokens", "64", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(command, [*words, *settings, *sizes], catch_exceptions=False)
    result = json.loads(done.stdout.splitlines()[-1])
    assert "bits_per_character" in result["contestants"][1]["runs"][0]["scores"]["validation"]


def test_the_first_model_decides_the_objective_of_other_data(tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    graph.mkdir()
    splits = ("train", "train", "valid", "test")
    rows = [f"{i}\t{'ab'[i % 2]}\t{splits[i % 4]}\t{i % 3}\n" for i in range(12)]
    (graph / "nodes.tsv").write_text("".join(rows))
    (graph / "edges.tsv").write_text("".join(f"{i}\t{(i + 1) % 12}\n" for i in range(12)))
    arguments = ["--models", "graph:tiny", "--graph", str(graph), "--steps", "2"]
    result = CliRunner().invoke(command, [*arguments, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    recipe = json.loads((tmp_path / "out" / "data" / "state" / "recipe.json").read_text())
    assert recipe["train"]["objective"] == "nodes"
    # The rate is the paper's, whose formula would give far more for a warm-up of one step.
    (run,) = (tmp_path / "out").glob("graph*/1")
    settings = json.loads((run / "state" / "recipe.json").read_text())["train"]
    assert settings["warmup_steps"] == 1
    assert settings["learning_rate"] < 0.01


def test_what_follows_the_colon_is_a_size_or_an_attention() -> None:
    assert Contender("llama:tiny").changes == {"model": "llama:tiny"}
    assert Contender("bert:longformer:64").changes == {
        "model": "bert",
        "attention": "longformer:64",
    }
    recipe = loading.load(None, {"objective": "causal", "text": "text.txt", "activation": "relu"})
    # Settings of the recipe's architecture are not those of another.
    assert Contender("llama").recipe(recipe).model.activation is None
    assert Contender("gpt2").recipe(recipe).model.activation == "relu"
    with pytest.raises(SettingError, match="not for the objective"):
        Contender("bert").recipe(recipe)


@pytest.mark.parametrize(
    "word",
    ["gpt2", "gpt_neox", "llama", "mistral", "qwen2", "gemma", "palm", "gru", "lstm"],
)
def test_language_models_get_as_many_parameters(word: str) -> None:
    recipe = loading.load(None, {"objective": "causal", "text": "text.txt", "layers": 2})
    sized = Contender(word).sized(recipe, 300_000, lambda r: describe(r, 100))
    assert abs(parameter_count(describe(sized, 100)) / 300_000 - 1) < 0.03


@pytest.mark.parametrize(
    "word", ["bert", "roberta", "albert", "electra", "deberta-v2", "gpt2", "rnn"]
)
def test_classifiers_get_as_many_parameters(word: str) -> None:
    recipe = loading.load(None, {"objective": "classify", "layers": 2})

    def spec_of(recipe: schema.Recipe) -> Any:
        return describe_with_head(recipe, 100, "classify", 3)

    sized = Contender(word).sized(recipe, 300_000, spec_of)
    assert abs(parameter_count(spec_of(sized)) / 300_000 - 1) < 0.03


def test_batches_of_any_length() -> None:
    batch = {
        "tokens": torch.tensor([[1, 2, 3], [4, 5, 6]]),
        "labels": torch.tensor([[7], [8]]),
        "goes_on": torch.tensor(True),
    }
    longer = with_length(batch, 5, rows=1)
    assert longer["tokens"].tolist() == [[1, 2, 3, 1, 2]]
    assert longer["labels"].tolist() == [[7]]
    assert longer["goes_on"].item() is True
    assert with_length(batch, 2)["tokens"].tolist() == [[1, 2], [4, 5]]
