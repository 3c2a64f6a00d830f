"""Presets: named sizes of a family, any of whose settings can be changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from regard import spec
from regard.system.errors import SettingError, did_you_mean

# Sizes and other settings of a preset, by their names.
Settings = dict[str, Any]
Kind = Literal[
    "encoder-decoder",  # text to text
    "decoder",  # a language model
    "encoder",  # a masked language model, or a detector of replaced tokens
    "image",  # a classifier of images; the vocabulary are its classes, the context its side
    "video",  # a classifier of clips; the vocabulary are its classes, the context their side
    "dual encoder",  # of texts and images
    "detector",  # of objects in images; the vocabulary are its classes, the context its side
    "image and text",  # a classifier of both; the context is that of the text
    "captioner",  # of images, whose side is `image_size`; the context is that of the captions
    "speech",  # an encoder–decoder over spectrograms
    "speaker",  # text to speech; the vocabulary are its letters
    "ctc",  # an encoder of sound that spells letters
    "memory network",
    "graph",  # a classifier of nodes or graphs; the vocabulary are its classes
    "policy",  # of trajectories; the vocabulary are its actions, the context its longest episode
    "series",  # a forecaster; the vocabulary are its channels, the context its look-back
]


@dataclass(frozen=True)
class Size:
    """A named size of a family: its settings, and the parameter count that is published of it.

    A count is what the paper prints, or the model card where the paper has none; where ours
    differs by more than half a percent, the size has a reason.
    """

    settings: Settings
    published: float | None = None  # in millions; None where nobody printed one
    reason: str = ""  # why ours is another number
    # Where they are not the family's:
    vocabulary: int | None = None
    context: int | None = None


def size(
    layers: int,
    d_model: int,
    heads: int,
    published: float | None = None,
    reason: str = "",
    *,
    vocabulary: int | None = None,
    context: int | None = None,
    **others: Any,
) -> Size:
    """A size as papers print it: layers, d_model and heads, then the millions of parameters."""
    settings = {"layers": layers, "d_model": d_model, "heads": heads, **others}
    return Size(settings, published, reason, vocabulary, context)


# Layers, d_model and heads of BERT (Devlin et al. 2019, Turc et al. 2019), as of many families.
TINY_LAYERS = (2, 128, 2)
BASE_LAYERS = (12, 768, 12)
LARGE_LAYERS = (24, 1024, 16)
# Reasons that several families have.
ROUNDED = "rounded in the paper"
NO_POOLER = "without the pooler, which the published number counts"


@dataclass(frozen=True)
class PresetFamily:
    """The presets of a family: named sizes, any of whose settings can be changed."""

    kind: Kind
    make: Callable[[Any], Any]  # the spec of settings, with `vocabulary` and `context` among them
    sizes: Mapping[str, Size]
    defaults: Settings  # of the settings; those of a size stand over them
    # The usual ones, and the size of the bare name.
    vocabulary: int
    context: int
    default: str

    @property
    def options(self) -> set[str]:
        """The changes that are settings; the others are made to the spec."""
        return {*self.defaults, *(key for size in self.sizes.values() for key in size.settings)}

    def __call__(self, size: str, vocabulary: int, context: int, **changes: Any) -> Any:
        """The spec of a named size."""
        settings = preset_settings(self.sizes, size, self.defaults, changes)
        settings |= {"vocabulary": vocabulary, "context": context}
        return self.make(with_usual_sizes(settings))


def preset_settings(
    sizes: Mapping[str, Size], size: str, defaults: Settings, changes: Settings
) -> Settings:
    """The settings of a preset: defaults, the size's values over them, `changes` over both."""
    if size not in sizes:
        raise SettingError(f"there is no size {size!r}", did_you_mean(size, sizes))
    options = {**defaults, **sizes[size].settings}
    for key in changes:
        if key not in options:
            raise SettingError(f"there is no option {key!r}", did_you_mean(key, options))
    return {**options, **changes}


def shared_out(layers: int, stages: int) -> tuple[int, ...]:
    """The layers of each of so many stages: even, and the last ones have what is left over."""
    even, left_over = divmod(layers, stages)
    return tuple(even + (stage >= stages - left_over) for stage in range(stages))


