"""regard: one small, readable, fast system for the whole Transformer family."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.models import LanguageModel, Translator, load
    from regard.training.run import finetune, train

__version__ = "0.1.0"

# Loaded when first used, so that `import regard` and `regard --help` do not wait for torch.
_HOMES = {
    "load": "regard.models",
    "LanguageModel": "regard.models",
    "Translator": "regard.models",
    "finetune": "regard.training.run",
    "train": "regard.training.run",
}

__all__ = ["LanguageModel", "Translator", "finetune", "load", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
