"""Whole runs on a small corpus: resumed = uninterrupted, accumulated = big batch, folders others can open."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
import signal
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.cli.train import exit_on_interruption
from regard.core.seeding import generator, philox
from regard.data.generated import builtin
from regard.data.text.tokenizer_files import load_translation_tokenizer
from regard.system.checkpoint import Checkpoints
from regard.system.errors import (
    CheckpointError,
    DataError,
    DivergenceError,
    SettingError,
    TrainingInterrupted,
)
from regard.training.assembly import assemble, new_model
from regard.training.data.parallel_text import Pairs, ParallelCorpora
from regard.training.engine import loop
from regard.training.engine.loop import Loop
from regard.training.engine.progress_bar import ProgressBar
from regard.training.engine.train_step import dropout_seed
from regard.training.objectives.sequence_to_sequence import SequenceToSequence
from regard.training.parallel.strategy import Strategy
from regard.training.recipe import loading
from regard.training.run import resume, run
from regard.training.run_folder import RunFolder, begin, read_run
from regard.training.setup import Setup

SMALL: dict[str, Any] = {
    "preset": "tiny", "d_model": 32, "d_ff": 48, "heads": 2, "layers": 1, "dropout": 0.2, "attention_dropout": 0.1,
    "batch_tokens": 256, "steps": 24, "warmup_steps": 10, "save_every": 8, "validate_every": 8, "log_every": 3, "samples": 1,
    "tokenizer": "words", "vocabulary": 900, "beam": 2, "threads": 1, "learning_rate": 0.002,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("text")
    files = {}
    for split, lines in (("train", 400), ("valid", 40)):
        pairs = list(itertools.islice(builtin.sentences(split), lines))
        for side in ("source", "target"):
            path = folder / f"{split}.{side}"
            path.write_text("".join(getattr(pair, side) + "\n" for pair in pairs))
            files[side if split == "train" else f"valid_{side}"] = str(path)
    return files | {"test_source": files["valid_source"], "test_target": files["valid_target"]}


def start(text: dict[str, str], out: Path, on_step: Any = None, **changes: Any) -> RunFolder:
    recipe = loading.load(None, SMALL | text | changes)
    place = begin(recipe, out, "test")
    run(place, recipe, "test", quiet=True, on_step=on_step)
    return place


def losses(place: RunFolder) -> list[dict[str, Any]]:
    """The log without its clocks."""
    clocks = {"seconds", "tokens_per_second"}
    lines = [json.loads(line) for line in place.metrics.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in clocks} for line in lines]


def test_what_is_compiled_before_the_first_step_changes_nothing(
    text: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = start(text, tmp_path / "plain")
    monkeypatch.setattr(Loop, "compiles", True)
    monkeypatch.setattr(loop, "compiled", lambda model: nullcontext())
    recipe = loading.load(None, SMALL | text)
    place = begin(recipe, tmp_path / "warm", "test")
    result = run(place, recipe, "test", quiet=True)
    assert losses(place) == losses(plain)
    assert 0 < result.compiling < result.seconds


def state(place: RunFolder) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    saved = Checkpoints(place.state / "checkpoints").newest(print)
    assert saved is not None
    tensors = {f"{g}/{n}": t for g, group in saved.groups.items() for n, t in group.items()}
    return {
        k: v for k, v in saved.progress.items() if k not in ("seconds", "metrics_position")
    }, tensors


@pytest.fixture(scope="module")
def whole(text: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(text, tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.parametrize(
    ("weights", "optimizer"),
    [("best", "adam"), ("average:2", "adam"), ("ema:0.9", "adam"), ("last", "muon")],
)
def test_resumed_equals_uninterrupted(
    text: dict[str, str],
    tmp_path: Path,
    stop_at: Callable[[int], Any],
    weights: str,
    optimizer: str,
) -> None:
    """Stopped at a step that no interval divides, twice, and gone on: every bit of state, log and result is the same."""
    settings = {"final_weights": weights, "optimizer": optimizer}
    whole = start(text, tmp_path / "whole", **settings)
    with pytest.raises(TrainingInterrupted) as stopped:
        start(text, tmp_path / "cut", stop_at(5), **settings)
    assert stopped.value.exit_code == 143
    with pytest.raises(TrainingInterrupted):
        resume(tmp_path / "cut", quiet=True, on_step=stop_at(13))
    resume(tmp_path / "cut", quiet=True)
    cut = RunFolder(tmp_path / "cut")
    assert losses(cut) == losses(whole)
    (progress, tensors), (expected, reference) = state(cut), state(whole)
    assert progress == expected
    assert tensors.keys() == reference.keys()
    assert all(torch.equal(tensors[name], reference[name]) for name in tensors)
    exported, other = load_file(cut.weights), load_file(whole.weights)
    assert all(torch.equal(exported[name], other[name]) for name in other)


def test_the_seed_decides_everything(
    text: dict[str, str], whole: RunFolder, tmp_path: Path
) -> None:
    assert losses(start(text, tmp_path / "same")) == losses(whole)
    assert losses(start(text, tmp_path / "other", seed=2)) != losses(whole)


def test_a_run_without_checkpoint_starts_again(
    text: dict[str, str], whole: RunFolder, tmp_path: Path
) -> None:
    """Killed before the first checkpoint: nothing but the recipe, then half a log; the run is the same."""
    recipe = loading.load(None, SMALL | text)
    place = begin(recipe, tmp_path / "early", "test")
    place.metrics.write_text('{"step": 3, "loss": 1}\n{"st')
    again, parsed, name = read_run(place.folder)
    assert (parsed, name) == (recipe, "test")
    run(again, parsed, name, quiet=True)
    assert losses(place) == losses(whole)


def test_a_damaged_checkpoint_falls_back(
    text: dict[str, str], whole: RunFolder, tmp_path: Path, capsys: Any
) -> None:
    place = start(text, tmp_path / "hurt")
    newest = sorted((place.state / "checkpoints").iterdir())[-1]
    (newest / "weights.safetensors").write_bytes(b"nothing")
    resume(place.folder)
    assert "damaged" in capsys.readouterr().err
    assert losses(place) == losses(whole)


@pytest.mark.parametrize("weights", ["best", "average:2"])
def test_falling_back_finds_the_weights_it_refers_to(
    text: dict[str, str], tmp_path: Path, weights: str
) -> None:
    """Validation and saving at odds: the older checkpoint names snapshots that the newer one no longer needs."""
    settings = {"final_weights": weights, "validate_every": 5, "save_every": 6, "steps": 23}
    whole, hurt = (start(text, tmp_path / name, **settings) for name in ("whole", "hurt"))
    newest = sorted((hurt.state / "checkpoints").iterdir())[-1]
    (newest / "optimizer.safetensors").unlink()
    resume(hurt.folder, quiet=True)
    assert losses(hurt) == losses(whole)
    one, other = load_file(hurt.weights), load_file(whole.weights)
    assert all(torch.equal(one[name], other[name]) for name in other)
    # The older checkpoint alone can be exported, without a further validation.
    older = Checkpoints(hurt.state / "checkpoints").progresses()[0]
    named = (older["best_step"], *older["averaged"])
    assert all(
        (hurt.state / "snapshots" / f"step-{step:09d}.safetensors").exists() for step in named
    )


def test_finished_runs_and_strange_folders(
    text: dict[str, str], whole: RunFolder, tmp_path: Path
) -> None:
    before = losses(whole)
    resume(whole.folder, quiet=True)
    assert losses(whole) == before
    with pytest.raises(CheckpointError, match="not a run"):
        read_run(tmp_path)
    with pytest.raises(SettingError, match="--resume"):
        begin(loading.load(None, SMALL | text), whole.folder, "test")


def new_task(setup: Setup, data: ParallelCorpora) -> SequenceToSequence:
    translator: Any = new_model(setup, data)
    return SequenceToSequence(translator, data, setup)


def test_accumulated_equals_big_batch(text: dict[str, str], tmp_path: Path) -> None:
    """One update from a batch, and from the same rows in three unequal parts: ≤ 1e-6 of the largest weight change."""
    recipe = loading.load(None, SMALL | text | {"dropout": 0.0, "attention_dropout": 0.0})
    setup = Setup(begin(recipe, tmp_path / "a", "test"), recipe, lambda _: None)
    data = Pairs.prepare(setup, None)
    rows = np.arange(40)
    results = []
    for parts in ([rows], [rows[:5], rows[5:30], rows[30:]]):
        task = new_task(setup, data)
        strategy = Strategy(task)
        loop = Loop(strategy, ProgressBar(1, quiet=True))
        loop.train_step([task.collate("train", part) for part in parts])
        gradient = {
            name: t for name, t in loop.optimizer.state().items() if name.startswith("exp_avg/")
        }
        results.append((gradient, loop.window.clone()))
        whole = task.collate("train", rows)
        fresh = new_task(setup, data)
        loss = fresh.loss(whole.tensors)[0] / whole.tokens  # of the mean over all tokens
        loss.backward()
        for name, parameter in fresh.model.named_parameters():
            assert parameter.grad is not None
            expected = (1 - recipe.train.betas[0]) * parameter.grad
            torch.testing.assert_close(gradient[f"exp_avg/{name}"], expected, rtol=1e-4, atol=1e-8)
    (one, window), (other, same) = results
    torch.testing.assert_close(window, same, rtol=1e-6, atol=0)
    for name, value in one.items():
        assert (value - other[name]).abs().max() <= 1e-6 * value.abs().max(), name


def test_the_folder_opens_and_translates(whole: RunFolder) -> None:
    translator: Any = regard.load(whole.folder)
    lines = ["The old dog sees a small cat.", "", "The man reads."]
    out = translator.translate(lines)
    assert len(out) == 3
    assert out[1] == ""
    assert translator.translate(lines[0]) == out[0]
    card = (whole.folder / "README.md").read_text()
    assert "BLEU signature `nrefs:1|" in card
    assert "steps = 24" in card
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= {
        p.name for p in whole.folder.iterdir()
    }


def test_separate_vocabularies_and_own_tokenizer(
    text: dict[str, str], whole: RunFolder, tmp_path: Path
) -> None:
    place = start(
        text,
        tmp_path / "two",
        joint=False,
        steps=2,
        tokenizer="bpe",
        vocabulary=300,
        position="learned",
    )
    translator: Any = regard.load(place.folder)
    assert translator.spec.share == "target"
    with pytest.raises(DataError, match="first is text 2"):
        translator.translate(["short", "far too long " * 200])
    assert len(translator.translate("a " * 200).split()) <= 256
    given = start(text, tmp_path / "given", steps=2, tokenizer=str(whole.folder / "tokenizer.json"))
    assert (
        load_translation_tokenizer(given.folder / "tokenizer.json").vocabulary
        == load_translation_tokenizer(whole.folder / "tokenizer.json").vocabulary
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_and_recomputation_train(
    text: dict[str, str], tmp_path: Path, precision: str
) -> None:
    place = start(
        text,
        tmp_path / precision,
        precision=precision,
        gradient_checkpointing=True,
        accumulate=2,
        max_grad_norm=1.0,
    )
    logged = [line["loss"] for line in losses(place) if "event" not in line]
    assert logged[-1] < logged[0] - 0.3


def test_early_stopping(text: dict[str, str], tmp_path: Path) -> None:
    """With a learning rate that harms, the first validation stays the best; two more and the run ends."""
    place = start(
        text,
        tmp_path / "stop",
        steps=200,
        learning_rate=3.0,
        schedule="constant",
        warmup_steps=1,
        patience=2,
        max_grad_norm=0.1,
    )
    steps = [line["step"] for line in losses(place)]
    assert max(steps) < 200
    progress, _ = state(place)
    assert progress["finished"]
    assert progress["stale"] == 2


def test_tensorboard(text: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    place = start(text, tmp_path / "board", steps=3, tensorboard=True)
    assert any(p.name.startswith("events") for p in (place.folder / "tensorboard").iterdir())


def test_what_is_not_finite_is_reported_and_ends_the_run(
    text: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    honest, calls = SequenceToSequence.loss, itertools.count(1)

    def poisoned(self: SequenceToSequence, tensors: Any) -> Any:
        loss, nll = honest(self, tensors)
        return (
            (loss * float("nan"), nll)
            if self.model.training and next(calls) in (4, 7, 8, 9)
            else (loss, nll)
        )

    monkeypatch.setattr(SequenceToSequence, "loss", poisoned)
    recipe = loading.load(None, SMALL | text | {"accumulate": 1})
    place = begin(recipe, tmp_path / "nan", "test")
    with pytest.raises(DivergenceError, match="3 steps in a row"):
        run(place, recipe, "test")
    events = [line for line in losses(place) if line.get("event") == "skipped"]
    assert [event["step"] for event in events] == [4, 7, 8, 9]
    assert events[0]["loss"] == "nan"
    shown = events[0]["examples"][0]["source"].split("<unk>")
    assert all(piece in Path(text["source"]).read_text() for piece in shown)
    assert "update skipped" in capsys.readouterr().err
    finite = [line["loss"] for line in losses(place) if "event" not in line]
    assert all(isinstance(value, float) for value in finite)


def test_word_vectors_start_the_embeddings(text: dict[str, str], tmp_path: Path) -> None:
    vectors = tmp_path / "v.txt"
    wanted = {"dog": torch.linspace(-1, 1, 32), "the": torch.ones(32)}
    lines = [
        f"{word} " + " ".join(f"{x:.4f}" for x in vector.tolist())
        for word, vector in wanted.items()
    ]
    vectors.write_text("2 32\n" + "\n".join(lines) + "\n")
    recipe = loading.load(
        None,
        SMALL
        | text
        | {"pretrained_embeddings": str(vectors), "freeze_embeddings": True, "steps": 3},
    )
    place = begin(recipe, tmp_path / "vec", "test")
    run(place, recipe, "test", quiet=True)
    translator: Any = regard.load(place.folder)
    rows = translator.source_tokenizer.vocabulary
    table = translator.model.source.table.weight
    row = table[rows["▁dog"]]
    assert torch.corrcoef(torch.stack([row, wanted["dog"]]))[0, 1] > 0.9999
    assert torch.equal(table[rows["▁The"]], table[rows["▁the"]])  # only in lower case there
    untouched = assemble(Setup(place, recipe, lambda _: None))
    frozen = untouched.model.get_parameter("source.table.weight").detach()
    assert torch.equal(frozen, table)


def test_an_interrupted_run_is_an_error_of_the_library_and_an_exit_code_of_the_command(
    text: dict[str, str], tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    """`regard.train` never raises SystemExit; `regard train` exits with 128 + the signal."""
    settings = SMALL | text
    with pytest.raises(TrainingInterrupted) as stopped:
        regard.train(settings, out=tmp_path / "library", on_step=stop_at(2))
    assert stopped.value.exit_code == 143
    assert str(tmp_path / "library") in stopped.value.repair
    assert pickle.loads(pickle.dumps(stopped.value)).exit_code == 143
    with pytest.raises(SystemExit) as ended, exit_on_interruption():
        resume(tmp_path / "library", quiet=True, on_step=stop_at(3))
    assert ended.value.code == 143


def test_a_signal_stops_a_run_after_its_step(text: dict[str, str], tmp_path: Path) -> None:
    def interrupt(loop: Loop) -> None:
        if loop.progress.step == 2:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(TrainingInterrupted) as stopped:
        start(text, tmp_path / "run", interrupt)
    assert stopped.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) == before
    saved = Checkpoints(tmp_path / "run" / "state" / "checkpoints").newest(print)
    assert saved is not None
    assert saved.step == 2


def test_seeds_are_those_of_earlier_versions() -> None:
    """A run that was saved before resumes with the same dropout, order and corruption."""
    packed = struct.pack("<4q", 7, 11, 2, 0)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    assert dropout_seed(7, 11, 2) == int.from_bytes(digest, "little") >> 1
    digest = hashlib.blake2b(struct.pack("<2q", 7, 11), digest_size=4).digest()
    expected = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    assert generator(7, 11).initial_seed() == expected.initial_seed()
    plain = np.random.Philox(key=[7, 11])
    assert philox(7, 11).random_raw(5).tolist() == plain.random_raw(5).tolist()
    row = np.random.Philox(key=[7, 11], counter=[0, 0, 0, 3])
    assert philox(7, 11, 3).random_raw(5).tolist() == row.random_raw(5).tolist()


def test_dropout_seeds_are_a_pure_function_of_the_step() -> None:
    seeds = {dropout_seed(s, t, m) for s in range(4) for t in range(4) for m in range(4)}
    assert len(seeds) == 64
    assert dropout_seed(1, 2, 3) == dropout_seed(1, 2, 3)


def test_test_pairs_in_one_file_are_those_in_two(text: dict[str, str], tmp_path: Path) -> None:
    sources = Path(text["test_source"]).read_text(encoding="utf-8").splitlines()
    targets = Path(text["test_target"]).read_text(encoding="utf-8").splitlines()
    pairs = tmp_path / "test.tsv"
    rows = [f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)]
    pairs.write_text("".join(rows), encoding="utf-8")
    one_file = text | {"test_source": None, "test_target": None, "test_pairs": str(pairs)}
    two = start(text, tmp_path / "two", steps=2)
    one = start(one_file, tmp_path / "one", steps=2)  # type: ignore[arg-type]
    stored = [json.loads(place.outcome.read_text())["scores"]["test"] for place in (two, one)]
    assert stored[0] == stored[1]


def test_one_side_of_a_test_is_refused(text: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="1 corpora of test_source, 0"):
        start(text, tmp_path / "run", test_target=None)
