"""The growth of each attention is measured and fitted; memory, which does not depend on the clock, is linear."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from regard.allocator import keep_large_blocks
from regard.bench.attention import KINDS, Case, _call, choose, peak, run
from regard.errors import SettingError

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
def test_peak_memory_is_linear(kind: str) -> None:
    """From lengths at which a window of 16 is narrow, and what a piece takes is little."""
    case = Case((kind,), (4096, 8192, 16384), heads=2, d_k=8, window=16, rounds=1)
    *each, last = run(case, CPU)
    assert last.keys() == {"kind", "exponent", "forward_exponent", "memory_exponent"}
    assert [(line["n"], line["backward"]) for line in each] == [
        (n, backward) for n in case.lengths for backward in (False, True)
    ]
    assert 0.5 < last["memory_exponent"] < 1.1


def test_kinds_are_called_as_in_training() -> None:
    words = (
        "window:16",
        "dilated:8:2",
        "strided:8",
        "blocks:16",
        "linformer:8",
        "performer:12",
        "reformer:4:16",
        "topk:4",
    )
    case = Case(choose(words), (64,), heads=2, d_k=8, rounds=1)
    found = list(run(case, CPU))
    assert [line["kind"] for line in found if "exponent" in line] == list(words)
    wide, narrow = (peak(_call(case, kind, 4096, False, CPU), CPU) for kind in ("window:256", "window:16"))
    assert narrow < wide
    with pytest.raises(SettingError, match="numbers"):
        choose(["dilated:8"])


def test_the_command_writes_one_object_a_line() -> None:
    command = [sys.executable, "-m", "regard", "bench", "attention", "--json", "--device", "cpu", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--kinds", "full,linear", "--lengths", "64,128", "--heads", "1"], capture_output=True, text=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["full"] * 5 + ["linear"] * 5
    assert all({"n", "seconds", "peak_bytes", "backward"} <= line.keys() for line in lines if "exponent" not in line)
    assert [i for i, line in enumerate(lines) if "exponent" in line] == [4, 9]
    assert done.stderr == ""
    with pytest.raises(SettingError, match="did you mean 'window'"):
        choose(["windw"])


def test_allocator_settings_are_taken_where_there_are_any() -> None:
    assert keep_large_blocks() in (True, False)
    assert torch.ones(2**22).sum() == 2**22
