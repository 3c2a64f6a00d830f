"""Two ranks on a GPU compute what one process computes there, by every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_parallel
import torch
from parallel_worker import run_job

pytestmark = pytest.mark.gpu

files = test_parallel.files  # a fixture: small data of each kind

# Tolerance of the losses: float32 sums in another order, bf16 rounds at other places.
PRECISIONS: dict[str, tuple[dict[str, Any], float]] = {
    "float32": ({"precision": "float32"}, 1e-4),
    "bf16": ({"precision": "bf16"}, 3e-2),
    "bf16 compiled": ({"precision": "bf16", "compile": True}, 3e-2),
    "bf16 recomputed": ({"precision": "bf16", "gradient_checkpointing": True}, 3e-2),
}
# The larger widths are those that GPU kernels take.
SIZES = {"device": "cuda", "d_model": 64, "heads": 4, "d_ff": 128, "steps": 6}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_ranks_equal_one_process(precision: str, files: dict[str, str], tmp_path: Path) -> None:
    changes, tolerance = PRECISIONS[precision]
    names = ["translate", "gpt2", "llama", "bert", "t5"]
    if "compile" in changes:
        names = names[:2]  # each compiles for ten seconds and more
    runs = [(name, strategy) for name in names for strategy in ("ddp", "fsdp", "tensor")]
    jobs = [
        {
            "out": str(tmp_path / f"{name}-{strategy}"),
            "settings": test_parallel.settings(name, files, strategy=strategy, **SIZES, **changes),
        }
        for name, strategy in runs
    ]
    test_parallel.run_on_ranks(2, jobs, tmp_path)
    for name in names:
        values = test_parallel.settings(name, files, **SIZES, **changes)
        run_job({"out": str(tmp_path / name), "settings": values})
    for name, strategy in runs:
        ours = [line["loss"] for line in test_parallel.steps(tmp_path / f"{name}-{strategy}")]
        alone = [line["loss"] for line in test_parallel.steps(tmp_path / name)]
        assert ours == pytest.approx(alone, abs=tolerance), (name, strategy)


@pytest.mark.parametrize("name", ["clip", "siglip", "vit", "patchtst"])
def test_images_and_series(name: str, files: dict[str, str], tmp_path: Path) -> None:
    """Negatives and statistics of all rows, on a GPU too."""
    values = test_parallel.settings(name, files, device="cuda")
    job = {"out": str(tmp_path / "two"), "settings": values | {"strategy": "ddp"}}
    test_parallel.run_on_ranks(2, [job], tmp_path)
    run_job({"out": str(tmp_path / "one"), "settings": values})
    ours = [line["loss"] for line in test_parallel.steps(tmp_path / "two")]
    alone = [line["loss"] for line in test_parallel.steps(tmp_path / "one")]
    assert ours == pytest.approx(alone, abs=1e-3)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tensor"])
def test_checkpoint_of_two_ranks_goes_on_with_one(
    strategy: str, files: dict[str, str], tmp_path: Path
) -> None:
    values = test_parallel.settings("gpt2", files, strategy=strategy, **SIZES)
    stopped = {"out": str(tmp_path / "two"), "settings": values, "stop_at": 3}
    test_parallel.run_on_ranks(2, [stopped], tmp_path)
    run_job({"out": str(tmp_path / "two"), "resume": True})
    run_job({"out": str(tmp_path / "one"), "settings": values})
    ours = [line["loss"] for line in test_parallel.steps(tmp_path / "two")]
    alone = [line["loss"] for line in test_parallel.steps(tmp_path / "one")]
    assert ours == pytest.approx(alone, abs=1e-4)
    torch.cuda.empty_cache()
