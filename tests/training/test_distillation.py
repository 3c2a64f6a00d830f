"""Distillation: the loss by its definition, a teacher that stays as it is, runs that go on, teachers that do not fit."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

import regard
from regard.data.generated import builtin
from regard.data.padding import IGNORED
from regard.models import Translator
from regard.system.errors import ModelError, SettingError, TrainingInterrupted
from regard.training.assembly import assemble
from regard.training.objectives.causal_lm import CausalLM
from regard.training.objectives.distillation import distillation_loss
from regard.training.objectives.losses import cross_entropy
from regard.training.objectives.sequence_to_sequence import SequenceToSequence
from regard.training.recipe import loading
from regard.training.run import resume, run
from regard.training.run_folder import RunFolder, begin
from regard.training.setup import Setup

SMALL: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "dropout": 0.1, "batch_tokens": 256, "steps": 12,
    "warmup_steps": 5, "save_every": 4, "validate_every": 6, "log_every": 3, "samples": 0, "tokenizer": "words",
    "vocabulary": 900, "beam": 2, "threads": 1, "learning_rate": 0.002,
}  # fmt: skip
CAUSAL = SMALL | {
    "objective": "causal",
    "beam": 1,
    "tokenizer": "characters",
    "context": 16,
    "schedule": "cosine",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, files = tmp_path_factory.mktemp("text"), {}
    for split, lines in (("train", 200), ("valid", 20)):
        pairs = list(itertools.islice(builtin.sentences(split), lines))
        for side in ("source", "target"):
            path = folder / f"{split}.{side}"
            path.write_text("".join(getattr(pair, side) + "\n" for pair in pairs))
            files[side if split == "train" else f"valid_{side}"] = str(path)
    return files


def start(files: dict[str, str], out: Path, on_step: Any = None, **changes: Any) -> RunFolder:
    recipe = loading.load(None, SMALL | files | changes)
    place = begin(recipe, out, "test")
    run(place, recipe, "test", quiet=True, on_step=on_step)
    return place


@pytest.fixture(scope="module")
def teacher(text: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(
        text, tmp_path_factory.mktemp("runs") / "teacher", d_model=24, layers=2, seed=4
    ).folder


@pytest.fixture(scope="module")
def writer(text: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of characters."""
    return start(
        {"text": text["source"]}, tmp_path_factory.mktemp("runs") / "writer", **CAUSAL, seed=3
    ).folder


# ------------------------------------------------------------------ the loss


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.7])
def test_divergence_is_its_definition(temperature: float) -> None:
    lesson, logits = 3 * torch.randn(2, 5, 11), (3 * torch.randn(2, 5, 11)).requires_grad_()
    labels = torch.randint(11, (2, 5))
    labels[1, 3:] = IGNORED
    told, own = (functional.log_softmax(x / temperature, dim=-1) for x in (lesson, logits))
    each = functional.kl_div(own, told, reduction="none", log_target=True).sum(dim=-1)
    expected = temperature**2 * each[labels != IGNORED].sum()
    (gradient,) = torch.autograd.grad(3 * expected, logits)
    found = distillation_loss(lesson, logits, labels, temperature)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(torch.autograd.grad(3 * found, logits)[0], gradient, atol=1e-5)
    assert distillation_loss(logits.detach(), logits, labels, temperature).abs() < 1e-5


def task_of(text: dict[str, str], out: Path, **changes: Any) -> SequenceToSequence:
    recipe = loading.load(None, SMALL | text | {"dropout": 0.0} | changes)
    task = assemble(Setup(begin(recipe, out, "test"), recipe, lambda _: None))
    assert isinstance(task, SequenceToSequence)
    return task


def taught(
    text: dict[str, str], out: Path, **changes: Any
) -> tuple[SequenceToSequence, dict[str, Tensor]]:
    task = task_of(text, out, **changes)
    task.model.train()
    return task, next(task.batches(0, 0))[1].tensors


