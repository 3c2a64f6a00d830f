"""Training on several ranks is the training of one process: data, losses, weights, checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parallel_worker import run_job
from safetensors.torch import load_file
from test_every_family import TEXT, write_graph, write_images, write_series
from test_loss_spikes import SETTINGS as SPIKES
from test_sound import tone, write_wav

import regard
from faults import process_environment
from regard.data.batching import Batch
from regard.system import checkpoint_shards
from regard.system.checkpoint import Checkpoints
from regard.system.checkpoint_shards import Layout
from regard.system.errors import SettingError
from regard.training.parallel.ranks import Ranks

pytestmark = pytest.mark.thorough

SMALL: dict[str, Any] = {
    "steps": 4, "warmup_steps": 1, "batch_tokens": 128, "context": 32, "samples": 0,
    "tokenizer": "characters", "validate_every": 4, "save_every": 2, "log_every": 1, "threads": 1,
    "device": "cpu", "schedule": "constant", "learning_rate": 1e-3, "max_grad_norm": 1.0,
    # Gradients that are zero but for rounding (of the biases of keys) stay without effect.
    "adam_eps": 1e-4,
    "d_model": 16, "heads": 4, "layers": 2, "d_ff": 32,
    "dropout": 0.0, "attention_dropout": 0.0, "feedforward_dropout": 0.0,
}  # fmt: skip
# name → settings; FILES are put in place of words in capitals
CASES: dict[str, dict[str, Any]] = {
    "translate": {"pairs": "PAIRS", "valid_pairs": "PAIRS", "preset": "tiny", "final_weights": "ema:0.9"},
    "gpt2": {"model": "gpt2:tiny", "text": "TEXT", "objective": "causal"},
    "llama": {"model": "llama:tiny", "text": "TEXT", "objective": "causal", "accumulate": 2},
    "bert": {"model": "bert:tiny", "text": "TEXT", "objective": "masked", "next_sentence": True},
    "albert": {"model": "albert:tiny", "text": "TEXT", "objective": "masked"},
    "t5": {"model": "t5:tiny", "text": "TEXT", "objective": "span", "gradient_checkpointing": True},
    "vit": {"model": "vit:tiny", "images": "IMAGES", "image_size": 16, "patch": 8},
    "clip": {
        "model": "clip:tiny", "images": "CAPTIONS", "image_size": 16, "patch": 8,
        "batch_tokens": 200,
    },
    "siglip": {"model": "siglip:tiny", "images": "CAPTIONS", "image_size": 16, "patch": 8},
    "contrastive": {"model": "bert:tiny", "text": "PAIRS", "objective": "contrastive"},
    "mixtral": {"model": "mixtral:tiny", "text": "TEXT", "objective": "causal"},
    "universal": {"model": "universal:tiny", "pairs": "PAIRS", "valid_pairs": "PAIRS"},
    "segments": {"model": "gpt2:tiny", "text": "TEXT", "objective": "causal", "memory": 16},
    "patchtst": {"model": "patchtst:tiny", "series": "SERIES", "horizon": 4},
    # Blends of neighbours in the batch; batches of both kinds.
    "mixup": {
        "model": "vit:tiny", "images": "IMAGES", "image_size": 16, "patch": 8, "mixup": 0.5,
        "cutmix": 1.0, "augment": "trivial", "steps": 6,
    },
    "speech": {
        "model": "wav2vec2:tiny", "sounds": "SOUNDS", "objective": "speech_contrastive",
    },
    "graphs": {
        "model": "graphormer:tiny", "objective": "graphs", "batch_tokens": 60, "degrees": 8,
        # Eigenvectors have random signs, which ranks draw apart as they draw dropout.
        "laplacian": 0, "input_dropout": 0.0,
    },
    "nodes": {
        "model": "graphormer:tiny", "objective": "nodes", "graph": "GRAPH", "degrees": 8,
        "laplacian": 0, "input_dropout": 0.0, "r_drop": 1.0, "label_smoothing": 0.1,
    },
}  # fmt: skip
WORKER = Path(__file__).parent / "parallel_worker.py"
SAVE_KILLER = Path(__file__).parent / "save_killer.py"
PATIENCE = 1800  # seconds, for processes that share their cores with other tests


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("parallel_files")
    lines = TEXT.splitlines()
    (folder / "text.txt").write_text(TEXT * 5)
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    images = write_images(folder / "images")
    sums = [f"{i} and {i * i % 97} make {i + i * i % 97}.\n" for i in range(600)]
    (folder / "lines.txt").write_text("".join(sums))
    rows = []
    for number in range(6):
        write_wav(folder / f"{number}.wav", tone(300.0 + 200 * number, 0.3 + 0.02 * number))
        rows.append(f"{number}.wav\tword\n")
    (folder / "sounds.tsv").write_text("".join(rows))
    return {
        "SOUNDS": str(folder / "sounds.tsv"), "GRAPH": str(write_graph(folder / "graph")),
        "LINES": str(folder / "lines.txt"),
        "TEXT": str(folder / "text.txt"), "PAIRS": str(folder / "pairs.tsv"), "IMAGES": str(images),
        "CAPTIONS": str(images / "captions.tsv"), "SERIES": str(write_series(folder)),
    }  # fmt: skip


def settings(name: str, files: dict[str, str], **changes: Any) -> dict[str, Any]:
    values = SMALL | CASES[name] | changes
    return {key: files.get(value, value) if isinstance(value, str) else value
            for key, value in values.items()}  # fmt: skip


def job(name: str, files: dict[str, str], out: Path, **changes: Any) -> dict[str, Any]:
    """A run of parallel_worker.py."""
    return {"out": str(out), "settings": settings(name, files, **changes), "source": name}


def torchrun(ranks: int, arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", *arguments]
    options.setdefault("env", process_environment())
    return subprocess.Popen(command, **options)


def run_on_ranks(ranks: int, jobs: list[dict[str, Any]], folder: Path) -> None:
    """Runs jobs in so many processes."""
    path = folder / f"jobs-{ranks}.json"
    path.write_text(json.dumps(jobs))
    process = torchrun(ranks, [str(WORKER), str(path)])
    try:
        assert process.wait(PATIENCE) == 0
    finally:
        process.terminate()  # it has ended, but where the machine was too slow


def steps(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "event" not in line]


def assert_same_run(one: Path, other: Path, weights: float = 1e-5) -> None:
    """Tokens and positions are equal, losses and weights as near as sums in another order."""
    for a, b in zip(steps(one), steps(other), strict=True):
        assert (a["step"], a["tokens"], a["epoch"]) == (b["step"], b["tokens"], b["epoch"])
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-4)
    ours = load_file(one / "model.safetensors")
    theirs = load_file(other / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=weights, msg=name)


# --- parts ---


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_parts_of_a_batch_are_the_batch(rows: int, size: int) -> None:
    """In order and each row once; a rank without rows computes the first, with weight 0."""
    tensors = {"tokens": torch.arange(rows * 3).view(rows, 3), "goes_on": torch.tensor(True)}
    batch = Batch(tensors, 7, np.arange(rows))
    parts = []
    for rank in range(size):
        ranks = Ranks(rank, size)
        with ranks.sharded(batch) as part:
            assert part.tokens == 7
            assert part.size >= 1
            assert part.tensors["goes_on"].ndim == 0
            if ranks.weight:
                parts.append(part.tensors["tokens"])
    assert torch.equal(torch.cat(parts), tensors["tokens"])


def test_layouts_cut_and_join() -> None:
    full = torch.randn(6, 5)
    qkv = Layout((6, 5), 0, (((0, 1), (2, 1), (4, 1)), ((1, 1), (3, 1), (5, 1))))
    columns = Layout((6, 5), 1, (((0, 2),), ((2, 3),)))
    uneven = Layout.even((6, 5), 4)  # 2, 2, 2 and no rows, as torch.chunk and FSDP2 cut
    assert [uneven.part_shape(rank)[0] for rank in range(4)] == [2, 2, 2, 0]
    for layout in (qkv, columns, uneven):
        count = len(layout.ranges)
        parts = [layout.part(full, rank) for rank in range(count)]
        assert [tuple(part.shape) for part in parts] == [layout.part_shape(r) for r in range(count)]
        assert torch.equal(layout.join(parts), full)
        assert Layout.from_tensor(layout.to_tensor()) == layout


def test_sharded_checkpoint_is_read_as_a_whole(tmp_path: Path) -> None:
    """The files of three ranks, and none of them changed unnoticed."""
    full = {"w": torch.randn(4, 3), "b": torch.randn(3)}
    state = {"exp_avg/w": torch.randn(4, 3), "step/w": torch.tensor(7.0)}
    layouts = {"w": Layout.even((4, 3), 3)}
    checkpoints = Checkpoints(tmp_path)
    groups = {}
    for rank in (2, 1, 0):
        part = {
            "weights": {"w": layouts["w"].part(full["w"], rank), "b": full["b"]},
            "optimizer": state | {"exp_avg/w": layouts["w"].part(state["exp_avg/w"], rank)},
        }
        groups = checkpoint_shards.split(part, layouts, rank, 3)
        if rank:
            checkpoints.write_shards(5, groups)
    shards = [
        checkpoint_shards.shard_name(group, rank, 3)
        for group in ("weights", "optimizer")
        for rank in (1, 2)
    ]
    folder = checkpoints.save(5, groups, {"best_step": 0, "averaged": []}, shards)
    saved = Checkpoints(tmp_path).newest(print)
    assert saved is not None
    for name, tensor in (full | state).items():
        group = "weights" if name in full else "optimizer"
        assert torch.equal(saved.groups[group][name], tensor), name
    path = folder / "weights.3-of-3.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(regard.system.errors.CheckpointError, match="intact"):
        Checkpoints(tmp_path).newest(lambda _: None)


def test_ranks_make_groups() -> None:
    with pytest.raises(SettingError, match="3 ranks cannot be divided into groups of 2"):
        Ranks(0, 3, 2)


# --- two ranks, as one process ---


@pytest.fixture(scope="module")
def two_ranks(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two ranks: DDP, FSDP2 and tensor parallel; and of one process, under one/."""
    folder = tmp_path_factory.mktemp("two_ranks")
    runs = {
        "translate": "ddp", "clip": "ddp", "gpt2": "fsdp", "llama": "tensor", "mixtral": "ddp",
        "segments": "ddp", "mixup": "ddp", "speech": "fsdp", "graphs": "ddp",
        "nodes": "ddp",
    }  # fmt: skip
    jobs = [job(name, files, folder / name, strategy=strategy) for name, strategy in runs.items()]
    jobs += [
        {"out": str(folder / name), "settings": settings("translate", files, strategy=name)}
        for name in ("fsdp", "tensor")
    ]
    jobs.append(job("segments", files, folder / "segments-fsdp", strategy="fsdp"))
    for strategy in ("ddp", "fsdp"):
        out = folder / f"injected-{strategy}"
        jobs.append(injected_job(out, files, 8, 2, strategy=strategy))
        jobs.append(spiking_job(folder / f"spike-{strategy}", files, strategy=strategy))
    cut = spiking_job(folder / "spike-cut", files)
    jobs += [cut | {"stop_at": 35}, cut | {"resume": True}]
    refused = job("gpt2", files, folder / "refused")
    jobs.append(refused | {"objective": "indivisible"})
    run_on_ranks(2, jobs, folder)
    for name in runs:
        out = folder / "one" / name
        out.parent.mkdir(exist_ok=True)
        run_job(job(name, files, out))
    run_job(spiking_job(folder / "one" / "spike", files))
    return folder


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("translate", "translate"),  # DDP
        ("fsdp", "translate"),
        ("tensor", "translate"),
        ("clip", "clip"),
        ("gpt2", "gpt2"),
        ("llama", "llama"),
        ("mixtral", "mixtral"),
        ("segments", "segments"),
        ("segments-fsdp", "segments"),
        ("mixup", "mixup"),
        ("speech", "speech"),
        ("graphs", "graphs"),
        ("nodes", "nodes"),
    ],
)
def test_two_ranks_equal_one_process(two_ranks: Path, name: str, reference: str) -> None:
    assert_same_run(two_ranks / name, two_ranks / "one" / reference)


