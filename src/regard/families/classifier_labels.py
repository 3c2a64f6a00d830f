"""The labels of a classifier, as a config names and counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec
from regard.system.arguments import is_whole
from regard.system.errors import ModelError


def classifier_head(model: spec.ModelSpec) -> spec.ClassifierHead | None:
    """The classifier of a model, unless it has none or two (DeiT's distilled head)."""
    return model.part(spec.ClassifierHead)


def label_count(config: Mapping[str, Any]) -> int:
    """The number of labels. transformers writes their names, or nothing when there are two."""
    names = config.get("id2label")
    if isinstance(names, dict) and names:
        return len(names)
    count = config.get("num_labels") or 2
    if not is_whole(count, 1):
        raise ModelError(
            f"config.json: num_labels cannot be {count!r}", "set it to the number of labels"
        )
    return int(count)


def label_names(count: int) -> dict[str, Any]:
    """The config keys of labels without names: transformers calls them LABEL_0, LABEL_1, ..."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
