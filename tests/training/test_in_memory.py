"""Rows in memory train the model that the same rows in a file do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import regard
from regard.system.errors import SettingError

QUICK: dict[str, Any] = {
    "d_model": 16, "layers": 1, "heads": 2, "d_ff": 16, "steps": 2, "device": "cpu", "threads": 1,
    "learning_rate": 1e-3, "samples": 0, "batch_tokens": 256,
}  # fmt: skip
CLASSIFY = {**QUICK, "model": "bert:tiny", "objective": "classify", "context": 32}
REVIEWS = [(f'a {mood} film, "number {i}" of all', mood) for mood in ("good", "bad") for i in "12"]
PAIRS = [(f"a {name} sleeps", f"{name} schläft") for name in ("cat", "dog")] * 6
TAGS = [(["Ada", "sleeps"], ["B-PER", "O"]), (["Bob"], ["B-PER"])] * 4


class Frame:
    """What is used of a pandas frame."""

    iloc = None

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return [{"review": text, "stars": label} for text, label in REVIEWS]


class Table:
    """What is used of a table of `datasets`."""

    column_names = ("text", "label")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"text": text, "label": label} for text, label in REVIEWS)


def weights(out: Path, data: object, settings: dict[str, Any] = CLASSIFY) -> dict[str, Tensor]:
    regard.train(settings, data=data, valid=data, out=out)
    return load_file(out / "model.safetensors")


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_rows_and_files_train_the_same_model(tmp_path: Path) -> None:
    file = tmp_path / "reviews.jsonl"
    lines = [json.dumps({"text": text, "label": label}) for text, label in REVIEWS]
    file.write_text("\n".join(lines))
    expected = weights(tmp_path / "file", str(file))
    unlike = [{"text": text, "label": label} for text, label in REVIEWS]
    unlike[1] = {**unlike[1], "source": "a letter"}
    kinds = {"tuples": REVIEWS, "frame": Frame(), "table": Table(), "unlike": unlike}
    for name, rows in kinds.items():
        assert equal(weights(tmp_path / name, rows), expected)
    # Nothing of the rows is left but what the run keeps of them.
    assert regard.resume(tmp_path / "tuples", steps=3, quiet=True).steps == 3


def test_pairs_texts_and_tags(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS))
    settings = {**QUICK, "preset": "tiny"}
    assert equal(
        weights(tmp_path / "a", PAIRS, settings), weights(tmp_path / "b", str(pairs), settings)
    )
    texts = [one for one, _ in PAIRS] * 4
    plain = tmp_path / "plain.txt"
    plain.write_text("".join(f"{text}\n" for text in texts))
    settings = {**QUICK, "model": "gpt2:tiny", "context": 16}
    assert equal(
        weights(tmp_path / "c", texts, settings), weights(tmp_path / "d", str(plain), settings)
    )
    regard.train({**CLASSIFY, "objective": "tag"}, data=TAGS, out=tmp_path / "base")
    tuned = regard.finetune(tmp_path / "base", "tag", TAGS, valid=TAGS, epochs=1, device="cpu")
    assert "valid" in tuned.scores


def test_what_is_no_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="row 1 of the data is a int"):
        regard.train(CLASSIFY, data=[("a", "b"), 3], out=tmp_path / "run")
    with pytest.raises(SettingError, match="empty"):
        regard.train(CLASSIFY, data=[], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
