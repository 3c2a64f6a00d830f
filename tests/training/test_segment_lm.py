"""Recurrent language models: truncated back-propagation through time, with a state that is carried on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.decode.strategy import BeamSearch, Greedy
from regard.families import folder as folders
from regard.lab.show.modules import summarize
from regard.lab.verify.invariants import check_invariants
from regard.models.language_model import LanguageModel
from regard.system.errors import CheckpointError, DataError, ModelError, SettingError
from regard.training.assembly import assemble
from regard.training.objectives.causal_lm import SegmentLM
from regard.training.objectives.losses import cross_entropy
from regard.training.recipe import loading
from regard.training.run import resume, run
from regard.training.run_folder import begin
from regard.training.setup import Setup

CELLS = ("rnn", "gru", "lstm")
TINY: dict[str, Any] = {
    "objective": "causal", "preset": "tiny", "d_model": 12, "layers": 2, "dropout": 0.0, "batch_tokens": 60, "context": 20,
    "tokenizer": "characters", "steps": 9, "warmup_steps": 2, "save_every": 9, "validate_every": 9, "samples": 1, "threads": 1,
    "schedule": "constant", "learning_rate": 0.01,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text("".join(f"line {i}, and {i * 7 % 11} more of the same. " for i in range(30)))
    return str(path)


def streamed(text: str, out: Path, **changes: Any) -> SegmentLM:
    recipe = loading.load(None, TINY | {"text": text} | changes)
    task = assemble(Setup(begin(recipe, out, "test"), recipe, lambda _: None))
    assert isinstance(task, SegmentLM)
    return task


def test_a_short_text_has_fewer_streams_unless_the_batch_is_named(
    text: str, tmp_path: Path
) -> None:
    """Some 1,000 characters are not 64 streams of 20 tokens."""
    with pytest.raises(DataError, match="streams"):
        streamed(text, tmp_path / "named", model="lstm", batch_tokens=1280)
    settings = {key: value for key, value in TINY.items() if key != "batch_tokens"}
    result = regard.train(settings, model="lstm", text=text, out=tmp_path / "counted")
    stored = json.loads((result.folder / "state" / "recipe.json").read_text())
    rows, rest = divmod(stored["train"]["batch_tokens"], 20)
    assert rest == 0
    assert 1 < rows < 64
    # What a resumed run and an evaluation read in.
    assert regard.evaluate(result.folder, text)["loss"] > 0


def gradients(task: SegmentLM, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(task.model.parameters())))


@pytest.mark.parametrize("cell", CELLS)
def test_windows_follow_each_other_and_gradients_stay_inside(
    cell: str, text: str, tmp_path: Path
) -> None:
    task = streamed(text, tmp_path / "run", model=cell)
    model = task.model.double()
    task.carry = {name: part.double() for name, part in task.carry.items()}
    positions, batches = zip(*itertools.islice(task.batches(0, 0), 40), strict=True)
    epoch = [p[0] for p in positions].index(1) + 1  # windows of the first epoch
    assert epoch == task.stream_length // task.context
    whole = torch.cat([b.tensors["tokens"] for b in batches[:epoch]], dim=1)
    labels = torch.cat([b.tensors["labels"] for b in batches[:epoch]], dim=1)
    assert torch.equal(whole[:, 1:], labels[:, :-1])
    # What is foreseen is what one long pass foresees.
    surprises = [task.loss(b.tensors)[1] for b in batches[:epoch]]
    _, wanted = cross_entropy(model.head(model(whole)[0]), labels)
    torch.testing.assert_close(sum(surprises), wanted, rtol=1e-6, atol=0)
    # A new epoch begins with nothing, and going on from a position gives the same batches.
    torch.testing.assert_close(
        task.loss(batches[epoch].tensors)[1], surprises[0], rtol=1e-6, atol=0
    )
    again = next(task.batches(*positions[2]))[1]
    assert torch.equal(again.tensors["tokens"], batches[3].tensors["tokens"])
    assert again.tensors["goes_on"] == 1
    # The gradient of the second window is that of its loss from a state that is a constant.
    task.loss(batches[0].tensors)
    began = {name: part.clone() for name, part in task.carry.items()}
    found = gradients(task, task.loss(batches[1].tensors)[0])
    two = batches[1].tensors
    for one, other in zip(found, gradients(task, task.segment_loss(two, began)[0]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    both = model.head(model(whole[:, : 2 * task.context])[0])[:, task.context :]
    full = gradients(task, cross_entropy(both, two["labels"])[0])
    assert any((one - other).abs().max() > 1e-6 for one, other in zip(found, full, strict=True))


def test_a_window_as_long_as_the_text_is_back_propagation_through_all_of_it(
    text: str, tmp_path: Path
) -> None:
    task = streamed(
        text, tmp_path / "run", model="lstm", context=400, batch_tokens=400, held_out=0.5
    )
    position, batch = next(task.batches(0, 0))
    assert position == (1, 0)
    found = gradients(task, task.loss(batch.tensors)[0])
    model = task.model
    wanted = gradients(
        task,
        cross_entropy(model.head(model(batch.tensors["tokens"])[0]), batch.tensors["labels"])[0],
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_a_run_learns_stops_and_goes_on(
    cell: str, text: str, tmp_path: Path, crash_at: Callable[[int], Any]
) -> None:
    settings = TINY | {
        "text": text,
        "model": cell,
        "steps": 60,
        "save_every": 7,
        "validate_every": 30,
        "log_every": 5,
    }
    recipe = loading.load(None, settings)
    result = run(begin(recipe, tmp_path / "whole", "test"), recipe, "test", quiet=True)
    lines = [
        json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["loss"] for line in lines if "event" not in line]
    assert losses[-1] < 0.9 * losses[0]
    with pytest.raises(KeyboardInterrupt):
        # In the middle of an epoch, so that the carried state counts.
        run(
            begin(recipe, tmp_path / "parts", "test"),
            recipe,
            "test",
            quiet=True,
            on_step=crash_at(7),
        )
    assert resume(tmp_path / "parts", quiet=True).scores == result.scores
    one, opened = folders.open_model(tmp_path / "whole")
    two, _ = folders.open_model(tmp_path / "parts")
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
    assert [f.verdict for f in check_invariants(one.double(), opened)] == ["holds"] * 5
    writer = regard.load(tmp_path / "whole", device="cpu")
    assert isinstance(writer, LanguageModel)
    prompts = ["line 3, and", "more", "l"]
    for strategy in (Greedy(), BeamSearch(3)):
        together = writer.generate(prompts, strategy, max_new_tokens=8)
        assert together == [
            writer.generate(prompt, strategy, max_new_tokens=8) for prompt in prompts
        ]
    total, count = writer.nll(prompts[:2])
    alone = [writer.nll(prompt) for prompt in prompts[:2]]
    assert count == sum(n for _, n in alone)
    assert total == pytest.approx(sum(s for s, _ in alone), rel=1e-5)


def test_a_position_beyond_the_text_is_refused(text: str, tmp_path: Path) -> None:
    task = streamed(text, tmp_path / "run", model="lstm")
    segments = task.stream_length // task.context
    assert next(task.batches(0, segments - 1))[0] == (1, 0)
    with pytest.raises(CheckpointError, match=f"segment {segments} of a text with {segments}"):
        next(task.batches(0, segments))


def test_every_held_out_token_counts_once(text: str, tmp_path: Path) -> None:
    for n, rows in enumerate((1, 2, 5)):
        task = streamed(text, tmp_path / str(n), model="gru", batch_tokens=20 * rows)
        assert task.nll("valid")[1] == len(task.validation_tokens) - 1
    one = streamed(text, tmp_path / "one", model="gru", batch_tokens=20)
    tokens = torch.from_numpy(one.validation_tokens[:].astype("int64"))[None]
    hidden, _ = one.model(tokens[:, :-1])
    wanted = cross_entropy(one.model.head(hidden), tokens[:, 1:])[1].item()
    assert one.nll("valid")[0] == pytest.approx(wanted, rel=1e-5)


def test_the_spec_and_what_it_refuses(text: str, tmp_path: Path) -> None:
    tokens = spec.Tokens(9, None)
    for cell in CELLS:
        model = spec.RecurrentDecoder(6, tokens, spec.Recurrent(cell, 2), tied=cell != "gru")  # type: ignore[arg-type]
        assert (
            parameter_count(model)
            == trainable(build(model))
            == sum(s.parameters for s in summarize(model))
        )
        assert spec.from_dict(spec.to_dict(model)) == model
    with pytest.raises(ModelError, match="bidirectional"):
        spec.RecurrentDecoder(6, tokens, spec.Recurrent("gru", 1, True))
    with pytest.raises(ModelError, match="no encoder"):
        spec.RecurrentDecoder(6, tokens, spec.Recurrent("gru", looks=spec.LuongAttention()))
    with pytest.raises(DataError, match="streams"):
        streamed(text, tmp_path / "short", model="gru", batch_tokens=100_000)
    with pytest.raises(SettingError, match="not for the objective"):
        loading.load(None, TINY | {"text": text, "model": "luong"})
