"""Settings that an objective does not read: refused where a user gives them, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import SettingError
from regard.training.recipe.objectives import OBJECTIVES, DataKind
from regard.training.recipe.sections import TokenSettings

# The kinds of data whose objectives read a setting, of those that not all do.
_READ_FOR_DATA: dict[str, tuple[DataKind, ...]] = {
    "beam": ("pairs", "sounds"),
    "length_penalty": ("pairs", "sounds"),
    "tokenize": ("pairs",),
    "joint": ("pairs",),
    "target_tokenizer": ("pairs",),
    "tokenizer_examples": ("pairs", "text"),
    "languages": ("pairs", "sounds"),
    "series_split": ("series",),
    "held_out": ("text",),
    "text_column": ("text",),
    "max_length": ("pairs", "examples", "images", "sounds", "series", "graph"),
}
# The objectives that read a setting.
_READ_BY: dict[str, tuple[str, ...]] = {
    "span_length": ("span", "denoise", "speech_contrastive"),
    "label_smoothing": (
        "translate", "classify", "tag", "stories", "images", "sounds", "transcribe", "nodes",
        "graphs",
    ),
}  # fmt: skip


# The kinds of data whose tokenizer is that of the model that is fine-tuned.
_TEXT_DATA = ("pairs", "text", "examples")


def check_settings_are_read(objective: str, changes: Mapping[str, Any], *, has_base: bool) -> None:
    """Refuses changes of a recipe that would have no effect on a run with this objective.

    `has_base`: a model is fine-tuned, which brings its tokenizer.
    """
    data = OBJECTIVES[objective].data
    for key, value in changes.items():
        if _is_off(key, value):
            continue
        if has_base and data in _TEXT_DATA and key in TokenSettings.model_fields:
            raise SettingError(f"{key} is decided by the model that is fine-tuned", "leave it out")
        is_read = data in _READ_FOR_DATA.get(key, (data,))
        if not is_read or objective not in _READ_BY.get(key, (objective,)):
            raise SettingError(
                f"{key} is not a setting of the objective {objective!r}", "leave it out"
            )


def _is_off(key: str, value: Any) -> bool:
    """Whether a value switches off what is not there anyway; False may be a choice."""
    is_greedy = key == "beam" and value == 1
    return is_greedy or (value is not False and not value)
