"""Triton kernels compute what their definitions in PyTorch compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_programs import PROGRAMS, start_program, wait_for

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_kernels_compute_the_same(program: Path) -> None:
    pytest.importorskip("triton")
    wait_for(start_program(program))