def test_ranks_share_the_rows_of_each_batch(two_ranks: Path) -> None:
    read = [json.loads((two_ranks / f"translate.rows-{rank}.json").read_text()) for rank in (0, 1)]
    alone = json.loads((two_ranks / "one" / "translate.rows-0.json").read_text())
    # In one process nothing is cut, and nothing recorded: the order follows from the recipe.
    assert alone == []
    together = [a + b for a, b in zip(*read, strict=True)]
    assert all(len(rows) == len(set(rows)) > 1 for rows in together)
    epoch = sorted(row for rows in together for row in rows)
    assert len(epoch) == len(set(epoch))


def test_sharded_run_goes_on_in_one_process(two_ranks: Path) -> None:
    """Trained on by two steps: what FSDP2 wrote on two ranks, and one process by itself."""
    checkpoint = sorted((two_ranks / "fsdp" / "state" / "checkpoints").iterdir())[-1]
    names = {path.name for path in checkpoint.iterdir()}
    assert {"weights.1-of-2.safetensors", "weights.2-of-2.safetensors"} <= names
    for out in (two_ranks / "fsdp", two_ranks / "one" / "translate"):
        run_job({"out": str(out), "resume": True, "steps": 6})
    assert len(steps(two_ranks / "fsdp")) == 6
    assert_same_run(two_ranks / "fsdp", two_ranks / "one" / "translate")


