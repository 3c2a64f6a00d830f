"""Which model a page is about: a model folder, or a preset by name; weights are not read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard import spec as specs
from regard.families import folder as folders
from regard.families import presets
from regard.families.presets import Preset
from regard.system.errors import ModelError, did_you_mean


@dataclass(frozen=True)
class NamedModel:
    """A spec with its name, and its `family` and `architecture` in Hugging Face's words.

    A model that no architecture there can hold is of the family `regard`. `preset` is what is
    published of it, where it is a preset.
    """

    name: str
    spec: specs.Model
    family: str
    architecture: str
    preset: Preset | None = None


def resolve(model: str) -> NamedModel:
    """The model that a user names: a folder with config.json, or a preset `NAME[:SIZE]`."""
    if Path(model).is_dir():
        return _from_folder(Path(model))
    if Path(model).is_file():
        raise ModelError(
            f"{model} is a file, not a model folder", f"pass the folder: {Path(model).parent}"
        )
    names = list(presets.names())
    if model not in names:
        raise ModelError(f"{model!r} is neither a model folder nor a preset", closest(model, names))
    spec = presets.preset(model)
    about = presets.about(model)
    # What Hugging Face would call it, if it has an architecture for it.
    config = folders.describe(spec)
    return NamedModel(about.name, spec, config["model_type"], config["architectures"][0], about)


def closest(model: str, names: list[str]) -> str:
    """The repair for a name that there is not."""
    answer = did_you_mean(model, names)
    if answer.startswith("did you mean"):
        return answer
    return "`regard show` lists all presets"  # a list of two hundred names would not help


def _from_folder(folder: Path) -> NamedModel:
    opened = folders.peek(folder)
    architectures = opened.config.get("architectures")
    if not (isinstance(architectures, list) and architectures):
        # config.json need not name its class; then it is the one that we would write.
        config = folders.describe(
            opened.spec, positions=opened.positions, model_type=opened.model_type
        )
        architectures = config["architectures"]
    return NamedModel(
        folder.name or str(folder), opened.spec, opened.model_type, str(architectures[0])
    )
