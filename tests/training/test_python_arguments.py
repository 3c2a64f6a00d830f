"""Arguments of `regard.train`, `finetune` and `resume` that cannot be right: typed, nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import spec
from regard.system.errors import (
    DataError,
    DivergenceError,
    RegardError,
    RegardWarning,
    SettingError,
    TrainingInterrupted,
)
from regard.training.objectives.causal_lm import CausalLM
from regard.training.objectives.objective import Objective
from regard.training.run import resume

TINY: dict[str, Any] = {"preset": "tiny", "layers": 1, "vocabulary": 60, "warmup_steps": 1}
TEXT_MODEL: dict[str, Any] = {"layers": 1, "context": 8, "steps": 2, "warmup_steps": 1}
PAIRS = [("a b c", "c d e"), ("b c", "d e")] * 40
TEXT = ["the cat sees the dog\n", "the dog sees the cat\n"] * 30


class Source:
    """A data source whose splits are given."""

    def __init__(self, splits: Any) -> None:
        self._splits = splits

    def splits(self) -> Any:
        return self._splits


def _each(examples: list[Any]) -> Callable[[], Iterator[Any]]:
    return lambda: iter(examples)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "text"
    source = Source({"train": _each(TEXT), "valid": _each(TEXT)})
    regard.train(TEXT_MODEL, model="gpt2:tiny", data=source, out=folder)
    return folder


# --- resuming ---


@pytest.mark.parametrize("steps", [float("nan"), float("inf"), 4.5, "x", [4], 10**10, 0, -1])
def test_a_wrong_number_of_steps_is_not_stored(run: Path, steps: Any) -> None:
    stored = (run / "state" / "recipe.json").read_bytes()
    with pytest.raises(SettingError):
        resume(run, steps=steps, quiet=True)
    assert (run / "state" / "recipe.json").read_bytes() == stored


@pytest.mark.parametrize(
    "arguments",
    [
        {"folder": None},
        {"folder": 3},
        {"on_step": "x"},
        {"objective": 3},
        {"objective": "causal"},
        {"data": 3},
        {"data": "text.txt"},
    ],
    ids=str,
)
def test_resuming_with_wrong_types(run: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(RegardError):
        resume(**{"folder": run, **arguments})


def test_an_objective_of_a_run_without_one(run: Path) -> None:
    class Mine(CausalLM):
        pass

    with pytest.raises(SettingError) as caught:
        resume(run, objective=Mine, quiet=True)
    assert "leave" in caught.value.repair


# --- data sources ---


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        (None, "does not return a dictionary"),
        ([_each(PAIRS)], "does not return a dictionary"),
        ({"valid": _each(PAIRS)}, "no split 'train'"),
        ({"train": PAIRS}, "cannot be called"),
        ({"train": _each(PAIRS), "../victim": _each(PAIRS)}, "not a valid split name"),
        ({"train": _each(PAIRS), "/victim": _each(PAIRS)}, "not a valid split name"),
        ({"train": _each(PAIRS), "a/b": _each(PAIRS)}, "not a valid split name"),
        ({"train": _each(["hello world"] * 60)}, "example 1 of the split 'train'"),
        ({"train": _each([("a", "b", "c")] * 60)}, "example 1"),
        ({"train": _each([{"a": "b"}] * 60)}, "example 1"),
        ({"train": _each([*PAIRS, ("a", None)])}, "example 81"),
        ({"train": lambda: (1 // 0 for _ in "ab")}, "ZeroDivisionError"),
    ],
)
def test_splits_that_are_none(tmp_path: Path, splits: Any, words: str) -> None:
    out = tmp_path / "folder" / "run"
    with pytest.raises(DataError, match=words):
        regard.train({**TINY, "steps": 2}, data=Source(splits), out=out)
    assert list(tmp_path.rglob("*victim*")) == []


def test_a_text_without_validation_holds_its_end_out(tmp_path: Path) -> None:
    source = Source({"train": _each(TEXT)})
    result = regard.train(TEXT_MODEL, model="gpt2:tiny", data=source, out=tmp_path / "r")
    assert "validation_loss" in result.losses


def test_a_split_of_text_that_nothing_scores(tmp_path: Path) -> None:
    source = Source({"train": _each(TEXT), "valid": _each(TEXT), "test": _each(TEXT)})
    with pytest.raises(DataError, match="scores no split 'test'"):
        regard.train(TEXT_MODEL, model="gpt2:tiny", data=source, out=tmp_path / "r")


# --- models ---


def test_the_model_that_is_given_is_trained(run: Path, tmp_path: Path, stop_at: Any) -> None:
    """With the weights it has, wherever they came from; a stopped run goes on from the same."""
    text = tmp_path / "text.txt"
    text.write_text("".join(TEXT))
    quick: dict[str, Any] = {"context": 8, "quiet": True, "device": "cpu", "lora": 2}
    weights = []
    for name in ("whole", "stopped"):
        model = regard.load(run, device="cpu")
        with torch.no_grad():
            next(model.model.parameters()).add_(1.0)
        given = model.model.state_dict()
        changed = {key: tensor.clone() for key, tensor in given.items()}
        out = tmp_path / name
        if name == "stopped":
            with pytest.raises(TrainingInterrupted):
                regard.finetune(model, "lm", text, steps=4, out=out, on_step=stop_at(2), **quick)
            regard.resume(out, quiet=True)
        else:
            regard.finetune(model, "lm", text, steps=4, out=out, **quick)
            assert not all(torch.equal(given[key], changed[key]) for key in changed)
        weights.append(regard.load(out, device="cpu").model.state_dict())
        if name == "whole":
            trained = model.model.state_dict()
            assert trained.keys() == weights[0].keys()  # LoRA is merged
            assert all(torch.equal(trained[key], weights[0][key]) for key in trained)
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_model_without_a_folder_can_be_trained(run: Path, tmp_path: Path) -> None:
    opened = regard.load(run, regard.LanguageModel, device="cpu")
    model = regard.LanguageModel(opened.model, opened.spec, opened.tokenizer)
    quick: dict[str, Any] = {"context": 8, "steps": 1}
    result = regard.train(
        quick, model=model, data=Source({"train": _each(TEXT)}), out=tmp_path / "r"
    )
    assert regard.load(result.folder, regard.LanguageModel).generate("a", max_new_tokens=2)


@dataclass(frozen=True)
class Plain:
    """A norm of one's own, which does nothing."""

    def build(self, width: int) -> torch.nn.Module:
        return torch.nn.Identity()


