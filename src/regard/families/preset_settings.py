"""Presets: named sizes of a family, any of whose settings can be changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regard.system.errors import ModelError, SettingError, did_you_mean

Presets = Mapping[str, Mapping[str, Any]]


def preset_settings(
    family: str,
    presets: Presets,
    name: str,
    defaults: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """The settings of a preset: defaults, the preset's values over them, `changes` over both."""
    if name not in presets:
        raise SettingError(f"{family} has no preset {name!r}", did_you_mean(name, presets))
    options = {**defaults, **presets[name]}
    for key in changes:
        if key not in options:
            raise SettingError(f"{family} has no option {key!r}", did_you_mean(key, options))
    return {**options, **changes}


def transformer_settings(
    family: str,
    presets: Presets,
    name: str,
    defaults: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> Any:
    """`preset_settings` of a Transformer, where d_k and d_ff follow from d_model unless set."""
    settings = preset_settings(family, presets, name, defaults, changes)
    d_model = settings["d_model"]
    heads = settings["heads"]
    if settings.get("d_k") is None and d_model % heads:
        raise SettingError(
            f"d_model {d_model} is not divisible by {heads} heads", "change one of them"
        )
    # The usual proportions: d_k = d_model / heads, d_ff = 4 d_model.
    settings["d_k"] = settings.get("d_k") or d_model // heads
    settings["d_ff"] = settings.get("d_ff") or 4 * d_model
    return settings


# ------------------------------------------------------------------ presets as configs

# What the configs of most encoders can say; d_ff is 4 d_model where it is None.
ENCODER_DEFAULTS: dict[str, Any] = {
    "d_ff": None,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation": "gelu",
}
# The names of transformers for activations of ours.
_ACTIVATION_NAMES = {"gelu_tanh": "gelu_new"}


def config_activation(activation: str) -> str:
    """The name of an activation in a config."""
    return _ACTIVATION_NAMES.get(activation, activation)


def encoder_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under the config keys that BERT and most encoders have."""
    return {
        "hidden_size": settings["d_model"],
        "num_hidden_layers": settings["layers"],
        "num_attention_heads": settings["heads"],
        "intermediate_size": settings["d_ff"],
        "hidden_act": config_activation(settings["activation"]),
        "hidden_dropout_prob": settings["dropout"],
        "attention_probs_dropout_prob": settings["attention_dropout"],
    }


@dataclass(frozen=True)
class ConfigPresets:
    """The presets of a family whose specs are made from its Hugging Face config.

    So a preset is what `regard.load` would open, and is saved as a folder of that family.
    """

    family: str
    sizes: Presets
    defaults: Mapping[str, Any]
    # From settings, with `vocabulary` and `context` among them, to a config, and on to a spec.
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    to_spec: Callable[[Mapping[str, Any]], Any]

    def __call__(self, name: str, vocabulary: int, context: int, **changes: Any) -> Any:
        """A named size, any of whose settings can be changed."""
        settings = transformer_settings(self.family, self.sizes, name, self.defaults, changes)
        settings |= {"vocabulary": vocabulary, "context": context}
        try:
            return self.to_spec(self.config(settings))
        except ModelError as error:
            # A setting of the user's is at fault: the config is ours.
            raise SettingError(error.problem, error.repair) from None
