"""The models of a comparison: how they are named, and which widths give all equal size."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from regard import spec
from regard.errors import SettingError
from regard.options import parse_option
from regard.parameter_count import parameter_count
from regard.training.recipe import schema as recipes
from regard.training.recipe.schema import KEYS, Recipe

SpecOf = Callable[[Recipe], spec.Model]
TOLERANCE = 0.03  # how far from the wanted number of parameters a model may be, relatively


@dataclass(frozen=True)
class Contender:
    """A model that takes part, as its user writes it.

    `transformer`, `transformer:window:16`, `transformer:linformer:8+softmax` (the attention of
    encoder and decoder), `bahdanau`. Settings of its own follow: `gru@learning_rate=0.001@clip=1`.
    """

    word: str

    @property
    def changes(self) -> dict[str, Any]:
        """The settings of the recipe that the word stands for, as text."""
        named, *settings = self.word.split("@")  # transformer:linformer:8+softmax@clip=1
        model, _, attention = named.partition(":")
        changes: dict[str, Any] = {"model": model}
        if attention:
            encoder_attention, _, decoder_attention = attention.partition("+")
            changes["attention"] = encoder_attention
            if decoder_attention:
                changes["decoder_attention"] = decoder_attention
        for setting in settings:
            key, _, value = setting.partition("=")
            if key not in KEYS or not value:
                raise SettingError(
                    f"{self.word!r}: {setting!r} is no setting",
                    "write it like gru@learning_rate=0.001",
                )
            changes[key] = value
        return changes

    @property
    def folder(self) -> str:
        """The name of the folder that its runs are kept in."""
        return re.sub(r"[^A-Za-z0-9.]+", "_", self.word)

    def recipe(self, base: Recipe, more_changes: Mapping[str, Any] | None = None) -> Recipe:
        """The common recipe with this model in it."""
        changes = self.changes | dict(more_changes or {})
        values: dict[str, Any] = base.model_dump()
        # Settings that this kind of model does not have are left out.
        values["model"] = recipes.applicable_settings(values["model"], changes["model"])
        for key, value in changes.items():
            section = KEYS[key]
            values[section][key] = value
        return recipes.parse(values)

    def sized(self, base: Recipe, parameters: int, spec_of: SpecOf) -> Recipe:
        """Its recipe, with the widths that come closest to this number of parameters."""

        def count(**widths: int) -> int:
            return parameter_count(spec_of(self.recipe(base, widths)))

        model = spec_of(self.recipe(base))
        assert not isinstance(model, spec.DualEncoder)
        if isinstance(model, spec.EncoderDecoder):
            widths = _transformer_widths(model, parameters, count)
        else:
            # Even, because each direction of a bidirectional encoder has half of it.
            half = _closest(lambda n: count(d_model=2 * n), parameters)
            widths = {"d_model": 2 * half}
        nearest = count(**widths)
        if abs(nearest / parameters - 1) > TOLERANCE:
            raise SettingError(
                f"{self.word} cannot have about {parameters:,} parameters: "
                f"the nearest is {nearest:,}",
                "choose another --parameters",
            )
        return self.recipe(base, widths)


def parse_contenders(words: str) -> list[Contender]:
    """The models of a list that is separated by commas."""
    contenders = [Contender(word.strip()) for word in words.split(",") if word.strip()]
    if not contenders:
        raise SettingError(
            "there is nothing to compare", "name models: --models transformer,bahdanau,rnn"
        )
    folders = [contender.folder for contender in contenders]
    for contender in contenders:
        if folders.count(contender.folder) > 1:
            raise SettingError(f"{contender.word} takes part twice", "name each model once")
    return contenders


# ------------------------------------------------------------------ equal sizes


def _transformer_widths(
    model: spec.EncoderDecoder, parameters: int, count: Callable[..., int]
) -> dict[str, int]:
    """d_model, with d_ff in the same proportion to it; then d_ff for what is still missing."""
    if abs(count() / parameters - 1) <= TOLERANCE:
        d_model = model.d_model  # the recipe's own width, where only the rest differs
    else:
        block = model.encoder.block
        ratio = block.feedforward.d_ff / model.d_model
        heads = block.attention.heads  # which must divide d_model

        def count_scaled(multiple: int) -> int:
            d_model = multiple * heads
            return count(d_model=d_model, d_ff=round(ratio * d_model))

        d_model = heads * _closest(count_scaled, parameters)
    d_ff = _closest(lambda n: count(d_model=d_model, d_ff=n), parameters)
    return {"d_model": d_model, "d_ff": d_ff}


def _closest(count: Callable[[int], int], wanted: int) -> int:
    """The size whose count is nearest to what is wanted, by bisection: counts grow with it."""
    low = 1
    high = 2
    while count(high) < wanted:  # first an upper bound
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if count(middle) < wanted:
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda size: abs(count(size) - wanted))


# ------------------------------------------------------------------ budgets


@dataclass(frozen=True)
class Budget:
    """What the training of every model may cost: `of` is steps, flops or seconds."""

    of: str
    amount: float

    def steps(self, flops_per_step: float, seconds_per_step: float) -> int:
        """The number of optimizer steps that the budget allows, at least one."""
        prices = {"steps": 1.0, "flops": flops_per_step, "seconds": seconds_per_step}
        return max(1, int(self.amount / prices[self.of]))


def parse_budget(text: str) -> Budget:
    """A budget as its user writes it: steps:2000."""
    usage = "write steps:2000, flops:1e15 or seconds:600"
    constructors = {unit: partial(Budget, unit) for unit in ("steps", "flops", "seconds")}
    budget = parse_option(text, constructors, subject="budget", usage=usage, convert=float)
    if not budget.amount > 0:
        raise SettingError(f"{text!r} is no budget", usage)
    return budget
