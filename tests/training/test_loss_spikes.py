"""Loss spikes: a roll-back skips the batches, and the run stays a function of its recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from regard.data.batching import Batch
from regard.system.checkpoint import Checkpoints
from regard.system.errors import DivergenceError, TrainingInterrupted
from regard.training.engine.loop import Loop
from regard.training.engine.progress import FEWEST, LossSpikes, Progress
from regard.training.entry_points import train
from regard.training.objectives.causal_lm import CausalLM
from regard.training.run import resume
from regard.training.run_folder import RunFolder

pytestmark = pytest.mark.thorough

SETTINGS: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "dropout": 0.1,
    "batch_tokens": 64, "context": 16, "tokenizer": "characters", "steps": 60, "warmup_steps": 10,
    "validate_every": 20, "save_every": 7, "log_every": 4, "samples": 0, "threads": 1,
    "learning_rate": 0.002, "spike_threshold": 8.0, "rollback_steps": 6, "device": "cpu",
}  # fmt: skip
BAD_BATCHES = (33,)  # of the first epoch


class Spiking(CausalLM):
    """Some batches of the first epoch have a loss that is a hundred times too large."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        before = (epoch, index)
        for after, batch in super().batches(epoch, index):
            factor = 100.0 if before[0] == 0 and before[1] in BAD_BATCHES else 1.0
            batch.tensors["factor"] = torch.tensor(factor)
            before = after
            yield after, batch

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        others = {name: tensor for name, tensor in tensors.items() if name != "factor"}
        loss, nll = super().loss(others)
        return loss * tensors.get("factor", torch.ones(())), nll


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{i} and {i * i % 97} make {i + i * i % 97}.\n" for i in range(600)))
    return path


def start(text: Path, out: Path, on_step: Any = None, **changes: Any) -> RunFolder:
    settings = SETTINGS | {"text": str(text)} | changes
    train(settings, objective=Spiking, out=out, on_step=on_step)
    return RunFolder(out)


def log(place: RunFolder) -> list[dict[str, Any]]:
    clocks = {"seconds", "tokens_per_second"}
    lines = [json.loads(line) for line in place.metrics.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in clocks} for line in lines]


def weights(place: RunFolder) -> dict[str, Tensor]:
    return load_file(place.weights)


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(text, tmp_path_factory.mktemp("runs") / "whole")


def test_the_batches_of_a_spike_are_skipped_and_named(whole: RunFolder) -> None:
    rollbacks = [line for line in log(whole) if line.get("event") == "rollback"]
    assert len(rollbacks) == 1
    record = rollbacks[0]
    # The spike is at step 34, the 33rd batch from 0; six updates before it are undone with it.
    assert record["spikes"][0]["step"] == BAD_BATCHES[0] + 1
    assert record["step"] == BAD_BATCHES[0] - SETTINGS["rollback_steps"]
    assert record["batches"] == SETTINGS["rollback_steps"] + 1
    assert len(record["rows"]) == len(set(record["rows"])) >= record["batches"]
    assert record["examples"][0]["row"] == record["rows"][0]
    # All updates were made in the end.
    steps = [line["step"] for line in log(whole) if "event" not in line]
    assert steps == list(range(4, 61, 4))


def test_two_spikes_in_a_row_are_one_stretch(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second bad batch is met where the first was: the run goes back farther."""
    monkeypatch.setattr("test_loss_spikes.BAD_BATCHES", (33, 34))
    rollbacks = [r for r in log(start(text, tmp_path / "run")) if r.get("event") == "rollback"]
    assert [(r["step"], r["batches"]) for r in rollbacks] == [(21, 14)]
    assert [spike["step"] for spike in rollbacks[0]["spikes"]] == [34, 28]


def test_a_run_without_bad_batches_is_never_rolled_back(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_loss_spikes.BAD_BATCHES", ())
    calm = start(text, tmp_path / "calm")
    unwatched = start(text, tmp_path / "unwatched", spike_threshold=0.0)
    assert log(calm) == log(unwatched)
    assert all(torch.equal(weights(calm)[name], w) for name, w in weights(unwatched).items())


@pytest.mark.parametrize("step", [26, 33, 34, 35, 37])
def test_a_resumed_run_rolls_back_as_the_uninterrupted_one(
    text: Path, whole: RunFolder, tmp_path: Path, step: int, stop_at: Callable[[int], Any]
) -> None:
    """Stopped before, in and after the stretch, with checkpoints in other places."""
    with pytest.raises(TrainingInterrupted):
        start(text, tmp_path / "cut", stop_at(step))
    resume(tmp_path / "cut", quiet=True, objective=Spiking)
    cut = RunFolder(tmp_path / "cut")
    assert log(cut) == log(whole)
    assert all(torch.equal(weights(cut)[name], w) for name, w in weights(whole).items())


def test_the_checkpoint_that_is_gone_back_to_does_not_matter(
    text: Path, whole: RunFolder, tmp_path: Path
) -> None:
    """Saved rarely: the run goes back to its beginning, and to the same result."""
    rare = start(text, tmp_path / "rare", save_every=1000, keep_last=1)
    assert log(rare) == log(whole)
    assert all(torch.equal(weights(rare)[name], w) for name, w in weights(whole).items())
    saved = Checkpoints(rare.checkpoints).newest(print)
    assert saved is not None
    assert [stretch["spike"] for stretch in saved.progress["skipped"]] == [BAD_BATCHES[0] + 1]


def test_a_spike_that_is_not_of_the_data_ends_the_run(text: Path, tmp_path: Path) -> None:
    def break_weights(loop: Loop) -> None:
        if loop.progress.step == 30:
            with torch.no_grad():
                for parameter in loop.model.parameters():
                    parameter.mul_(40)

    with pytest.raises(DivergenceError, match="roll-backs"):
        start(text, tmp_path / "run", break_weights)


def test_what_is_a_spike() -> None:
    spikes = LossSpikes(threshold=6.0, rollback_steps=10)
    progress = Progress()
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 200):
        noise = 0.1 * float(torch.randn((), generator=generator))
        assert spikes.observe(progress, step, (0, step - 1), (0, step), 3 + noise) is None
    found = spikes.observe(progress, 200, (0, 199), (0, 200), 4.0)
    assert found is not None
    assert (found.first, found.last, found.step, found.spike) == ((0, 189), (0, 200), 189, 200)
    # Too early, no number, or nobody asked.
    early = Progress()
    for step in range(1, FEWEST):
        assert spikes.observe(early, step, (0, step - 1), (0, step), 10.0**step) is None
    assert spikes.observe(progress, 200, (0, 199), (0, 200), float("nan")) is None
    assert LossSpikes(0.0, 10).observe(progress, 201, (0, 200), (0, 201), 1e9) is None
