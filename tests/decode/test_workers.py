"""Worker processes decode what one process decodes; without a request there are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.decode import worker_pool
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.lab.bench.models import benchmark_model

PROGRAM = Path(__file__).parent / "programs" / "fork_workers.py"
SPECIAL_TOKENS = SpecialTokens(0, 1, 2, (0,))


def test_forked_workers_find_what_one_process_finds() -> None:
    """And errors come through, progress is counted, and the number of threads is restored."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "ok\n", done.stderr[-3000:]


def test_a_call_neither_forks_nor_sets_threads_unless_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("forked_pool", "ThreadPoolExecutor"):
        monkeypatch.setattr(worker_pool, name, lambda *_, **__: pytest.fail("a pool was started"))
    model: Any = benchmark_model("tiny").build()
    sources = [[4, 5, 6]] * 40
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("threads were changed"))
    try:
        hypotheses = decode(
            model, sources, SPECIAL_TOKENS, DecodingSettings(Greedy(), Limit.fixed(3))
        )
    finally:
        monkeypatch.undo()
        torch.set_num_threads(threads)
    assert len(hypotheses) == 40


def test_small_groups_are_not_cut() -> None:
    groups = [list(range(20))]
    assert worker_pool.split_groups(groups, 1) == groups
    assert [len(group) for group in worker_pool.split_groups(groups, 2)] == [10, 10]
    assert [len(group) for group in worker_pool.split_groups(groups, 8)] == [8, 8, 4]
