"""Which model a page is about: a model folder, or a preset by name; weights are not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard import spec as specs
from regard.errors import ModelError, did_you_mean
from regard.families import (
    bart,
    bert,
    electra,
    gpt2,
    palm,
    recurrent,
    t5,
    transformer,
)
from regard.families import folder as folders

# The joint vocabulary of the English–German models of 2017; the presets have none of their own.
VOCABULARY = 37_000


def _recurrent(family: str) -> Callable[[str], specs.Model]:
    return lambda size: recurrent.preset(family, size, VOCABULARY, VOCABULARY)


# For each family the names of its sizes, and the function from a size to its spec.
PRESETS: dict[str, tuple[tuple[str, ...], Callable[[str], specs.Model]]] = {
    "vaswani": (
        tuple(transformer.PRESETS),
        lambda size: transformer.preset(size, VOCABULARY, VOCABULARY),
    ),
    "gpt": (tuple(gpt2.PRESETS), gpt2.preset),  # the sizes of GPT-3
    "palm": (tuple(palm.PRESETS), palm.preset),
    "bert": (tuple(bert.PRESETS), bert.preset),
    # Of ELECTRA's two models the discriminator, which is what fine-tuning keeps.
    "electra": (tuple(electra.PRESETS), lambda size: electra.preset(size)[0]),
    "t5": (tuple(t5.PRESETS), t5.preset),
    "bart": (tuple(bart.PRESETS), bart.preset),
    **{family: (tuple(recurrent.PRESETS), _recurrent(family)) for family in recurrent.FAMILIES},
}


@dataclass(frozen=True)
class NamedModel:
    """A spec with its name, and its `family` and `architecture` in Hugging Face's words.

    A model that no architecture there can hold is of the family `regard`.
    """

    name: str
    spec: specs.Model
    family: str
    architecture: str


def resolve(model: str) -> NamedModel:
    """The model that a user names: a folder with config.json, or a preset `family:size`."""
    if Path(model).is_dir():
        return _from_folder(Path(model))
    presets = [f"{family}:{size}" for family, (sizes, _) in PRESETS.items() for size in sizes]
    if model not in presets:
        raise ModelError(
            f"{model!r} is neither a model folder nor a preset", did_you_mean(model, presets)
        )
    family, size = model.split(":")
    _, preset = PRESETS[family]
    spec = preset(size)
    # What Hugging Face would call it, if it has an architecture for it.
    config = folders.describe(spec)
    return NamedModel(model, spec, config["model_type"], config["architectures"][0])


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
