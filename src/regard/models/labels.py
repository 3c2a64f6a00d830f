"""Labels of a classifier: their names, and probabilities from logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from regard.system.errors import ModelError

Scores = dict[str, float]  # label → probability, likeliest first


def label_names(config: Mapping[str, Any], count: int) -> list[str]:
    """The names of all labels, by id2label of config.json.

    Where two have the same name (ImageNet has two cranes), each gets its number.
    """
    id2label = config.get("id2label") or {}
    if not isinstance(id2label, Mapping):
        raise ModelError(
            f"id2label of config.json is a {type(id2label).__name__}, not an object",
            "write it as an object {index: name}",
        )
    names = [label_name(config, i) for i in range(count)]
    # Names are the keys of a result: equal ones get their number.
    occurrences = Counter(names)
    return [name if occurrences[name] == 1 else f"{name} ({i})" for i, name in enumerate(names)]


def label_name(config: Mapping[str, Any], index: int) -> str:
    """The name of one label, whatever those of the others."""
    id2label = config.get("id2label") or {}
    # JSON has strings for keys; a config made in Python may have integers.
    return str(id2label.get(str(index), id2label.get(index, f"LABEL_{index}")))


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """The names of labels, under the keys of Hugging Face's config.json."""
    return {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }


def top_labels(scores: Scores) -> str:
    """The likeliest labels in words: "cat 93 %, dog 4 %"."""
    return ", ".join(f"{label} {share:.0%}" for label, share in list(scores.items())[:3])


def label_scores(logits: Tensor, names: Sequence[str], problem_type: str | None = None) -> Scores:
    """Label → probability of one input's logits [labels], likeliest first.

    Probabilities add up to 1; with several labels at once, or a single one, each is between 0 and
    1. A regression gives the number itself.
    """
    # The words of transformers' `problem_type`.
    if problem_type == "regression":
        values = logits
    elif problem_type == "multi_label_classification" or len(names) == 1:
        values = logits.sigmoid()
    else:
        values = logits.softmax(dim=-1)
    order = values.argsort(descending=True, stable=True).tolist()
    return {names[i]: float(values[i]) for i in order}
