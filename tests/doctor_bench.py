"""The cases of bench/doctor.py, for the tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[1] / "bench"


def load(name: str) -> Any:
    """A module of the folder bench, which is no package."""
    if str(BENCH) not in sys.path:
        sys.path.insert(0, str(BENCH))
    return importlib.import_module(name)
