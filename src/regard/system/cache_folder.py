"""The folder for what can be made or fetched again: downloads, and what was opened lately."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """~/.cache/regard, or what REGARD_CACHE names."""
    return Path(os.environ.get("REGARD_CACHE") or Path.home() / ".cache" / "regard")
