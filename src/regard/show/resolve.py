"""What a page is about: a model folder, or a preset by name; read without weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard import spec as kinds
from regard.errors import ModelError, did_you_mean
from regard.families import (
    bart_presets,
    bert_presets,
    electra_presets,
    gpt_presets,
    palm,
    recurrent,
    t5_presets,
    transformer,
)
from regard.families import folder as folders

VOCABULARY = (
    37_000  # the joint one of the paper's English–German models, which have none of their own here
)

# GPT's are the sizes of GPT-3; ELECTRA's, the discriminators.
PRESETS: dict[str, tuple[tuple[str, ...], Callable[[str], kinds.Model]]] = {
    "vaswani": (
        tuple(transformer.PRESETS),
        lambda name: transformer.preset(name, VOCABULARY, VOCABULARY),
    ),
    "gpt": (tuple(gpt_presets.PRESETS), gpt_presets.preset),
    "palm": (tuple(palm.PRESETS), palm.preset),
    "bert": (tuple(bert_presets.PRESETS), bert_presets.preset),
    "electra": (tuple(electra_presets.PRESETS), lambda name: electra_presets.preset(name)[0]),
    "t5": (tuple(t5_presets.PRESETS), t5_presets.preset),
    "bart": (tuple(bart_presets.PRESETS), bart_presets.preset),
    **{
        family: (
            tuple(recurrent.PRESETS),
            lambda name, f=family: recurrent.preset(f, name, VOCABULARY, VOCABULARY),  # type: ignore[misc]
        )
        for family in recurrent.FAMILIES
    },
}


@dataclass(frozen=True)
class Subject:
    """`family` and `architecture` are the words of Hugging Face; our own format is the family `regard`."""

    name: str
    spec: kinds.Model
    family: str
    architecture: str


def subject(model: str) -> Subject:
    """MODEL as a user names it: a folder with config.json, or `family:size`."""
    if Path(model).is_dir():
        opened = folders.peek(model)
        said = folders.describe(opened.spec, positions=opened.positions, kind=opened.kind)
        named = opened.config.get("architectures")
        architecture = named[0] if isinstance(named, list) and named else said["architectures"][0]
        return Subject(Path(model).name or model, opened.spec, opened.kind, str(architecture))
    known = [f"{family}:{size}" for family, (sizes, _) in PRESETS.items() for size in sizes]
    if model not in known:
        raise ModelError(
            f"{model!r} is neither a model folder nor a preset", did_you_mean(model, known)
        )
    family, size = model.split(":")
    described = PRESETS[family][1](size)
    said = folders.describe(described)
    return Subject(model, described, said["model_type"], said["architectures"][0])