def test_a_step_mixes_both_losses(text: dict[str, str], teacher: Path, tmp_path: Path) -> None:
    """(1 − a) · smoothed cross-entropy + a · the divergence from a teacher that is asked without dropout."""
    task, tensors = taught(
        text, tmp_path / "run", teacher=str(teacher), distillation_weight=0.3, temperature=3.0
    )
    given = tensors["source"], tensors["target"], tensors.get("padding_mask")
    held = regard.load(teacher)
    assert isinstance(held, Translator)
    with torch.no_grad():
        lesson = held.model.head(held.model(*given)[0])
        logits = task.model.head(task.model(*given)[0])
    plain, nll = cross_entropy(logits, tensors["labels"], 0.1)
    expected = 0.7 * plain + 0.3 * distillation_loss(lesson, logits, tensors["labels"], 3.0)
    loss, said = task.loss(tensors)
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert torch.allclose(said, nll, rtol=1e-5)


def test_the_student_alone_is_trained(text: dict[str, str], teacher: Path, tmp_path: Path) -> None:
    before = load_file(teacher / "model.safetensors")
    place = start(text, tmp_path / "run", teacher=str(teacher), distillation_weight=1.0)
    after = load_file(teacher / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    names = {
        name
        for group in (place.state / "checkpoints").glob("*/weights.safetensors")
        for name in load_file(group)
    }
    assert names == {name for name, _ in regard.load(place.folder).model.named_parameters()}
    task, tensors = taught(text, tmp_path / "again", teacher=str(teacher), distillation_weight=1.0)
    task.loss(tensors)[0].backward()
    assert all(parameter.grad is not None for parameter in task.model.parameters())


def test_taught_runs_come_near_their_teacher(
    text: dict[str, str], teacher: Path, tmp_path: Path
) -> None:
    """With the teacher's word alone, what is left of the divergence shrinks."""
    task, tensors = taught(text, tmp_path / "run", teacher=str(teacher), distillation_weight=1.0)
    optimizer = torch.optim.Adam(task.model.parameters(), 3e-3)
    losses = []
    for _ in range(30):
        loss, _ = task.loss(tensors)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


# ------------------------------------------------------------------ runs


@pytest.mark.parametrize("kind", ["translator", "writer"])
def test_a_taught_run_resumes_bit_for_bit(
    text: dict[str, str],
    teacher: Path,
    writer: Path,
    tmp_path: Path,
    stop_at: Callable[[int], Any],
    kind: str,
) -> None:
    files = text if kind == "translator" else {"text": text["source"]}
    changes = (
        {"teacher": str(teacher)} if kind == "translator" else {**CAUSAL, "teacher": str(writer)}
    )
    whole = start(files, tmp_path / "whole", **changes)
    with pytest.raises(TrainingInterrupted):
        start(files, tmp_path / "cut", stop_at(7), **changes)
    resume(tmp_path / "cut", quiet=True)
    exported, other = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "cut", whole.folder)
    )
    assert all(torch.equal(exported[name], other[name]) for name in other)
    alone = {key: value for key, value in changes.items() if key != "teacher"}
    plain = load_file(start(files, tmp_path / "alone", **alone).weights)
    assert any(not torch.equal(plain[name], other[name]) for name in other)


def test_a_validation_asks_no_teacher(text: dict[str, str], writer: Path, tmp_path: Path) -> None:
    recipe = loading.load(None, CAUSAL | {"text": text["source"], "teacher": str(writer)})
    task = assemble(Setup(begin(recipe, tmp_path / "run", "test"), recipe, lambda _: None))
    assert isinstance(task, CausalLM)

    def never(tensors: Mapping[str, Tensor]) -> Tensor:
        raise AssertionError

    assert task.teacher is not None
    task.teacher = replace(task.teacher, logits=never)
    task.nll("valid")
    task.model.train()
    with pytest.raises(AssertionError):
        task.loss(next(task.batches(0, 0))[1].tensors)


