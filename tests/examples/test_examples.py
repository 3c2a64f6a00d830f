"""The examples run, and what they compute from scratch is what the core computes."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import FullMask
from regard.core.mixers.scaled_dot_product_attention import attention_weights, fused

pytestmark = pytest.mark.thorough

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*.py")
    if path.name != "pronoun_circuit.py"  # which has tests of its own
)
OUTPUTS = {"printed_numbers.py": "2 of 20 statements stand"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_it_runs(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert OUTPUTS.get(path.name, "\n") in done.stdout


def test_attention_from_scratch_is_the_cores() -> None:
    script = runpy.run_path(str(EXAMPLES[0].with_name("attention_numpy.py")))
    chance = np.random.default_rng(0)
    q, k, v = (chance.normal(size=size) for size in ((5, 8), (7, 8), (7, 3)))
    output, weights = script["attention"](q, k, v)
    queries, keys, values = (torch.from_numpy(x)[None, None] for x in (q, k, v))
    attention_mask = AttentionMask(FullMask(), torch.arange(5), torch.arange(7))
    np.testing.assert_allclose(
        fused(queries, keys, values, attention_mask, 8**-0.5, 0.0)[0, 0].numpy(), output, rtol=1e-9
    )
    np.testing.assert_allclose(
        attention_weights(queries, keys, attention_mask.allowed, 8**-0.5)[0, 0].numpy(),
        weights,
        rtol=1e-9,
    )
