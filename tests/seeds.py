"""Seeds of tests that hold for any: one in the fast suite, the others among the slow tests."""

from __future__ import annotations

import pytest

SEEDS = (
    0,
    pytest.param(1, marks=pytest.mark.slow),
    pytest.param(2, marks=pytest.mark.slow),
)