@pytest.mark.parametrize(
    "arguments",
    [
        {"out": 3},
        {"on_step": "x"},
        {"model": None},
        {"model": 3},
        {"data": ""},
        {"data": []},
        {"valid": ""},
        {"files": ["x"]},
        {"base": "x"},
        {"task": Path("x")},
    ],
    ids=str,
)
def test_fine_tuning_with_wrong_arguments(
    run: Path, tmp_path: Path, arguments: Mapping[str, Any]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(TEXT))
    given: dict[str, Any] = {"model": run, "task": "lm", "data": text, "steps": 1, **arguments}
    with pytest.raises(RegardError):
        regard.finetune(**given)


@pytest.mark.parametrize(
    "arguments",
    [
        {"recipe": ""},
        {"recipe": {"model": 3}},
        {"objective": Objective},
        {"data": "", "model": "gpt2:tiny"},
        {"out": "a\0b"},
        {"out": "a" * 300},
    ],
    ids=str,
)
def test_training_with_wrong_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(RegardError):
        regard.train(**arguments, steps=1)


def test_an_objective_with_a_name_of_its_own(tmp_path: Path) -> None:
    class Mine(CausalLM):
        name = "mine"

    with pytest.raises(SettingError, match="'mine'") as caught:
        regard.train(TEXT_MODEL, model="gpt2:tiny", data="x.txt", objective=Mine)
    assert "causal" in caught.value.repair


def test_a_run_without_a_finite_loss_fails(tmp_path: Path) -> None:
    class NeverFinite(CausalLM):
        def loss(self, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            loss, nll = super().loss(tensors)
            return loss * float("nan"), nll

    source = Source({"train": _each(TEXT)})
    arguments: dict[str, Any] = {"model": "gpt2:tiny", "data": source, "objective": NeverFinite}
    with pytest.raises(DivergenceError):
        regard.train(TEXT_MODEL, out=tmp_path / "r", **arguments)


@pytest.mark.parametrize(
    "change",
    [
        lambda loss, nll: None,
        lambda loss, nll: loss,
        lambda loss, nll: (loss.repeat(2), nll),
        lambda loss, nll: (loss.detach(), nll),
        lambda loss, nll: (loss.item(), nll),
    ],
    ids=["nothing", "one", "vector", "detached", "number"],
)
def test_a_loss_that_is_none(tmp_path: Path, change: Callable[..., Any]) -> None:
    class Wrong(CausalLM):
        def loss(self, tensors: Mapping[str, torch.Tensor]) -> Any:
            return change(*super().loss(tensors))

    source = Source({"train": _each(TEXT)})
    arguments: dict[str, Any] = {"model": "gpt2:tiny", "data": source, "objective": Wrong}
    with pytest.raises(SettingError, match="loss"):
        regard.train(TEXT_MODEL, out=tmp_path / "r", **arguments)


def test_metrics_without_a_test_set_are_of_the_validation(tmp_path: Path) -> None:
    source = Source({"train": _each(PAIRS), "valid": _each(PAIRS[:4])})
    settings = {**TINY, "steps": 2}
    result = regard.train(settings, data=source, out=tmp_path / "run", metrics=["chrf"])
    assert "chrf" in result.metrics["valid"]


def test_metrics_of_nothing_are_said_to_be_so(tmp_path: Path) -> None:
    source = Source({"train": _each(PAIRS)})
    settings = {**TINY, "steps": 2}
    with pytest.warns(RegardWarning, match="no validation or test data"):
        result = regard.train(settings, data=source, out=tmp_path / "run", metrics=["chrf"])
    assert result.metrics == {}


# --- specs ---


@pytest.mark.parametrize("bias", ["none", "xyz", "Q"])
def test_a_bias_of_no_projection(bias: str) -> None:
    with pytest.raises(RegardError, match="bias"):
        spec.Attention(heads=2, d_k=8, d_v=8, bias=bias)
