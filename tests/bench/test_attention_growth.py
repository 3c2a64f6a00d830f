"""The growth of each attention is measured and fitted; peak memory is linear."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

from regard.lab.bench.attention import KINDS, AttentionCase, _calls, choose, peak, reports, run
from regard.lab.bench.timing import time_in_turns
from regard.system.errors import SettingError
from regard.system.memory import keep_large_blocks

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")


# Two kernels of patterns; the rest, which takes ten seconds, with the slow ones.
FAST_KINDS = ("window", "bigbird")


@pytest.mark.parametrize(
    "kind",
    [
        *FAST_KINDS,
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in KINDS
            if kind not in ("full", *FAST_KINDS)
        ),
    ],
)
def test_peak_memory_is_linear(kind: str) -> None:
    """From lengths at which a window of 16 is narrow, and what a piece takes is little."""
    case = AttentionCase((kind,), (4096, 8192, 16384), heads=2, d_k=8, window=16, rounds=1)
    *each, last = run(case, CPU)
    assert last.keys() == {"kind", "exponent", "forward_exponent", "memory_exponent"}
    assert [(line["n"], line["backward"]) for line in each] == [
        (n, backward) for n in case.lengths for backward in (False, True)
    ]
    assert 0.5 < last["memory_exponent"] < 1.1


@pytest.mark.slow
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
    case = AttentionCase(choose(words), (64,), heads=2, d_k=8, rounds=1)
    results = list(run(case, CPU))
    assert [line["kind"] for line in results if "exponent" in line] == list(words)
    calls = _calls(case, ("window:256", "window:16"), 4096, False, CPU)
    wide, narrow = (peak(once, CPU) for once in calls.values())
    assert narrow < wide
    with pytest.raises(SettingError, match="numbers"):
        choose(["dilated:8"])


@pytest.mark.slow
def test_the_command_writes_one_object_a_line() -> None:
    command = [
        sys.executable,
        "-m",
        "regard",
        "bench",
        "attention",
        "--json",
        "--device",
        "cpu",
        "--rounds",
        "1",
    ]
    done = subprocess.run(
        [*command, "--kinds", "full,linear", "--lengths", "64,128", "--heads", "1"],
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["full", "linear"] * 5
    assert all(
        {"n", "seconds", "peak_bytes", "backward"} <= line.keys()
        for line in lines
        if "exponent" not in line
    )
    assert [i for i, line in enumerate(lines) if "exponent" in line] == [8, 9]
    # Nothing is said, but that the machine is busy, which tests in parallel make it.
    talk = [line for line in done.stderr.splitlines() if not re.search("busy|idle", line)]
    assert talk == []
    with pytest.raises(SettingError, match="did you mean 'window'"):
        choose(["windw"])


def test_results_say_how_much_faster_than_full_attention() -> None:
    case = AttentionCase(("full", "window"), (64, 128), heads=1, window=8, rounds=2)
    results = [
        {
            "kind": kind,
            "n": n,
            "backward": backward,
            "seconds": n * cost * (1 + backward),
            "spread": 0.02,
            "peak_bytes": n,
        }
        for n in case.lengths
        for backward in (False, True)
        for kind, cost in (("full", n), ("window", 8.0))
    ]
    grown = {"exponent": 2.0, "forward_exponent": 2.0, "memory_exponent": 1.0}
    short, long = reports(
        case,
        [*results, *({"kind": kind, **grown} for kind in case.kinds)],
        "regard bench x",
        "here",
    )
    assert short.as_json()["ratios"]["window"]["full"] == 8.0
    assert long.as_json()["ratios"]["window"]["full"] == 16.0
    assert [(row.name, row.rate) for row in long.rows] == [
        ("full", 1 / 256),
        ("window", 1 / 16),
    ]  # there and back
    assert "128 positions" in long.heading
    assert "window grows as time n^2.00  forward n^2.00  memory n^1.00" in long.lines()[-1]


def test_what_is_slow_is_asked_once() -> None:
    asked = {"slow": 0, "fast": 0}

    def case(name: str, seconds: float) -> Callable[[], float]:
        def once() -> float:
            asked[name] += 1
            time.sleep(seconds)
            return 1.0

        return once

    results = time_in_turns(
        {"slow": case("slow", 0.05), "fast": case("fast", 0.0)}, 2, CPU, slow=0.02
    )
    assert asked == {"slow": 1, "fast": 3}
    assert results["slow"].spread is None
    assert results["slow"].median >= 0.05
    assert len(results["fast"].seconds) == 2


def test_allocator_settings_are_taken_where_there_are_any() -> None:
    assert keep_large_blocks() in (True, False)
    assert torch.ones(2**22).sum() == 2**22
