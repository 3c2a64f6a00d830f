"""SIGHUP, runs that cannot go on, and what a run folder holds."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.elastic.multiprocessing.api import SignalException

import regard
from command_line import SIZES, Command
from regard.system.errors import SettingError, TrainingInterrupted
from regard.training.engine.loop import Loop
from regard.training.engine.metrics_log import MetricsLog
from regard.training.parallel import ranks
from regard.training.run import resume


def test_a_closed_terminal_saves_as_sigterm_does(files: Path, tmp_path: Path) -> None:
    def hang_up(loop: Loop) -> None:
        if loop.progress.step == 3:
            os.kill(os.getpid(), signal.SIGHUP)

    data = {"source": str(files / "s.en"), "target": str(files / "s.de")}
    # Whoever runs the tests under nohup would have it ignored.
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(TrainingInterrupted, match="SIGHUP") as stopped:
            regard.train({**SIZES, **data, "steps": 50}, out=tmp_path / "run", on_step=hang_up)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert stopped.value.exit_code == 128 + signal.SIGHUP
    assert list((tmp_path / "run/state/checkpoints").glob("step-*"))


def test_nohup_is_respected(files: Path, tmp_path: Path) -> None:
    def hang_up(loop: Loop) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    data = {"source": str(files / "s.en"), "target": str(files / "s.de")}
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = regard.train({**SIZES, **data, "steps": 2}, out=tmp_path / "r", on_step=hang_up)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert result.steps == 2


def test_a_finished_run_trains_longer(command: Command, trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    again = command("train", "--resume", run)
    assert "resuming at step 8; the run is finished" in again.err
    command("train", "--resume", run, "--steps", "8").refused("at step 8")
    command("train", "--resume", run, "--steps", "9", "--seed", "2").refused("only --steps N")
    done = command("train", "--resume", run, "--steps", "11", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["steps"] == 11
    # The number is stored: a resumed run knows its end.
    assert json.loads((run / "state/recipe.json").read_text())["train"]["steps"] == 11


def test_a_longer_run_is_the_run_that_was_longer_from_the_start(
    files: Path, tmp_path: Path
) -> None:
    """The schedule of this learning rate does not depend on the number of steps."""
    data = {"source": str(files / "s.en"), "target": str(files / "s.de"), "warmup_steps": 2}
    settings = {**SIZES, **data, "batch_tokens": 512, "final_weights": "last"}
    regard.train({**settings, "steps": 4}, out=tmp_path / "short")
    resume(tmp_path / "short", steps=7, quiet=True)
    regard.train({**settings, "steps": 7}, out=tmp_path / "long")
    name = "model.safetensors"
    assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "long" / name).read_bytes()


def test_early_stopping_does_not_end_a_run_that_is_to_go_on(files: Path, tmp_path: Path) -> None:
    data = {"source": str(files / "s.en"), "target": str(files / "s.de"), "warmup_steps": 2}
    settings = {**SIZES, **data, "validate_every": 1, "learning_rate": 1e-12, "patience": 2}
    first = regard.train({**settings, "steps": 30}, out=tmp_path / "run")
    assert first.steps < 30
    assert resume(tmp_path / "run", quiet=True).steps == first.steps
    assert resume(tmp_path / "run", steps=31, quiet=True).steps > first.steps


def test_json_has_the_losses_without_a_test_set(
    command: Command, files: Path, tmp_path: Path
) -> None:
    flags = [w for k, v in SIZES.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    data = ["--source", files / "s.en", "--target", files / "s.de", "--steps", "2"]
    done = command("train", *flags, *data, "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert 0 < report["validation_loss"] < 20
    assert 0 < report["loss"] < 20


def test_files_of_a_run_have_one_mode(trained: Path) -> None:
    names = ("model.safetensors", "config.json", "tokenizer.json", "README.md")
    modes = {(trained / name).stat().st_mode & 0o777 for name in names}
    assert len(modes) == 1


def test_the_card_tells_nothing_of_this_disk(trained: Path, files: Path) -> None:
    card = (trained / "README.md").read_text()
    assert "s.en" in card
    assert str(files) not in card
    assert "/tmp" not in card


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_several_processes_exit_as_one_does(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(arguments: object) -> None:
        raise SignalException("received a signal", number)

    monkeypatch.setattr("torch.distributed.run.run", stopped)
    assert ranks.start(2, ["train"]) == 128 + number


def test_an_average_without_time_is_said_and_not_exported(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {}
    for weights in ("ema:0.9999", "last", "ema:0.5"):
        folders[weights] = tmp_path / weights.replace(":", "-")
        data = {"source": str(files / "s.en"), "target": str(files / "s.de")}
        settings = {**SIZES, **data, "steps": 8, "validate_every": 4, "final_weights": weights}
        regard.train(settings, out=folders[weights])
        assert ("would still be the initial weights" in capsys.readouterr().err) == (
            weights == "ema:0.9999"
        )
    stored = {name: load_file(folder / "model.safetensors") for name, folder in folders.items()}
    same = [torch.equal(a, stored["last"][name]) for name, a in stored["ema:0.9999"].items()]
    assert all(same)
    assert any(not torch.equal(a, stored["last"][name]) for name, a in stored["ema:0.5"].items())


def test_infinite_numbers_are_words_in_json(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write({"step": 1, "loss": math.inf, "entropies": {"a": math.nan}, "samples": [-math.inf]})
    log.close()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=refuse)["entropies"] == {"a": "nan"}


def test_a_run_is_overwritten_if_asked_for(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = {**SIZES, "source": str(files / "s.en"), "target": str(files / "s.de"), "steps": 1}
    first = regard.train(settings, out="~/run")
    assert first.folder == tmp_path / "run"  # a quoted ~ is the home
    with pytest.raises(SettingError, match="already exists"):
        regard.train(settings, out=first.folder)
    again = regard.train(settings, out=first.folder, overwrite=True, steps=2)
    assert again.steps == 2
    assert len(regard.load("~/run").translate(["a"])) == 1
    with pytest.raises(SettingError, match="the model to start from"):
        regard.finetune(first.folder, "translate", files / "s.en", out=first.folder, overwrite=True)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "diary.txt").write_text("no run")
    with pytest.raises(SettingError, match="already exists"):
        regard.train(settings, out=notes, overwrite=True)
