"""The names of classes, and their probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

Scores = dict[str, float]  # name → probability, likeliest first


def label_names(config: Mapping[str, Any], count: int) -> list[str]:
    """What config.json calls them; where two have one name (ImageNet has two cranes), each with its number."""
    said = config.get("id2label") or {}
    names = [str(said.get(str(i), said.get(i, f"LABEL_{i}"))) for i in range(count)]
    times = Counter(names)
    return [name if times[name] == 1 else f"{name} ({i})" for i, name in enumerate(names)]


def scored(scores: Tensor, names: Sequence[str], problem: str | None = None) -> Scores:
    """scores [count] → probabilities that add up to 1; or, for several labels at once or one alone, each between 0 and 1;
    or, for a regression, the number itself."""
    if problem == "regression":
        values = scores
    elif problem == "multi_label_classification" or len(names) == 1:
        values = scores.sigmoid()
    else:
        values = scores.softmax(dim=-1)
    order = values.argsort(descending=True, stable=True).tolist()
    return {names[i]: float(values[i]) for i in order}
