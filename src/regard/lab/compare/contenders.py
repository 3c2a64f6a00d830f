"""The models of a comparison: how they are named, and which widths give all equal size."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as powers
from typing import Any

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.families.presets import ALIASES, PRESET_FAMILIES
from regard.system.errors import RegardError, SettingError
from regard.training.recipe import loading
from regard.training.recipe.consistency import STARTING_POINT, parse
from regard.training.recipe.loading import LINEAR_FORECASTERS
from regard.training.recipe.schema import KEYS, Recipe

SpecOf = Callable[[Recipe], spec.Model]
TOLERANCE = 0.03  # how far from the wanted number of parameters a model may be, relatively
# Settings of the recipe's model that other architectures share with it.
_SHARED_SETTINGS = (
    "preset",
    "d_model",
    "d_ff",
    "heads",
    "layers",
    "decoder_layers",
    "dropout",
    "attention_dropout",
    "feedforward_dropout",
    # What is read and forecast is that of the data.
    "image_size",
    "horizon",
    "forecast",
    *STARTING_POINT,
)
# Settings that the budget decides for all models.
_SET_BY_BUDGET = ("steps", "epochs", "minutes")


@dataclass(frozen=True)
class Contender:
    """A model of a comparison, as the user writes it.

    An architecture, optionally with its size: `gpt2`, `llama:tiny`, `bahdanau`. A word that is not
    a size is the attention: `transformer:window:16`, `transformer:linformer:8+softmax` (that of
    encoder and decoder). Settings of its own follow: `gru@learning_rate=0.001@max_grad_norm=1`,
    `gpt2@position=rope`. A file is a spec, which is compared as it is: `mine.json`.
    """

    word: str

    @property
    def changes(self) -> dict[str, Any]:
        """The settings of the recipe that the word stands for, as text."""
        named, *settings = self.word.split("@")  # transformer:linformer:8+softmax@max_grad_norm=1
        model, _, rest = named.partition(":")
        changes: dict[str, Any] = {"model": model}
        if named.endswith((".json", ".toml")):
            changes = {"spec": named}
        elif rest in _sizes(model):
            changes["model"] = named
        elif rest:
            attentions = zip(("attention", "decoder_attention"), rest.split("+", 1), strict=False)
            changes |= {key: word for key, word in attentions if word}
        for setting in settings:
            key, _, value = setting.partition("=")
            if key not in KEYS or not value:
                raise SettingError(
                    f"{self.word!r}: {setting!r} is not a setting",
                    "use the form gru@learning_rate=0.001",
                )
            if key in _SET_BY_BUDGET:
                raise SettingError(
                    f"{self.word!r}: {key} is the same for all models of a comparison",
                    f"remove {key}, and use --steps N",
                )
            changes[key] = value
        return changes

    @property
    def is_spec(self) -> bool:
        """Whether it is a file, with a size of its own."""
        return "spec" in self.changes

    @property
    def folder(self) -> str:
        """The name of the folder that its runs are kept in."""
        return re.sub(r"[^A-Za-z0-9.]+", "_", self.word)

    def recipe(self, base: Recipe, more_changes: Mapping[str, Any] | None = None) -> Recipe:
        """The common recipe with this model in it."""
        values: dict[str, Any] = base.model_dump()
        values["model"] = self._model_settings(base)
        for key, value in {**self.changes, **(more_changes or {})}.items():
            values[KEYS[key]][key] = value
        return parse(values)

    def takes(self, key: str, base: Recipe) -> bool:
        """Whether a setting of the recipe's model is one of this model too."""
        # A spec decides how large all of them are.
        return key in ("model", "spec") or key in self._model_settings(base)

    def _model_settings(self, base: Recipe) -> dict[str, Any]:
        """The settings of the recipe's model that apply to this one."""
        if self.is_spec:
            return base.model.model_dump(include=set(STARTING_POINT))
        name = self.changes["model"].partition(":")[0]
        settings = loading.applicable_settings(base.model.model_dump(exclude={"spec"}), name)
        if name == base.model_name:
            return settings
        if settings.get("preset") not in _sizes(name):
            settings["preset"] = None
        # Positions, activation and the like are what makes the other architecture another one.
        shared = {*_SHARED_SETTINGS}
        if base.objective_settings.data == "images":
            shared.add("patch")  # of images all models have some; of series one architecture
        return {key: value for key, value in settings.items() if key in shared}

    def sized(self, base: Recipe, parameters: int, spec_of: SpecOf) -> Recipe:
        """Its recipe, with the widths that come closest to this number of parameters."""
        recipe, nearest = self._nearest(base, parameters, spec_of)
        self._check_size(nearest, parameters)
        return recipe

    def require_possible(self, base: Recipe, parameters: int, spec_of: SpecOf) -> None:
        """Refuses a number of parameters that is below that of the smallest widths."""
        _, smallest = self._nearest(base, 1, spec_of)
        self._check_size(max(smallest, parameters), parameters)

    def _nearest(self, base: Recipe, parameters: int, spec_of: SpecOf) -> tuple[Recipe, int]:
        """Its recipe of about this size, and its parameters; 0 where no width can be chosen."""

        def count(**widths: int) -> int:
            return parameter_count(spec_of(self.recipe(base, widths)))

        recipe = self.recipe(base)
        model = spec_of(recipe)
        if recipe.model_name in LINEAR_FORECASTERS:
            return recipe, 0  # look-back times horizon
        if self.is_spec or len(model.widths) > 1 or not _has_width(str(recipe.model_name)):
            # Widths of towers and of stages belong together; such models are compared as they are,
            # as a spec's are.
            widths = {}
        elif model.stacks:
            widths = _transformer_widths(model, parameters, count)
        else:
            # Even, because each direction of a bidirectional encoder has half of it.
            widths = {"d_model": 2 * _closest(lambda n: count(d_model=2 * n), parameters)}
        return self.recipe(base, widths), count(**widths)

    def _check_size(self, nearest: int, parameters: int) -> None:
        if nearest and abs(nearest / parameters - 1) > TOLERANCE:
            closest = "its spec has" if self.is_spec else "the closest size is"
            raise SettingError(
                f"{self.word} cannot have about {parameters:,} parameters: {closest} {nearest:,}",
                "choose another --parameters",
            )


