"""Mutated model folders, run folders and recipes: success or a typed error, and nothing else."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctor_bench import load

pytestmark = pytest.mark.thorough

fuzz: Any = load("fuzz")


PARTS = 8  # of the long test: processes of pytest share them


def outcomes(originals: Path, seed: int, numbers: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    findings = []
    for number, outcome in fuzz.fuzz(originals, seed, numbers):
        counts[outcome.kind] += 1
        if outcome.is_finding:
            findings.append(f"seed {seed}, case {number}: {outcome.kind}: {outcome.text}")
    assert not findings, "\n".join(findings)
    return counts


def test_a_sample_of_cases() -> None:
    with fuzz.originals(zoo=False) as originals:
        counts = outcomes(originals, seed=7, numbers=range(120))
    # Both occur: mutations that matter, and some that do not.
    assert counts["typed"] > 40
    assert counts["success"] > 15


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_twenty_thousand_cases(part: int) -> None:
    pytest.importorskip("transformers")
    with fuzz.originals() as originals:
        outcomes(originals, seed=1, numbers=fuzz.part_of(range(20_000), f"{part}/{PARTS}"))


def test_parts_are_all_cases() -> None:
    numbers = range(5, 50)
    parts = [fuzz.part_of(numbers, f"{i}/4") for i in (1, 2, 3, 4)]
    assert sorted(number for part in parts for number in part) == list(numbers)
    for wrong in ("0/4", "5/4"):
        with pytest.raises(ValueError, match=wrong):
            fuzz.part_of(numbers, wrong)


def test_what_counts_as_a_finding(tmp_path: Path) -> None:
    """The harness sees other errors, crashes, code, processes, connections and writes outside."""

    def write_outside() -> None:
        (tmp_path / "outside").write_text("x")

    def run_code() -> None:
        Path("code-was-run").mkdir()

    def start_process() -> None:
        os.system("true")

    def connect() -> None:
        import socket

        socket.create_connection(("127.0.0.1", 9), timeout=0.01)

    def use_memory() -> None:
        bytearray(fuzz.LIMIT_BYTES * 2)

    def unpickle() -> None:
        import pickle

        pickle.loads(pickle.dumps(fuzz.fuzz_cases.Payload()))

    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: None, "success"),
        (lambda: json.loads("{"), "untyped"),
        (use_memory, "untyped"),
        (lambda: os.kill(os.getpid(), 9), "crash"),
        (write_outside, "violation"),
        (run_code, "violation"),
        (start_process, "violation"),
        (connect, "violation"),
        (unpickle, "violation"),
    ]
    for action, kind in cases:
        outcome = fuzz.run_cases(lambda _, folder, action=action: action, range(1))[0]
        assert outcome.kind == kind, outcome
