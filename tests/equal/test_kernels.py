"""Triton kernels compute what their definitions in PyTorch compute.

They run on a GPU, or else in Triton's interpreter. The interpreter must be chosen before Triton is
imported, so each comparison is a program of its own.
"""

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
    program = Path(__file__).with_name(name)
    environment = dict(os.environ)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
