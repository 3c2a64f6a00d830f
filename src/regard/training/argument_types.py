"""The types of arguments that Python users give: checked, for annotations do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regard import spec as specs
from regard.models import Model
from regard.system.errors import SettingError
from regard.training.setup import DataSource

# What an argument may be, by its name, and how that is said.
TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "recipe": ((str, Path), "the name or the file of a recipe, or a dictionary of settings"),
    "spec": ((specs.ModelSpec,), "a spec, such as regard.spec.Decoder(…); names are for `model`"),
    "model": (
        (str, specs.ModelSpec, Model),
        "a name, such as 'gpt2:tiny', a spec, or a model that regard.load opened",
    ),
    "data": ((str, Path, DataSource), "a file, or an object with splits()"),
    "objective": ((str, type), "a word, such as 'causal', or a subclass of Objective"),
    "out": ((str, Path), "the path of a folder"),
    "on_step": ((Callable,), "a function of the training loop"),  # type: ignore[dict-item]
    "base": ((str, Path, Model), "the folder of a model, or a model that regard.load opened"),
    "task": ((str,), "a word, such as 'classify'"),
    "folder": ((str, Path), "the path of a run folder"),
    # What a run that is resumed is given again.
    "source": ((DataSource,), "the object with splits() that the run began with"),
    "objective_class": ((type,), "the subclass of Objective that the run began with"),
}
_REQUIRED = ("base", "task", "folder")


def check_types(**arguments: object) -> None:
    """Refuses arguments of other types than annotated, which Python does not check."""
    for name, value in arguments.items():
        kinds, repair = TYPES[name]
        is_left_out = value is None and name not in _REQUIRED
        if is_left_out or isinstance(value, kinds):
            continue
        raise SettingError(f"`{name}` cannot be of type {type(value).__name__}", f"give {repair}")
