"""Programs that compare Triton kernels with their definitions, and what these programs share.

The kernels run on a GPU, or else in Triton's interpreter. The interpreter must be chosen before
Triton is imported, so each comparison is a program of its own.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TESTS = Path(__file__).parent
PROGRAMS = [
    TESTS / "equal/compare_beams.py",
    TESTS / "equal/compare_short.py",
    TESTS / "equal/compare_steps.py",
    TESTS / "training/compare_losses.py",
]
LOW_PRECISION_ERROR = 0.06  # of the norm: bfloat16 has 8 bits, and a definition rounds often


def start_program(program: Path, dtype: str = "float32") -> subprocess.Popen[str]:
    """Starts one of the programs in this precision."""
    environment = dict(os.environ)
    paths = [str(TESTS), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, str(program), dtype]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str]) -> None:
    """What the program reports is the error of the test."""
    _, errors = process.communicate()
    assert process.returncode == 0, errors[-4000:]


def chosen_dtype() -> torch.dtype:
    """The precision that the program was started with."""
    name = sys.argv[1] if len(sys.argv) > 1 else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def combinations(*factors: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """All combinations on a GPU; in the interpreter, so many that every two values meet once.

    The interpreter takes a second for some launches.
    """
    met: set[tuple[int, int, Any, Any]] = set()
    for values in itertools.product(*factors):
        pairs = {
            (i, j, values[i], values[j]) for i, j in itertools.combinations(range(len(values)), 2)
        }
        if torch.cuda.is_available() or not pairs <= met:
            met |= pairs
            yield values


def assert_same(
    actual: Tensor, expected: Tensor, relative: float, absolute: float | None = None
) -> None:
    """Equal in float32 up to a tolerance; in low precision up to a share of the norm."""
    if chosen_dtype() == torch.float32:
        absolute = relative if absolute is None else absolute
        torch.testing.assert_close(actual, expected, rtol=relative, atol=absolute)
        return
    finite = expected.isfinite()
    assert torch.equal(actual.isfinite(), finite)
    error = (actual.float() - expected.float())[finite].norm()
    size = expected[finite].float().norm()
    assert error <= LOW_PRECISION_ERROR * size, f"{error:.3g} of {size:.3g}"
