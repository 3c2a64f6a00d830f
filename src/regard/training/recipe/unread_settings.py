"""Settings that an objective does not read: refused where a user gives them, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import SettingError
from regard.training.recipe.objectives import OBJECTIVES, DataKind
from regard.training.recipe.sections import (
    DataSettings,
    DecodeSettings,
    TokenSettings,
    TrainSettings,
)

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
_FIELDS = {
    name: field
    for section in (DataSettings, TokenSettings, TrainSettings, DecodeSettings)
    for name, field in section.model_fields.items()
}


def check_settings_are_read(objective: str, changes: Mapping[str, Any]) -> None:
    """Refuses changes of a recipe that would have no effect on a run with this objective."""
    data = OBJECTIVES[objective].data
    for key, value in changes.items():
        # What says the same as nothing is harmless: scripts give it for all objectives alike.
        if key not in _FIELDS or value is None or value == _FIELDS[key].default:
            continue
        is_read = data in _READ_FOR_DATA.get(key, (data,))
        if not is_read or objective not in _READ_BY.get(key, (objective,)):
            raise SettingError(
                f"{key} is no setting of the objective {objective!r}", "leave it out"
            )
