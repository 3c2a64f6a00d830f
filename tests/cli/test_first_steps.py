"""Commands and calls just beyond what the guides show."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from forked_command import run_command
from regard import spec
from regard.data import text_files
from regard.evaluation import prediction
from regard.system.errors import DataError, SettingError
from regard.training.recipe import loading

pytestmark = pytest.mark.thorough

Command = Callable[..., Any]
DEMO = Path(regard.__file__).parent / "studio/demo"
QUICK: dict[str, Any] = {
    "steps": 1, "warmup_steps": 1, "batch_tokens": 64, "tokenizer": "characters",
    "device": "cpu", "threads": 1,
}  # fmt: skip


def write_records(path: Path, *texts: str, key: str = "text") -> str:
    lines = [json.dumps({"id": number, key: text}) for number, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_texts_of_json_lines(tmp_path: Path) -> None:
    """The key is `text` unless another is named."""
    file = write_records(tmp_path / "notes.jsonl", "The dog sings.", "The cat sings.")
    assert list(text_files.texts(file)) == ["The dog sings.", "The cat sings."]
    assert "".join(text_files.text(file)) == "The dog sings.\nThe cat sings.\n"
    other = write_records(tmp_path / "other.jsonl", "The dog sings.", key="body")
    assert list(text_files.texts(other, "body")) == ["The dog sings."]
    with pytest.raises(DataError, match="no column 'text'") as refusal:
        list(text_files.texts(other))
    assert "--text-column" in refusal.value.repair
    assert "id, body" in refusal.value.repair
    done = run_command("translate", str(DEMO), "--input", file)
    alone = run_command("translate", str(DEMO), text="The dog sings.\nThe cat sings.\n")
    assert (done.returncode, done.stdout) == (0, alone.stdout)
    asked = run_command("predict", str(DEMO), file, "--json")
    answers = [json.loads(line)["answer"] for line in asked.stdout.splitlines()]
    assert answers == alone.stdout.splitlines()


def test_a_blank_line_keeps_its_place(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("The dog sings.\n\nThe cat sings.\n")
    by_name = run_command("predict", str(DEMO), str(file)).stdout
    assert [bool(line) for line in by_name.splitlines()] == [True, False, True]


def test_a_file_is_no_sentence(tmp_path: Path) -> None:
    file = tmp_path / "two words.txt"
    file.write_text("The dog sings.\n")
    done = run_command("translate", str(DEMO), str(file))
    assert done.returncode == 2
    repair = done.stderr.partition("--input ")[2].strip()
    again = run_command("translate", str(DEMO), "--input", *shlex.split(repair))
    assert (again.returncode, len(again.stdout.splitlines())) == (0, 1)
    # Nor is a text that no file system would take a file.
    assert run_command("translate", str(DEMO), "The dog sings. " * 400).returncode == 0


@pytest.mark.parametrize("change", [{"layers": 3}, {"dropout": 0.5}, {"preset": "base"}])
def test_a_spec_decides_the_sizes(change: dict[str, Any], tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text(json.dumps(spec.to_dict(regard.load(DEMO, device="cpu").spec)))
    with pytest.raises(SettingError, match=f"{next(iter(change))} is decided by the spec"):
        loading.load(None, {"spec": str(model), **change})
    # A recipe's own sizes are replaced by a spec that is given on top, and its start is kept.
    assert loading.load("builtin", {"spec": str(model), "model": None}).model.spec == str(model)


@pytest.mark.parametrize(
    ("model", "objective"),
    [("bert:tiny", "masked"), ("electra:tiny", "replaced"), ("bart:tiny", "denoise")],
)
def test_a_model_that_is_trained_on_has_so_many_positions(
    model: str, objective: str, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the dog sees the cat\n" * 40)
    settings = {**QUICK, "text": str(text), "objective": objective}
    regard.train({**settings, "context": 32}, model=model, out=tmp_path / "base")
    del settings["tokenizer"]
    settings["base"] = str(tmp_path / "base")
    with pytest.raises(SettingError, match="context"):
        regard.train({**settings, "context": 99}, out=tmp_path / "run")
    # The folder is free, and the default context is what the model has positions for.
    regard.train(settings, out=tmp_path / "run")


def test_forecasts_are_evaluated_on_the_columns_of_the_model(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(200, 3)).cumsum(0)
    table = tmp_path / "load.csv"
    np.savetxt(table, values, delimiter=",", header="north,south,east", comments="", fmt="%.4f")
    settings = {key: QUICK[key] for key in ("steps", "warmup_steps", "device", "threads")}
    settings |= {"series": str(table), "columns": "south,north", "context": 24, "horizon": 4}
    settings |= {"schedule": "constant", "learning_rate": 1e-3}
    regard.train(settings, model="patchtst:tiny", out=tmp_path / "run")
    model = regard.load(tmp_path / "run", device="cpu")
    two = tmp_path / "two.csv"
    np.savetxt(two, values[:, [1, 0]], delimiter=",", header="south,north", comments="", fmt="%.4f")
    expected = pytest.approx(regard.evaluate(model, str(two)).scores, rel=1e-5)
    assert regard.evaluate(model, str(table)).scores == expected


def test_a_printed_command_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    text = tmp_path / "text.txt"
    text.write_text("the dog sees the cat\n" * 40)
    settings = {**QUICK, "text": str(text), "context": 16}
    regard.train(settings, model="gpt2:tiny", out=folder)
    with pytest.raises(SettingError) as refusal:
        regard.train(settings, model="gpt2:tiny", out=folder)
    command = refusal.value.repair.split("`")[1]
    assert shlex.split(command) == ["regard", "train", "--resume", str(folder)]


def test_a_filling_stays_on_its_line() -> None:
    assert prediction._as_text({"\n": 0.75, "a": 0.25}) == "\\n 0.7500  a 0.2500"


def test_a_plan_says_what_it_assumed() -> None:
    plan = run_command("plan", "gpt2:tiny", "--device", "H100", "--utilization", "0.1").stdout
    assert "assumed: a model FLOPs utilization of 10%" in plan
    assert "of the peak rate in matrix products" not in plan


def test_a_regression_answers_a_number(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the dog sees the cat\n" * 40)
    settings = {**QUICK, "text": str(text), "context": 32}
    regard.train(settings, model="bert:tiny", out=tmp_path / "base")
    rated = tmp_path / "rated.tsv"
    rated.write_text("the dog\t0.5\nTHE CAT\t1.5\n" * 10)
    quick = {key: QUICK[key] for key in ("steps", "warmup_steps", "device", "threads")}
    regard.finetune(tmp_path / "base", "regress", rated, out=tmp_path / "run", **quick)
    # The model has never seen a capital letter: 6 of the 14 characters, spaces included.
    assert "43% of the tokens are unknown" in capfd.readouterr().err
    done = run_command("predict", str(tmp_path / "run"), "the dog", "--json")
    line = json.loads(done.stdout)
    assert line["task"] == "regress"
    assert isinstance(line["answer"], float)
    by_class = regard.load(tmp_path / "run", device="cpu").classify("the dog")
    assert [line["answer"]] == pytest.approx([*by_class.values()], rel=1e-4)


def test_of_few_pairs_some_are_held_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"the dog {i}\tder Hund {i}\n" for i in range(20)))
    settings = {**QUICK, "pairs": str(pairs), "preset": "tiny", "layers": 1}
    result = regard.train(settings, out=tmp_path / "run")
    assert "every 10th pair, 2 in all, is held out" in capfd.readouterr().err
    assert "validation" in (result.folder / "metrics.jsonl").read_text()
