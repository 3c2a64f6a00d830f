"""Word and character error rate (edit distance to the transcript), by jiwer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar

from regard.evaluation.metrics.metric import Array, Metric
from regard.system.errors import SettingError


class ErrorRate(Metric):
    """Edits that turn predictions into references, per unit of the references.

    It can exceed 100: what is inserted has no counterpart in the references.
    """

    greater_is_better = False

    units: ClassVar[str]  # of the texts: words or characters

    def __post_init__(self) -> None:
        _import_jiwer(self.name)  # refuses a missing package before anything is decoded

    def signature(self) -> str:
        return f"jiwer {metadata.version('jiwer')}: edits / {self.definition}"

    def count(self, prediction: str, reference: str) -> Sequence[float]:
        align = getattr(_import_jiwer(self.name), f"process_{self.units}")
        edits = align(reference, prediction)
        matched = edits.hits + edits.substitutions
        errors = edits.substitutions + edits.deletions + edits.insertions
        return (errors, matched + edits.deletions)

    def score(self, totals: Array) -> float:
        errors, units = totals
        # References without words (silence): jiwer counts the insertions, and so does this.
        return float(100.0 * errors / max(1.0, units))


@dataclass(frozen=True)
class WordErrorRate(ErrorRate):
    """Word error rate."""

    name = "wer"
    units = "words"
    definition = "words of the references, without normalization"


@dataclass(frozen=True)
class CharacterErrorRate(ErrorRate):
    """Character error rate; spaces count as characters."""

    name = "cer"
    units = "characters"
    definition = "characters of the references, with spaces"


def _import_jiwer(name: str) -> Any:
    try:
        import jiwer
    except ImportError:
        raise SettingError(
            f"{name} needs the package jiwer", "pip install 'regard[metrics]'"
        ) from None
    return jiwer
