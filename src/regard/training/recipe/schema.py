"""A recipe: everything that decides a run, in one TOML file of commented sections.

`loading` reads one from a file and from flags.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from regard.system.errors import SettingError, did_you_mean
from regard.training.recipe import consistency
from regard.training.recipe.sections import (
    DataSettings,
    DecodeSettings,
    ModelSettings,
    ParallelSettings,
    Section,
    TokenSettings,
    TrainSettings,
    TuneSettings,
)
from regard.training.recipe.settings import Settings


class Recipe(Settings):
    """The settings of a run, checked against each other."""

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        consistency.check(self)
        return self


SECTIONS: dict[str, type[Section]] = {
    "data": DataSettings,
    "tokens": TokenSettings,
    "model": ModelSettings,
    "train": TrainSettings,
    "decode": DecodeSettings,
    "tune": TuneSettings,
    "parallel": ParallelSettings,
}
# Each key with the name of its section.
KEYS: dict[str, str] = {
    key: name for name, section in SECTIONS.items() for key in section.model_fields
}
# Settings that are file names, by section.
FILE_KEYS = {
    "data": (
        "source",
        "target",
        "pairs",
        "valid_source",
        "valid_target",
        "valid_pairs",
        "test_source",
        "test_target",
        "test_pairs",
        "text",
        "valid_text",
        "test_text",
        "images",
        "valid_images",
        "test_images",
        "sounds",
        "valid_sounds",
        "test_sounds",
        "series",
        "graph",
    ),
    "model": ("pretrained_embeddings", "spec"),
    "tune": ("base",),
}


# The names that settings and flags had before they took those of the field.
FORMER_NAMES = {
    "agreement": "r_drop",
    "clip": "max_grad_norm",
    "cut": "truncation",
    "floor": "min_lr_ratio",
    "hidden": "mask_ratio",
    "kernel": "feedforward_kernel_size",
    "multiple": "pad_to_multiple_of",
    "of": "part",
    "recompute": "gradient_checkpointing",
    "share": "tie_embeddings",
    "start": "init",
    "teaching": "distillation_weight",
    "utilisation": "utilization",
    "vectors": "pretrained_embeddings",
    "warm_up": "warmup_ratio",
    "warmup": "warmup_steps",
    "weights": "final_weights",
}


def repair_of_unknown(key: str, options: Iterable[str]) -> str:
    """What to write in place of a setting that there is not: its new name, or the nearest one."""
    new_name = FORMER_NAMES.get(key)
    names = list(options)
    return f"it is called {new_name}" if new_name in names else did_you_mean(key, names)


def parse(values: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Checked values, or an error that names the key and the repair."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise _setting_error(error) from None


def _setting_error(error: ValidationError) -> SettingError:
    """The first of pydantic's errors, as one of ours."""
    first = error.errors()[0]  # one at a time: the others often follow from it
    # (section, key, …)
    location = [str(part) for part in first["loc"]]
    key = location[1] if len(location) > 1 else location[0]
    if first["type"] == "extra_forbidden":
        section = SECTIONS.get(location[0])
        options = section.model_fields if section else SECTIONS
        # A right key in the wrong section, or a misspelt one.
        repair = f"it belongs in [{KEYS[key]}]" if key in KEYS else repair_of_unknown(key, options)
        return SettingError(f"there is no setting {key!r} in [{location[0]}]", repair)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):  # raised by a check of ours
        return cause
    section = SECTIONS.get(location[0])
    field = section.model_fields.get(key) if section else None
    meaning = f": {field.description}" if field and field.description else ""
    message = first["msg"].lower().removeprefix("value error, ")
    return SettingError(f"{key} = {first['input']!r}: {message}", f"correct {key}{meaning}")


def value_type(key: str) -> Any:
    """The plain type of a key, for the command line: int, float, bool, str, or its choices."""
    annotation = SECTIONS[KEYS[key]].model_fields[key].annotation
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return typing.get_args(annotation)
    if origin is tuple:
        return str  # written with commas
    members = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    if not members:
        return annotation
    # Of `X | None`, X.
    member = members[0]
    return typing.get_args(member) if typing.get_origin(member) is Literal else member
