"""Runs on several corpora, mixed by weights: shares, exact resuming, and what is refused."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from regard.system.errors import SettingError, TrainingInterrupted
from regard.training.assembly import assemble
from regard.training.data.parallel_text import Pairs
from regard.training.data.splits import evenly_spaced
from regard.training.objectives.causal_lm import CausalLM
from regard.training.recipe import loading
from regard.training.run import resume, run
from regard.training.run_folder import RunFolder, begin
from regard.training.setup import Setup

TINY: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "context": 16,
    "batch_tokens": 128, "steps": 12, "warmup_steps": 2, "save_every": 4, "validate_every": 12,
    "tokenizer": "characters", "vocabulary": 100, "threads": 1, "samples": 0,
    "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A large corpus of the letter a, a small one of the letter b."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, letter, count in (("large", "a", 900), ("small", "b", 100)):
        words = [letter * (1 + i % 9) for i in range(count)]
        (folder / f"{name}.txt").write_text("".join(f"{word}\n" for word in words))
        (folder / f"{name}.tsv").write_text("".join(f"{word}\t{word}\n" for word in words))
    return {
        "text": f"{folder}/large.txt,{folder}/small.txt",
        "pairs": f"{folder}/large.tsv,{folder}/small.tsv",
    }


def setup(out: Path, values: dict[str, Any]) -> Setup:
    recipe = loading.load(None, TINY | values)
    return Setup(begin(recipe, out, "test"), recipe, lambda _: None)


def test_pairs_are_mixed_by_their_weights(corpora: dict[str, str], tmp_path: Path) -> None:
    values = {"pairs": corpora["pairs"], "mixture_weights": "1,3"}
    assembled = assemble(setup(tmp_path / "run", values))
    train = assembled.data.train
    assert [span.rows for span in train.spans] == [891, 99]  # every 100th validates
    batches = assembled.batches(0, 0)
    rows = np.concatenate([batch.rows for _, batch in itertools.islice(batches, 60)])
    # Blocks are as long as an epoch here, and its first three quarters are of the small corpus.
    assert np.mean(rows >= 891) == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(("count", "most", "expected"), [(10, 3, [0, 4, 8]), (3, 9, [0, 1, 2])])
def test_samples_are_evenly_spaced(count: int, most: int, expected: list[int]) -> None:
    assert list(evenly_spaced(lambda: iter(range(count)), most)()) == expected


def test_without_weights_corpora_follow_one_another(
    corpora: dict[str, str], tmp_path: Path
) -> None:
    data = Pairs.prepare(setup(tmp_path / "run", {"pairs": corpora["pairs"]}), None)
    assert len(data.train.spans) == 1
    assert not data.train.in_blocks
    assert len(data.valid_pairs) == 10


def test_windows_are_mixed_by_temperature(corpora: dict[str, str], tmp_path: Path) -> None:
    values = {"text": corpora["text"], "objective": "causal", "mixture_temperature": 1e6}
    assembled = assemble(setup(tmp_path / "run", values))
    assert isinstance(assembled, CausalLM)
    letters = []
    for _, batch in itertools.islice(assembled.batches(0, 0), 50):
        for row in batch.tensors["tokens"]:
            letters.append(set(assembled.trained_model.tokenizer.decode(row.tolist())) - {"\n"})
    # Never both: a window is of one corpus; each has half at an infinite temperature.
    assert all(len(one) == 1 for one in letters)
    assert np.mean([one == {"b"} for one in letters]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "kind",
    [
        "masked",
        pytest.param("pairs", marks=pytest.mark.slow),
        pytest.param("causal", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_mixture_is_the_uninterrupted_one(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    values: dict[str, Any] = {"mixture_temperature": 3.0}
    if kind == "pairs":
        values["pairs"] = corpora["pairs"]
    else:
        values |= {"text": corpora["text"], "objective": kind}

    def train(out: Path, on_step: Any = None) -> RunFolder:
        recipe = loading.load(None, TINY | values)
        place = begin(recipe, out, "test")
        run(place, recipe, "test", quiet=True, on_step=on_step)
        return place

    whole = train(tmp_path / "whole")

    def interrupt(loop: Any) -> None:
        if loop.progress.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingInterrupted):
        train(tmp_path / "cut", interrupt)
    resume(tmp_path / "cut", quiet=True)
    weights = load_file(whole.folder / "model.safetensors")
    again = load_file(tmp_path / "cut" / "model.safetensors")
    assert all(weights[name].equal(again[name]) for name in weights)
    # The manifest has what the order depends on.
    manifest = json.loads((whole.data / "train" / "corpus.json").read_text())
    assert len(manifest["about"]["corpora"]) == 2


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"mixture_weights": "1,2,3"}, "3 weights for 2 corpora"),
        ({"mixture_weights": "1,nan"}, "not positive numbers"),
        ({"mixture_weights": "1,2", "mixture_temperature": 2.0}, "cannot be combined"),
        ({"mixture_weights": "1,2", "memory": 16}, "corpora are not mixed"),
        ({"mixture_weights": "1", "text": "one.txt"}, "nothing to mix"),
    ],
)
def test_mixtures_that_make_no_sense(values: dict[str, Any], problem: str) -> None:
    text = {"text": "a.txt,b.txt", "objective": "causal"}
    with pytest.raises(SettingError, match=problem):
        loading.load(None, TINY | text | values)