def parse_contenders(words: str) -> list[Contender]:
    """The models of a list that is separated by commas."""
    contenders = [Contender(word.strip()) for word in words.split(",") if word.strip()]
    if not contenders:
        raise SettingError(
            "the list of models is empty", "set it: --models transformer,bahdanau,rnn"
        )
    folders: set[str] = set()
    for contender in contenders:
        if contender.folder in folders:
            raise SettingError(f"{contender.word} is listed twice", "list each model once")
        folders.add(contender.folder)
    return contenders


def check_settings_are_read(
    contenders: Sequence[Contender], base: Recipe, changes: Collection[str]
) -> None:
    """Refuses settings of the model that are given for all, and that no contender takes."""
    for key in changes:
        if KEYS.get(key) == "model" and not any(one.takes(key, base) for one in contenders):
            flag = "--" + key.replace("_", "-")
            raise SettingError(
                f"{flag} has no effect on {', '.join(one.word for one in contenders)}",
                f"remove it, or set it for a model that has it: NAME@{key}=VALUE",
            )


def _sizes(name: str) -> Collection[str]:
    """The named sizes of an architecture; none where it is unknown."""
    name = ALIASES.get(name, name)
    return PRESET_FAMILIES[name].sizes if name in PRESET_FAMILIES else ()


def _has_width(name: str) -> bool:
    """Whether an architecture has one width, which can be chosen."""
    name = ALIASES.get(name, name)
    return name not in PRESET_FAMILIES or "d_model" in PRESET_FAMILIES[name].options


# ------------------------------------------------------------------ equal sizes


def _transformer_widths(
    model: spec.Model, parameters: int, count: Callable[..., int]
) -> dict[str, int]:
    """d_model, with d_ff in the same proportion to it; then d_ff for what is still missing."""
    if abs(count() / parameters - 1) <= TOLERANCE:
        d_model = model.d_model  # the recipe's own width, where only the rest differs
    else:
        block = next(iter(model.stacks.values())).block
        ratio = block.feedforward.d_ff / model.d_model

        def count_scaled(multiple: int) -> int:
            d_model = multiple * step
            return count(d_model=d_model, d_ff=round(ratio * d_model))

        step = _width_step(block.attention.heads, count)
        d_model = step * _closest(count_scaled, parameters)
    d_ff = _closest(lambda n: count(d_model=d_model, d_ff=n), parameters)
    return {"d_model": d_model, "d_ff": d_ff}


def _width_step(heads: int, count: Callable[..., int]) -> int:
    """What d_model must be a multiple of."""
    try:
        count(d_model=3 * heads)  # heads of an odd width
    except RegardError:
        return 2 * heads  # rotary positions turn pairs of dimensions
    return heads


def _closest(count: Callable[[int], int], wanted: int) -> int:
    """The size whose count is nearest to what is wanted, by bisection: counts grow with it."""
    bound = next(bound for bound in (2**power for power in powers(1)) if count(bound) >= wanted)
    high = bisect_left(range(bound), wanted, lo=max(2, bound // 2), key=count)
    return min((high - 1, high), key=lambda size: abs(count(size) - wanted))
