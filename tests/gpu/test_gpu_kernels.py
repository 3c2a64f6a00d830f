"""Every Triton kernel on a GPU computes what its definition in PyTorch computes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from kernel_programs import PROGRAMS, start_program, wait_for

pytestmark = pytest.mark.gpu

CASES = [(program, dtype) for program in PROGRAMS for dtype in ("float32", "bfloat16")]


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All programs at once: most of their time is compiling kernels, on one core each."""
    running = {f"{program.stem} {dtype}": start_program(program, dtype) for program, dtype in CASES}
    yield running
    for process in running.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", [f"{program.stem} {dtype}" for program, dtype in CASES])
def test_kernels_compute_the_same(name: str, processes: dict[str, subprocess.Popen[str]]) -> None:
    wait_for(processes[name])
