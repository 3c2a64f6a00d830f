"""Files written twice are equal byte for byte: by `save`, in shards, as checkpoints, converted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.system import disk

# Each process draws the same weights and writes them in every way that there is.
WRITE = """
import sys
from pathlib import Path

import pytest
import torch
from regard.builder import build
from regard.system.checkpoint import Checkpoints
from regard.lab.convert.convert import convert
from regard.families.encoders import bert
from regard.families import folder as folders
from regard.models import TextEncoder

out = Path(sys.argv[1])
torch.manual_seed(0)
description = bert.preset("tiny", 37, 16, layers=1, d_model=8, heads=2)
model = TextEncoder(build(description), description)
model.save(out / "saved")
content = folders.read(out / "saved")
(out / "shards").mkdir()
folders.write_model(out / "shards", content, shard_size=2000)
Checkpoints(out / "state").save(3, {"weights": content.weights, "averages": content.weights}, {})
convert(out / "saved", out / "converted", "regard")
"""


@pytest.mark.slow
def test_two_processes_write_equal_bytes(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", WRITE, str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    first, second = (
        {path.relative_to(tmp_path / seed): path for path in (tmp_path / seed).rglob("*.*")}
        for seed in ("1", "2")
    )
    assert first.keys() == second.keys()
    files = [name for name in first if first[name].is_file()]
    assert sum(name.suffix == ".safetensors" for name in files) >= 8
    for name in files:
        assert first[name].read_bytes() == second[name].read_bytes(), name


def test_the_header_is_sorted_and_whole(tmp_path: Path) -> None:
    """Names that JSON could escape in two ways come back, and the hash still holds."""
    tensors = {"ä/ü": torch.randn(3), 'a"b\\c': torch.randn(2, 2).bfloat16(), "e": torch.empty(0)}
    contents = set()
    for number in range(8):
        disk.write_tensors(tmp_path / f"{number}", tensors)
        contents.add((tmp_path / f"{number}").read_bytes())
    assert len(contents) == 1
    assert not disk.is_altered(tmp_path / "0")
    read = disk.mmap_tensors(tmp_path / "0")
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
