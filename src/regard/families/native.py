"""Our own format, for models without a counterpart elsewhere: config.json holds the spec, and the names are ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import __version__
from regard import spec as kinds
from regard.build import outline
from regard.errors import ModelError
from regard.families.tensor_table import HARMLESS, Rule, Same

FORM = (object, object)  # whatever the others cannot say
PREFIX = ""
_KNOWN = HARMLESS | {"spec", "regard_version", "is_encoder_decoder"}


def config(model: kinds.Model, positions: int) -> dict[str, Any]:
    return {
        "model_type": "regard",
        "architectures": [type(model).__name__],
        "is_encoder_decoder": isinstance(model, kinds.EncoderDecoder | kinds.SequenceToSequence),
        "regard_version": __version__,
        "spec": kinds.to_dict(model),
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Model:
    unknown = sorted(set(config) - _KNOWN)
    if unknown:
        raise ModelError(
            f"config.json has an unknown key: {unknown[0]}",
            "open it with the version that wrote it",
        )
    model = kinds.from_dict(config.get("spec"))
    if not isinstance(model, kinds.Model):
        raise ModelError(
            "config.json holds no model under `spec`", "compare it with one that this version wrote"
        )
    return model


def table(model: kinds.Model, positions: int) -> list[Rule]:
    return [Same(name, name) for name, _ in outline(model).named_parameters()]
