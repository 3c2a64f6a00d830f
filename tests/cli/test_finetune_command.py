"""regard finetune, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
import torch

from regard.builder import build
from regard.cli.finetune import command
from regard.families import folder as folders
from regard.families.encoders import bert
from regard.system.errors import SettingError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    place = tmp_path / "bert"
    place.mkdir()
    description = bert.preset("tiny", len(WORDS), 16, d_model=16, d_ff=24, heads=2, layers=1)
    (place / "config.json").write_text(json.dumps(folders.describe(description)))
    folders.write_weights(place / "model.safetensors", build(description), description)
    (place / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return place


def test_a_run_as_json_and_its_resumption(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\n" + "a good film\tup\na bad film\tdown\n" * 8)
    out = tmp_path / "run"
    said = [
        "--task",
        "classify",
        "--data",
        str(data),
        "--test",
        str(data),
        "--out",
        str(out),
        "--json",
    ]
    command.main(
        [str(model), *said, "--epochs", "30", "--learning-rate", "0.01"], standalone_mode=False
    )
    result = json.loads(capsys.readouterr().out)
    assert result["test"]["accuracy"] == 100.0
    assert result["test"]["examples"] == 16
    command.main(["--resume", str(out), "--json"], standalone_mode=False)  # finished: scored again
    assert json.loads(capsys.readouterr().out)["test"] == result["test"]


def test_what_is_missing_is_said(model: Path) -> None:
    with pytest.raises(SettingError, match="nothing to train"):
        command.main([str(model), "--task", "tag"], standalone_mode=False)
    with pytest.raises(click.NoSuchOption, match="--lroa"):
        command.main([str(model), "--lroa", "3"], standalone_mode=False)