def test_what_cannot_be_shared_is_refused(two_ranks: Path) -> None:
    for rank in (0, 1):
        problem = (two_ranks / f"refused.error-{rank}").read_text()
        assert "its rows read each other" in problem
    assert not (two_ranks / "refused").exists()


# --- every family and objective, on two and four ranks ---


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_case_equals_one_process(ranks: int, files: dict[str, str], tmp_path: Path) -> None:
    """DDP, FSDP2 and tensor parallel, each family and objective."""
    runs = [(name, strategy) for name in CASES for strategy in ("ddp", "fsdp", "tensor")]
    # Attention with a memory is not plain; Graphormer's biases are not cut by heads.
    runs.remove(("segments", "tensor"))
    runs.remove(("graphs", "tensor"))
    runs.remove(("nodes", "tensor"))
    jobs = [
        job(name, files, tmp_path / f"{name}-{strategy}", strategy=strategy)
        for name, strategy in runs
    ]
    run_on_ranks(ranks, jobs, tmp_path)
    for name in CASES:
        run_job(job(name, files, tmp_path / name))
    for name, strategy in runs:
        error = tmp_path / f"{name}-{strategy}.error-0"
        if error.exists():
            # CLIP's smallest towers have two heads, Mixtral two key heads.
            assert (strategy, ranks) == ("tensor", 4)
            assert name in ("clip", "mixtral")
            assert "cannot be shared by 4 ranks" in error.read_text()
        else:
            assert_same_run(tmp_path / f"{name}-{strategy}", tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tensor"])
def test_checkpoint_of_four_ranks_goes_on_with_two_and_one(
    strategy: str, files: dict[str, str], tmp_path: Path
) -> None:
    values = settings("translate", files, strategy=strategy, steps=6)
    stopped = [
        {"out": str(tmp_path / name), "settings": values, "stop_at": 2} for name in ("two", "one")
    ]
    run_on_ranks(4, stopped, tmp_path)
    assert len(steps(tmp_path / "two")) < 6
    run_on_ranks(2, [{"out": str(tmp_path / "two"), "resume": True}], tmp_path)
    run_job({"out": str(tmp_path / "one"), "resume": True})
    run_job({"out": str(tmp_path / "uninterrupted"), "settings": values})
    for name in ("two", "one"):
        assert_same_run(tmp_path / name, tmp_path / "uninterrupted")


@pytest.mark.slow
def test_groups_of_tensor_ranks_are_data_parallel(files: dict[str, str], tmp_path: Path) -> None:
    """Four ranks, of which two share a model; resumed in one process."""
    values = settings("t5", files, strategy="tensor", tensor_parallel_degree=2)
    run_on_ranks(4, [{"out": str(tmp_path / "four"), "settings": values}], tmp_path)
    run_job({"out": str(tmp_path / "one"), "settings": settings("t5", files)})
    assert_same_run(tmp_path / "four", tmp_path / "one")
    for name in ("four", "one"):
        run_job({"out": str(tmp_path / name), "resume": True, "steps": 6})
    assert_same_run(tmp_path / "four", tmp_path / "one")


@pytest.mark.slow
def test_fine_tuning_with_lora(files: dict[str, str], tmp_path: Path) -> None:
    """Frozen parameters next to trained ones, and matrices that files hold transposed."""
    run_job({"out": str(tmp_path / "base"), "settings": settings("gpt2", files)})
    size = ("d_model", "heads", "layers", "d_ff", "tokenizer")
    dropout = ("dropout", "attention_dropout", "feedforward_dropout")
    values = {key: value for key, value in SMALL.items() if key not in (*size, *dropout)}
    values |= {
        "base": str(tmp_path / "base"),
        "text": files["TEXT"],
        "objective": "causal",
        "lora": 2,
    }
    strategies = ("ddp", "fsdp")
    jobs = [
        {"out": str(tmp_path / strategy), "settings": values | {"strategy": strategy}}
        for strategy in strategies
    ]
    run_on_ranks(2, jobs, tmp_path)
    run_job({"out": str(tmp_path / "one"), "settings": values})
    for strategy in strategies:
        assert_same_run(tmp_path / strategy, tmp_path / "one")


# --- faults ---


PLACES = ("loss", "activation", "gradient", "summed gradient")
BAD_NUMBERS = ("nan", "inf", "-inf")


def injection_plan(count: int, ranks: int) -> dict[str, list[Any]]:
    """Every second step, a random place and number on a random rank: three in a row would end
    the run."""
    draw = np.random.default_rng(ranks)
    return {
        str(step): [int(draw.integers(ranks)), str(draw.choice(PLACES)),
                    str(draw.choice(BAD_NUMBERS))]
        for step in range(3, 3 + 2 * count, 2)
    }  # fmt: skip


def injected_job(out: Path, files: dict[str, str], count: int, ranks: int, **changes: Any) -> Any:
    plan = injection_plan(count, ranks)
    values = settings("gpt2", files, steps=2 * count + 4, save_every=1000, **changes)
    return {"out": str(out), "settings": values, "injected": plan}


def assert_all_skipped(
    out: Path, plan: dict[str, list[Any]], ranks: int, *, tensor: bool = False
) -> None:
    """Each of them is reported with the rows of all ranks, and no rank makes its update.

    Ranks of tensor parallelism have the same rows.
    """
    planned = [int(step) for step in plan]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    skipped = [line for line in lines if line.get("event") == "skipped"]
    assert [line["step"] for line in skipped] == planned
    read = []
    for rank in range(ranks):
        path = out.with_name(f"{out.name}.skipped-{rank}.json")
        assert json.loads(path.read_text()) == planned
        read.append(json.loads(out.with_name(f"{out.name}.rows-{rank}.json").read_text()))
    for line in skipped:
        assert line["examples"][0]["row"] == line["rows"][0]
        parts = [rows[line["step"] - 1] for rows in read] if ranks > 1 else [line["rows"]]
        if tensor:
            assert parts[0] == parts[1] == line["rows"]
        else:
            assert line["rows"] == [row for part in parts for row in part]
    weights = load_file(out / "model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_non_finite_values_are_skipped_on_all_ranks(two_ranks: Path, strategy: str) -> None:
    assert_all_skipped(two_ranks / f"injected-{strategy}", injection_plan(8, 2), 2)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one", "ddp", "fsdp", "tensor"])
def test_non_finite_values_at_a_hundred_places(
    strategy: str, files: dict[str, str], tmp_path: Path
) -> None:
    ranks = 1 if strategy == "one" else 2
    changes = {} if strategy == "one" else {"strategy": strategy}
    job = injected_job(tmp_path / "run", files, 100, ranks, **changes)
    if ranks == 1:
        run_job(job)
    else:
        run_on_ranks(ranks, [job], tmp_path)
    tensor = strategy == "tensor"
    assert_all_skipped(tmp_path / "run", job["injected"], ranks, tensor=tensor)


def spiking_job(out: Path, files: dict[str, str], **changes: Any) -> Any:
    values = SPIKES | {"text": files["LINES"], "dropout": 0.0, "adam_eps": 1e-4, **changes}
    return {"out": str(out), "settings": values, "objective": "spiking"}


def without_clocks(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    clocks = ("seconds", "tokens_per_second")
    return [{key: v for key, v in line.items() if key not in clocks} for line in lines]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_roll_back_as_one_process(two_ranks: Path, strategy: str) -> None:
    """The same batches are skipped, with the same record; the updates after it are the same."""
    ours = two_ranks / f"spike-{strategy}"
    alone = two_ranks / "one" / "spike"
    rollbacks = [[line for line in without_clocks(out) if line.get("event") == "rollback"]
                 for out in (ours, alone)]  # fmt: skip
    assert len(rollbacks[0]) == 1
    for record in (each[0] for each in rollbacks):
        for spike in record["spikes"]:
            spike["loss"] = round(spike["loss"], 3)
    assert rollbacks[0] == rollbacks[1]
    assert_same_run(ours, alone)


def test_roll_back_on_two_ranks_is_reproducible(two_ranks: Path) -> None:
    """A run that is stopped in the middle of the stretch ends as the uninterrupted one."""
    assert without_clocks(two_ranks / "spike-cut") == without_clocks(two_ranks / "spike-ddp")
    assert_identical(two_ranks / "spike-cut", two_ranks / "spike-ddp")


def rank_process(agent: int, rank: int) -> int:
    """The process of a rank, among the children of torchrun."""
    for path in Path("/proc").iterdir():
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (path / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == agent and f"RANK={rank}".encode() in environment:
            return int(path.name)
    raise AssertionError("this rank has not been started")


def train_flags(values: dict[str, Any], out: Path) -> list[str]:
    """The command line of some settings."""
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]
    return ["-m", "regard", "train", *flags, "--out", str(out)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_is_restarted_by_the_elastic_agent(
    strategy: str, rank: int, files: dict[str, str], tmp_path: Path
) -> None:
    """`kill -9` of one of two ranks under torchrun: the weights and losses of the uninterrupted
    run, bit for bit."""
    values = settings(
        "gpt2", files, strategy=strategy, steps=400, save_every=20, validate_every=100
    )
    out = tmp_path / "killed"
    agent = torchrun(2, ["--max-restarts=2", *train_flags(values, out)])
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 50:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(rank_process(agent.pid, rank), signal.SIGKILL)
    assert agent.wait(PATIENCE) == 0
    run_on_ranks(2, [{"out": str(tmp_path / "whole"), "settings": values}], tmp_path)
    assert_identical(out, tmp_path / "whole")


KILLED: dict[str, Any] = {"steps": 150, "save_every": 2, "validate_every": 50}


def assert_identical(one: Path, other: Path) -> None:
    """Every logged loss and all final weights, bit for bit."""
    assert [line["loss"] for line in steps(one)] == [line["loss"] for line in steps(other)]
    weights = load_file(one / "model.safetensors")
    for name, tensor in load_file(other / "model.safetensors").items():
        assert torch.equal(tensor, weights[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_killed_at_random_moments(
    strategy: str, seed: int, files: dict[str, str], tmp_path: Path
) -> None:
    """Five times (fifty with all cases), a random rank each, in a run that saves all the time."""
    values = settings("gpt2", files, strategy=strategy, **KILLED)
    run_on_ranks(2, [{"out": str(tmp_path / "whole"), "settings": values}], tmp_path)
    out = tmp_path / "killed"
    agent = torchrun(2, ["--max-restarts=8", *train_flags(values, out)])
    metrics = out / "metrics.jsonl"
    draw = np.random.default_rng(seed)
    kills = 0
    for _ in range(5):
        lines = len(metrics.read_bytes().splitlines()) if metrics.exists() else 0
        deadline = time.monotonic() + PATIENCE
        # Until the ranks that were started again have come further than those before.
        while not metrics.exists() or len(metrics.read_bytes().splitlines()) < lines + 4:
            assert time.monotonic() < deadline
            assert agent.poll() is None
            time.sleep(0.01)
        time.sleep(0.2 * draw.random())
        os.kill(rank_process(agent.pid, int(draw.integers(2))), signal.SIGKILL)
        kills += 1
        time.sleep(1.0)
    assert kills == 5
    assert agent.wait(PATIENCE) == 0
    assert_identical(out, tmp_path / "whole")


# Operations of the second save of a process, one for each time the agent starts the ranks.
AIMED = [[0, 3, 6, 9, 12], [15, 18, 21, 24, 27]]


@pytest.mark.slow
@pytest.mark.parametrize("operations", AIMED, ids=["first", "second"])
@pytest.mark.parametrize(("strategy", "rank"), [("ddp", 0), ("fsdp", 0), ("fsdp", 1)])
def test_killed_inside_the_save_of_two_ranks(
    strategy: str, rank: int, operations: list[int], files: dict[str, str], tmp_path: Path
) -> None:
    """One rank, killed ahead of an operation of a save, again after each restart."""
    values = settings("gpt2", files, strategy=strategy, **KILLED)
    run_on_ranks(2, [{"out": str(tmp_path / "whole"), "settings": values}], tmp_path)
    out = tmp_path / "killed"
    # The other rank of FSDP2 writes its part only: fewer operations.
    numbers = [number % 6 for number in operations] if rank else operations
    plan = json.dumps({"rank": rank, "operations": numbers, "out": str(out)})
    arguments = train_flags(values, out)[2:]  # without `-m regard`
    environment = process_environment() | {"KILLS": plan}
    agent = torchrun(2, ["--max-restarts=8", str(SAVE_KILLER), *arguments], env=environment)
    assert agent.wait(PATIENCE) == 0
    kills = sorted(int(path.suffix[1:]) for path in tmp_path.glob("killed.*"))
    assert len(kills) >= 4
    assert_identical(out, tmp_path / "whole")


@pytest.mark.slow
def test_processes_are_stopped_and_resumed_together(files: dict[str, str], tmp_path: Path) -> None:
    """`regard train --processes 2`: SIGTERM ends all ranks after one step, saved and resumable."""
    values = settings("gpt2", files, steps=300, save_every=1000, validate_every=1000)
    out = tmp_path / "run"
    environment = process_environment()
    command = [sys.executable, *train_flags(values, out), "--processes", "2"]
    process = subprocess.Popen(command, env=environment)
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    done = len(steps(out))
    assert 20 <= done < 300
    resumed = [sys.executable, "-m", "regard", "train", "--resume", str(out), "--processes=2"]
    assert subprocess.run(resumed, env=environment, timeout=PATIENCE, check=False).returncode == 0
    run_job({"out": str(tmp_path / "one"), "settings": values})
    assert len(steps(out)) == 300
    losses = [line["loss"] for line in steps(tmp_path / "one")]
    assert [line["loss"] for line in steps(out)] == pytest.approx(losses, abs=1e-3)
