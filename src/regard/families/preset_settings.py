"""Presets: named sizes of a family, any of whose settings can be changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from regard import spec
from regard.system.errors import SettingError, did_you_mean

Kind = Literal[
    "encoder-decoder",  # text to text
    "decoder",  # a language model
    "encoder",  # a masked language model, or a detector of replaced tokens
    "image",  # a classifier of images; the vocabulary are its classes, the context its side
    "dual encoder",  # of texts and images
    "speech",  # an encoder–decoder over spectrograms
    "ctc",  # an encoder of sound that spells letters
    "memory network",
    "graph",  # a classifier of nodes or graphs; the vocabulary are its classes
    "series",  # a forecaster; the vocabulary are its channels, the context its look-back
]


@dataclass(frozen=True)
class Size:
    """A named size of a family: its settings, and the parameter count that is published of it.

    A count is what the paper prints, or the model card where the paper has none; where ours
    differs by more than half a percent, the size has a reason.
    """

    settings: Mapping[str, Any]
    published: float | None = None  # in millions; None where nobody printed one
    reason: str = ""  # why ours is another number
    # Where they are not the family's:
    vocabulary: int | None = None
    context: int | None = None


# The sizes of BERT's layers (Devlin et al. 2019, Turc et al. 2019), which many families have.
TINY_LAYERS = {"layers": 2, "d_model": 128, "heads": 2}
BASE_LAYERS = {"layers": 12, "d_model": 768, "heads": 12}
LARGE_LAYERS = {"layers": 24, "d_model": 1024, "heads": 16}
# Reasons that several families have.
ROUNDED = "rounded in the paper"
NO_POOLER = "without the pooler, which the published number counts"


@dataclass(frozen=True)
class PresetFamily:
    """The presets of a family: how a size becomes a spec, with the usual vocabulary and context."""

    kind: Kind
    make: Callable[..., spec.Model]  # of (size, vocabulary, context, **changes)
    sizes: Mapping[str, Size]
    defaults: Collection[str]  # what `make` can change beside the settings of the sizes
    vocabulary: int
    context: int
    default: str  # the size of the bare name

    @property
    def options(self) -> set[str]:
        """The changes that `make` knows; the others are made to the spec."""
        return {*self.defaults, *(key for size in self.sizes.values() for key in size.settings)}


def translation_family(
    preset: Callable[..., spec.Model], sizes: Mapping[str, Size], options: Collection[str]
) -> PresetFamily:
    """The presets of an encoder–decoder whose languages have one vocabulary.

    37,000 tokens are the joint vocabulary of English and German in 2017.
    """

    def make(size: str, vocabulary: int, context: int, **changes: Any) -> spec.Model:
        return preset(size, vocabulary, vocabulary, max_length=context, **changes)

    return PresetFamily("encoder-decoder", make, sizes, options, 37_000, 512, "base")


def preset_settings(
    family: str,
    sizes: Mapping[str, Size],
    name: str,
    defaults: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """The settings of a preset: defaults, the size's values over them, `changes` over both."""
    if name not in sizes:
        raise SettingError(f"{family} has no preset {name!r}", did_you_mean(name, sizes))
    options = {**defaults, **sizes[name].settings}
    for key in changes:
        if key not in options:
            raise SettingError(f"{family} has no option {key!r}", did_you_mean(key, options))
    return {**options, **changes}


def transformer_settings(
    family: str,
    sizes: Mapping[str, Size],
    name: str,
    defaults: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> Any:
    """`preset_settings` of a Transformer, where d_k and d_ff follow from d_model unless set."""
    settings = preset_settings(family, sizes, name, defaults, changes)
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

    name: str
    sizes: Mapping[str, Size]
    defaults: Mapping[str, Any]
    # From settings, with `vocabulary` and `context` among them, to a config, and on to a spec.
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    to_spec: Callable[[Mapping[str, Any]], Any]

    def family(self, kind: Kind, vocabulary: int, context: int, default: str) -> PresetFamily:
        """These presets in the list, with the usual vocabulary, context and size."""
        return PresetFamily(kind, self, self.sizes, self.defaults, vocabulary, context, default)

    def __call__(self, name: str, vocabulary: int, context: int, **changes: Any) -> Any:
        """A named size, any of whose settings can be changed."""
        settings = transformer_settings(self.name, self.sizes, name, self.defaults, changes)
        settings |= {"vocabulary": vocabulary, "context": context}
        return self.to_spec(self.config(settings))
