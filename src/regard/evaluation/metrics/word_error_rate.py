"""Word and character error rate (edit distance to the transcript), by jiwer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from numpy.typing import ArrayLike

from regard.evaluation.metrics.metric import Array, Metric
from regard.system.errors import SettingError


class ErrorRate(Metric):
    """Edits that turn predictions into references, per unit of the references.

    It can exceed 100: what is inserted has no counterpart in the references.
    """

    greater_is_better = False

    @abstractmethod
    def align(self, reference: str, prediction: str) -> Any:
        """The alignment by jiwer, with its counts of edits."""

    def counts(self, predictions: Sequence[str], references: Sequence[str]) -> ArrayLike:
        rows = []
        for prediction, reference in zip(predictions, references, strict=True):
            edits = self.align(reference, prediction)
            matched = edits.hits + edits.substitutions
            errors = edits.substitutions + edits.deletions + edits.insertions
            rows.append((errors, matched + edits.deletions))
        return rows

    def score(self, totals: Array) -> float:
        errors, units = totals
        # References without words (silence): jiwer counts the insertions, and so does this.
        return float(100.0 * errors / max(1.0, units))


@dataclass(frozen=True)
class WordErrorRate(ErrorRate):
    """Word error rate."""

    name = "wer"

    def __post_init__(self) -> None:
        _import_jiwer(self.name)  # refuses a missing package before anything is decoded

    def signature(self) -> str:
        version = metadata.version("jiwer")
        return f"jiwer {version}: edits / words of the references, without normalization"

    def align(self, reference: str, prediction: str) -> Any:
        return _import_jiwer(self.name).process_words(reference, prediction)


@dataclass(frozen=True)
class CharacterErrorRate(ErrorRate):
    """Character error rate; spaces count as characters."""

    name = "cer"

    def __post_init__(self) -> None:
        _import_jiwer(self.name)

    def signature(self) -> str:
        version = metadata.version("jiwer")
        return f"jiwer {version}: edits / characters of the references, with spaces"

    def align(self, reference: str, prediction: str) -> Any:
        return _import_jiwer(self.name).process_characters(reference, prediction)


def _import_jiwer(name: str) -> Any:
    try:
        import jiwer
    except ImportError:
        raise SettingError(
            f"{name} needs the package jiwer", "pip install 'regard[metrics]'"
        ) from None
    return jiwer
