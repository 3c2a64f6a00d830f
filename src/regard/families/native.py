"""Our own format (`model_type: regard`), for models that transformers does not have.

config.json holds the spec, and the tensors have the names of our parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from regard import __version__, spec
from regard.builder import outline
from regard.families.config_schema import IGNORED_KEYS, Config
from regard.families.tensor_table import Rename, Rules
from regard.system.errors import ModelError

SPEC_TYPES = (object, object)  # any model, over any input
PREFIX = ""
_KEYS = IGNORED_KEYS | {"spec", "regard_version", "is_encoder_decoder"}


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Model, positions: int) -> Config:
    return {
        "model_type": "regard",
        "architectures": [type(model).__name__],
        "is_encoder_decoder": isinstance(model, spec.EncoderDecoder | spec.SequenceToSequence),
        "regard_version": __version__,
        "spec": spec.to_dict(model),
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = (), kinds: Iterable[type] = ()) -> spec.Model:
    """`kinds` are the dataclasses of parts from outside the package."""
    unknown = sorted(set(config) - _KEYS)
    if unknown:
        raise ModelError(
            f"config.json has an unknown key: {unknown[0]}",
            "open it with the version that wrote it",
        )
    model = spec.from_dict(config.get("spec"), kinds)
    if not isinstance(model, spec.ModelSpec):
        raise ModelError(
            "config.json has no model under the key `spec`",
            "open the folder with the version that wrote it, or save the model again",
        )
    return model  # type: ignore[return-value]


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Model, positions: int) -> Rules:
    return [Rename(name, name) for name, _ in outline(model).named_parameters()]