def test_a_teacher_s_translations_are_learnt_from(
    text: dict[str, str], teacher: Path, tmp_path: Path
) -> None:
    """Kim and Rush: the training targets are the teacher's; those that validate are not. No tokens need be shared."""
    changes = {"teacher": str(teacher), "teacher_translates": True, "distillation_weight": 0.0}
    place = start(text, tmp_path / "run", **changes, tokenizer="characters")
    pairs = [json.loads(line) for line in (place.data / "taught.jsonl").read_text().splitlines()]
    assert [pair["source"] for pair in pairs] == Path(text["source"]).read_text().splitlines()
    held = regard.load(teacher)
    assert isinstance(held, Translator)
    few = [pair["source"] for pair in pairs[:5]]
    strategy = regard.decode.strategy.BeamSearch(2, loading.load(None, SMALL).length_penalty)
    assert [pair["target"] for pair in pairs[:5]] == held.translate(few, strategy)
    valid = [json.loads(line) for line in (place.data / "valid.jsonl").read_text().splitlines()]
    assert [pair["target"] for pair in valid] == Path(text["valid_target"]).read_text().splitlines()


def test_students_take_the_teacher_s_tokens(
    text: dict[str, str], teacher: Path, tmp_path: Path
) -> None:
    place = start(text, tmp_path / "run", teacher=str(teacher), tokenizer="bpe", vocabulary=300)
    assert json.loads((place.folder / "tokenizer.json").read_text()) == json.loads(
        (teacher / "tokenizer.json").read_text()
    )


# ------------------------------------------------------------------ teachers that do not fit


def test_other_tokens_are_refused(text: dict[str, str], teacher: Path, tmp_path: Path) -> None:
    other = start(text, tmp_path / "other", vocabulary=40)
    with pytest.raises(ModelError, match="other tokens"):
        start(
            text,
            tmp_path / "run",
            teacher=str(teacher),
            tokenizer=str(other.folder / "tokenizer.json"),
        )


def test_a_teacher_that_is_gone_is_named(
    text: dict[str, str], teacher: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(teacher, moved)
    start(text, tmp_path / "run", teacher=str(moved))
    shutil.rmtree(moved)
    with pytest.raises(SettingError, match="no teacher at"):
        resume(tmp_path / "run", quiet=True)


def test_teachers_of_another_kind_are_refused(
    text: dict[str, str], teacher: Path, writer: Path, tmp_path: Path
) -> None:
    other = {"tokenizer": str(teacher / "tokenizer.json")}
    with pytest.raises(ModelError, match="not a Translator"):
        start(text, tmp_path / "one", teacher=str(writer), **other)
    with pytest.raises(ModelError, match="not a LanguageModel"):
        start({"text": text["source"]}, tmp_path / "two", **CAUSAL | {"teacher": str(teacher)})


def test_a_teacher_must_have_room(text: dict[str, str], tmp_path: Path) -> None:
    short = start(text, tmp_path / "short", position="learned", max_length=30)
    with pytest.raises(SettingError, match="positions for 30"):
        start(text, tmp_path / "run", teacher=str(short.folder), max_length=31)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"distillation_weight": 0.3}, "give --teacher"),
        ({"temperature": 1.0}, "give --teacher"),
        ({"teacher_translates": True}, "give --teacher"),
        ({"teacher": "x", "distillation_weight": 0.0}, "teacher has no effect"),
        ({"teacher": "x", "r_drop": 1.0}, "cannot be combined"),
        ({"teacher": "x", "objective": "masked", "text": "t"}, "leave --teacher out"),
        ({"teacher": "x", "objective": "causal", "text": "t", "memory": 8}, "leave --teacher out"),
        (
            {"teacher": "x", "objective": "causal", "text": "t", "model": "lstm"},
            "leave --teacher out",
        ),
        (
            {"teacher": "x", "objective": "causal", "text": "t", "teacher_translates": True},
            "leave it out",
        ),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as refused:
        loading.load(None, settings)
    assert said in str(refused.value)


def test_a_teacher_s_folder_is_found_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert loading.load(None, {"teacher": "big"}).train.teacher == str(tmp_path / "big")
