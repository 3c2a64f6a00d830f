"""Kernels for GPUs are the functions that they stand in for. They run on a GPU, or in triton's interpreter where that is
installed, which must be chosen before anything is imported: each comparison is a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.parametrize("name", ["compare_short.py", "compare_steps.py"])
def test_kernels_compute_the_same(name: str) -> None:
    pytest.importorskip("triton")
    script = Path(__file__).with_name(name)
    environment = {**os.environ, **({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