# What a setting is that is not given.
_USUAL: dict[str, Callable[[Any], int]] = {
    "d_k": lambda settings: settings["d_model"] // settings["heads"],
    "d_ff": lambda settings: 4 * settings["d_model"],
    "attention_dropout": lambda settings: settings["dropout"],
    "decoder_layers": lambda settings: settings["layers"],
    "groups": lambda settings: settings["heads"],
    "query_width": lambda settings: settings["d_k"],
    "image_size": lambda settings: settings["context"],
    "channels": lambda settings: settings["vocabulary"],
}


def with_usual_sizes(settings: Settings) -> Settings:
    """The settings with the usual proportions where a size is None."""
    if "heads" in settings:
        settings = {"d_k": None, "d_ff": None, **settings}
        if not settings["d_k"] and settings["d_model"] % settings["heads"]:
            raise SettingError(
                f"d_model {settings['d_model']} is not divisible by {settings['heads']} heads",
                "change one of them",
            )
    settings = dict(settings)
    for key, usual in _USUAL.items():
        if key in settings and settings[key] is None:
            settings[key] = usual(settings)
    return settings


def translation_family(
    make: Callable[..., spec.Model], sizes: Mapping[str, Size], defaults: Settings
) -> PresetFamily:
    """The presets of an encoder–decoder whose languages have one vocabulary.

    37,000 tokens are the joint vocabulary of English and German in 2017.
    """

    def of_settings(settings: Settings) -> spec.Model:
        others = {key: settings[key] for key in settings.keys() - {"vocabulary", "context"}}
        vocabulary = settings["vocabulary"]
        return make(vocabulary, vocabulary, max_length=settings["context"], **others)

    return PresetFamily("encoder-decoder", of_settings, sizes, defaults, 37_000, 512, "base")


# ------------------------------------------------------------------ presets as configs

# What the configs of most encoders can say.
ENCODER_DEFAULTS: Settings = {
    "d_ff": None,  # 4 d_model
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation": "gelu",
}
NO_DROPOUT = {**ENCODER_DEFAULTS, "dropout": 0.0, "attention_dropout": 0.0}
IMAGE_DEFAULTS: Settings = {
    **NO_DROPOUT,
    "patch": 16,  # side, in pixels
    "image_size": None,  # side, in pixels; None: the context
    "channels": 3,
}
TEXT_KEYS = {"vocab_size": "vocabulary", "max_position_embeddings": "context"}
IMAGE_KEYS = {"image_size": "image_size", "patch_size": "patch", "num_channels": "channels"}


@dataclass(frozen=True)
class FromConfig:
    """The spec of settings by way of the family's config.json.

    So a preset is what `regard.load` would open, and is saved as a folder of that family.
    """

    to_spec: Callable[[Settings], Any]
    keys: Mapping[str, str]  # of the config, and which setting each of them is
    constants: Mapping[str, Any] = field(default_factory=dict)
    computed: Callable[[Any], Settings] = lambda settings: {}
    # The names of transformers for activations of ours.
    activations: Mapping[str, str] = field(default_factory=lambda: {"gelu_tanh": "gelu_new"})

    def __call__(self, settings: Settings) -> Any:
        values = dict(settings)
        if "activation" in values:
            values["activation"] = self.activations.get(values["activation"], values["activation"])
        # Where a config has no width of a head, it is changed in the spec.
        heads = values.get("heads", 1)
        is_changed = "d_k" not in self.keys.values() and heads * values["d_k"] != values["d_model"]
        if is_changed:
            values["heads"] = 1
        config = {key: values[name] for key, name in self.keys.items() if name in values}
        model = self.to_spec({**config, **self.constants, **self.computed(values)})
        return _with_heads(model, heads, values["d_k"]) if is_changed else model


def _with_heads(model: spec.Model, heads: int, width: int) -> spec.Model:
    stacks = {}
    for name, stack in model.stacks.items():
        attention = replace(stack.block.attention, heads=heads, d_k=width, d_v=width)
        stacks[name] = stack.with_blocks(
            attention=attention, cross=attention if stack.block.cross else None
        )
    return model.with_stacks(stacks)
