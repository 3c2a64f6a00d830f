"""The README's Python lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import regard


def test_train_load_translate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.en").write_text("a dog\na cat\n" * 60)
    Path("train.de").write_text("ein Hund\neine Katze\n" * 60)
    small = {
        "preset": "tiny",
        "d_model": 16,
        "d_ff": 16,
        "heads": 2,
        "layers": 1,
        "steps": 3,
        "vocabulary": 40,
        "threads": 1,
    }
    result = regard.train({"source": "train.en", "target": "train.de", **small}, out="runs/mine")
    assert result.folder == Path("runs/mine")
    assert result.parameters > 0
    model: Any = regard.load("runs/mine")
    assert isinstance(model.translate("a dog"), str)
    assert len(model.translate(["a dog", "", "a cat"])) == 3
    batch = model.tokens(["a dog"], max_length=128, targets=["ein Hund"])
    output = model(**batch, output_hidden_states=True)
    assert output.loss > 0
    assert len(output.decoder_hidden_states) == 2
    assert callable(regard.train)
    before = model.model.state_dict()["source.table.weight"].clone()
    more = regard.train(
        {"source": "train.en", "target": "train.de", "steps": 2}, model=model, out="runs/more"
    )
    assert not torch.equal(before, model.model.state_dict()["source.table.weight"])
    assert_same_weights(model, regard.load(more.folder))
    assert regard.train(
        small, out="x", batch_tokens=64, builtin_lines=120, beam=1
    ).scores.keys() == {
        "test",
        "pronouns",
    }


def assert_same_weights(model: regard.Model, other: regard.Model) -> None:
    weights = other.model.state_dict()
    for name, tensor in model.model.state_dict().items():
        assert torch.equal(tensor.cpu(), weights[name].cpu()), name
