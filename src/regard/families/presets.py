"""Presets by name: `preset("gpt2:xl")` is a spec, `about("gpt2:xl")` what is published of it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard import spec
from regard.families.attention_options import parse_attention
from regard.families.preset_changes import CHANGES, with_changes
from regard.families.preset_settings import Kind, PresetFamily
from regard.families.registry import FILES
from regard.system.errors import ModelError, SettingError, did_you_mean

_OF_FILES: dict[str, dict[str, PresetFamily]] = {
    file: importlib.import_module(f"regard.families.{file}").PRESETS for file in FILES
}
PRESET_FAMILIES = dict(item for presets in _OF_FILES.values() for item in presets.items())
# Other names: those of Hugging Face's `model_type`, in the order in which a file has both.
ALIASES = {
    model_type: name
    for file, presets in _OF_FILES.items()
    for model_type, name in zip(FILES[file], presets, strict=False)
    if model_type != name
}
TOLERANCE = 0.005  # how far a parameter count may be from the published one without a reason


@dataclass(frozen=True)
class Preset:
    """An entry of the list: a name with its size, and what is known of it."""

    name: str  # as `gpt2:xl`
    kind: Kind
    vocabulary: int
    context: int
    published: float | None  # millions of parameters
    reason: str


def preset(
    name: str, vocabulary: int | None = None, context: int | None = None, **changes: Any
) -> spec.Model:
    """The spec of `NAME:SIZE`, or of a family's usual size for `NAME`.

    Without a `vocabulary` or `context` they are those of the paper. The context is the longest
    input, where the model has a longest one; for images it is their side, and the vocabulary are
    the classes. `changes` are sizes of the family (d_model, d_ff, heads, layers, …), and those of
    `preset_changes` (attention, position, tie_embeddings, …), which hold for every wiring.
    """
    family, size = _find(name)
    family_changes = {key: value for key, value in changes.items() if key in family.options}
    other_changes = {key: value for key, value in changes.items() if key not in family.options}
    for key in other_changes:
        if key not in CHANGES:
            # Settings of other families (decoder_layers) are not typing errors.
            repair = did_you_mean(key, {*family.options, *CHANGES}, likeness=0.8)
            raise SettingError(f"{name} has no option {key!r}", repair)
    mixer, _ = parse_attention(changes.get("attention") or "softmax")
    if changes.get("attention_dropout") and isinstance(mixer, spec.LinearAttention):
        raise SettingError(
            f"attention {changes['attention']!r} does not support attention_dropout",
            "set attention_dropout = 0",
        )
    row = family.sizes[size]
    vocabulary = vocabulary or row.vocabulary or family.vocabulary
    context = context or row.context or family.context
    try:
        model = family(size, vocabulary, context, **family_changes)
    except ModelError as error:
        # What is wrong with the spec comes from a setting of the user.
        raise SettingError(error.problem, error.repair) from None
    if "image_size" in changes:
        _check_patches(model)
    return with_changes(model, context, other_changes)


def _check_patches(model: spec.Model) -> None:
    """Refuses image sizes that are not multiples of the patch; published models may have such."""
    match model:
        case spec.Encoder(input=spec.Patches(size, patch, padded=False)) if size % patch:
            raise SettingError(
                f"image_size {size} is not a multiple of the patch size {patch}",
                f"set image_size = {size - size % patch}, or another patch",
            )


def about(name: str) -> Preset:
    """What is known of a preset: its kind, its usual sizes, its published parameter count."""
    family, size = _find(name)
    row = family.sizes[size]
    return Preset(
        f"{name.partition(':')[0]}:{size}",
        family.kind,
        row.vocabulary or family.vocabulary,
        row.context or family.context,
        row.published,
        row.reason,
    )


def names() -> Iterator[str]:
    """All names that `preset` takes, with a size and without."""
    for word in (*PRESET_FAMILIES, *ALIASES):
        yield word
        for size in PRESET_FAMILIES[ALIASES.get(word, word)].sizes:
            yield f"{word}:{size}"


def listing() -> Iterator[Preset]:
    """All presets, in the order of the list."""
    for name, family in PRESET_FAMILIES.items():
        for size in family.sizes:
            yield about(f"{name}:{size}")


def _find(name: str) -> tuple[PresetFamily, str]:
    if not isinstance(name, str):
        raise SettingError(
            f"{name!r} is not the name of a preset", "write NAME:SIZE, such as 'gpt2:tiny'"
        )
    word, colon, size = name.partition(":")
    word = ALIASES.get(word, word)
    if word not in PRESET_FAMILIES:
        raise SettingError(
            f"there is no model {word!r}", did_you_mean(word, [*PRESET_FAMILIES, *ALIASES])
        )
    family = PRESET_FAMILIES[word]
    if colon and not size:
        raise SettingError(
            f"{name!r} has no size after the colon",
            f"add one of {', '.join(family.sizes)}, or remove the colon",
        )
    size = size or family.default
    if size not in family.sizes:
        raise SettingError(f"{word} has no size {size!r}", _size_repair(size, family))
    return family, size


def _size_repair(size: str, family: PresetFamily) -> str:
    """The likely size; or the model, where its name was given as a size (`--preset gpt2:xl`)."""
    word = size.partition(":")[0]
    if word in PRESET_FAMILIES or word in ALIASES:
        return f"{word!r} is a model: set model = {size!r}"
    return did_you_mean(size, family.sizes)
