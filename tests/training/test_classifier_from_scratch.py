"""Classes from nothing: ListOps with each attention, resumed, opened again; and a file of one's own."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.evaluation.scores import Score
from regard.system.errors import SettingError
from regard.training.assembly import assemble
from regard.training.recipe import loading
from regard.training.result import Result
from regard.training.run import run
from regard.training.run_folder import begin
from regard.training.setup import Setup

TINY: dict[str, Any] = {
    "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "batch_tokens": 512, "steps": 4, "warmup_steps": 2, "builtin_lines": 100,
    "test_lines": 12, "context": 64, "validate_every": 4, "save_every": 4, "threads": 1, "device": "cpu",
}  # fmt: skip


def trained(out: Path, **changes: Any) -> Result:
    recipe = loading.load("listops", TINY | changes)
    return run(begin(recipe, out, "test"), recipe, "test", quiet=True)


@pytest.mark.parametrize(
    "word", ["softmax", "longformer:8", "bigbird:8", "linformer:8", "reformer:4:16"]
)
def test_every_attention_reads_lists(word: str, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", attention=word)
    score = found.scores["test"]
    assert isinstance(score, Score)
    assert score.examples == 12
    assert 0 < score.majority < 100
    model = regard.load(tmp_path / "run")
    said = model.classify("[MAX 2 9 [MIN 4 7 ] 0 ]")  # type: ignore[attr-defined]
    assert said.keys() == {str(digit) for digit in range(10)}
    assert "majority" in (tmp_path / "run" / "README.md").read_text()


def test_a_file_of_ones_own_is_learnt(tmp_path: Path) -> None:
    lines = [
        f"{'good' if i % 3 else 'bad'} word{i % 5} here\t{'yes' if i % 3 else 'no'}\n"
        for i in range(90)
    ]
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    files = {
        "text": str(tmp_path / "train.tsv"),
        "valid_text": str(tmp_path / "test.tsv"),
        "test_text": str(tmp_path / "test.tsv"),
    }
    found = trained(
        tmp_path / "run", steps=60, learning_rate=0.01, dropout=0.0, validate_every=60, **files
    )
    score = found.scores["test"]
    assert isinstance(score, Score)
    assert score.accuracy == 100
    assert score.majority == pytest.approx(100 * 60 / 90)
    classifier: Any = regard.load(tmp_path / "run")
    scores = classifier.classify("bad word1 here")
    assert max(scores, key=scores.get) == "no"


def test_settings_of_others_are_refused() -> None:
    with pytest.raises(SettingError, match="test_text"):
        loading.load(None, {"objective": "causal", "text": "a.txt", "test_text": "b.txt"})


@pytest.mark.parametrize(
    ("name", "unit"), [("listops", "examples"), ("stories", "stories"), (None, "tokens")]
)
def test_the_log_says_what_it_counts(
    name: str | None, unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And counts it: as many as there are labels, one for each example, story or token."""
    changes = {
        key: TINY[key]
        for key in ("layers", "batch_tokens", "builtin_lines", "test_lines", "threads", "device")
    }
    if name != "stories":
        changes["context"] = 32
    if name is None:  # a language model
        (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 60)
        changes |= {
            "objective": "causal",
            "text": str(tmp_path / "text.txt"),
            "tokenizer": "characters",
        }
    recipe = loading.load(
        name, changes | {"steps": 2, "warmup_steps": 1, "log_every": 2, "samples": 0}
    )
    place = begin(recipe, tmp_path / "run", "test")
    run(place, recipe, "test", quiet=False)
    said = capsys.readouterr().err
    assert re.findall(r"step 2/2  loss \S+  \S+ (\S+)/s", said) == [unit]
    line = next(
        line
        for line in map(json.loads, place.metrics.read_text().splitlines())
        if "event" not in line
    )
    batches = islice(assemble(Setup(place, recipe, lambda _: None)).batches(0, 0), 2)
    counts = [(batch.tensors["labels"] >= 0).sum().item() for _, batch in batches]
    assert (line["unit"], line["tokens"]) == (unit, sum(counts))
