"""Who takes part in a comparison: a word for each model, and sizes that give all of them as many parameters. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regard import spec
from regard.errors import SettingError
from regard.parameter_count import parameter_count
from regard.training.recipe import schema as recipes
from regard.training.recipe.schema import KEYS, Recipe

Describe = Callable[[Recipe], spec.Model]
CLOSE = 0.03  # how far from the others' parameters a model may be


@dataclass(frozen=True)
class Contender:
    """`transformer`, `transformer:window:16`, `transformer:linformer:8+softmax` (encoder and decoder), `bahdanau`; each may
    have settings of its own: `gru@learning_rate=0.001@clip=1`."""

    word: str

    @property
    def changes(self) -> dict[str, Any]:
        """The settings of the recipe that the word stands for, as text."""
        named, *own = self.word.split("@")
        model, _, attention = named.partition(":")
        found: dict[str, Any] = {"model": model}
        if attention:
            found["attention"], _, decoder = attention.partition("+")
            found |= {"decoder_attention": decoder} if decoder else {}
        for setting in own:
            key, _, value = setting.partition("=")
            if key not in KEYS or not value:
                raise SettingError(
                    f"{self.word!r}: {setting!r} is no setting",
                    "write it like gru@learning_rate=0.001",
                )
            found[key] = value
        return found

    @property
    def folder(self) -> str:
        return re.sub(r"[^A-Za-z0-9.]+", "_", self.word)

    def recipe(self, base: Recipe, changes: Mapping[str, Any] | None = None) -> Recipe:
        """The common recipe with this entrant's model in it."""
        own = self.changes | dict(changes or {})
        values: dict[str, Any] = base.model_dump()
        values["model"] = recipes.fitting(values["model"], own["model"])
        for key, value in own.items():
            values[KEYS[key]][key] = value
        return recipes.parse(values)

    def sized(self, base: Recipe, parameters: int, describe: Describe) -> Recipe:
        """The same with widths that come closest to so many parameters, by the formula of `size`."""
        own = self.recipe(base)
        known = describe(own)
        assert not isinstance(known, spec.DualEncoder)

        def count(**changes: int) -> int:
            return parameter_count(describe(self.recipe(base, changes)))

        if isinstance(known, spec.EncoderDecoder):
            block = known.encoder.block
            ratio, step = block.feedforward.d_ff / known.d_model, block.attention.heads
            width = (
                _closest(
                    lambda n: count(d_model=n * step, d_ff=round(ratio * n * step)), parameters
                )
                * step
            )
            if abs(count() / parameters - 1) <= CLOSE:
                width = known.d_model  # the recipe's own width, where only the rest differs
            chosen = {
                "d_model": width,
                "d_ff": _closest(lambda n: count(d_model=width, d_ff=n), parameters),
            }
        else:
            chosen = {"d_model": 2 * _closest(lambda n: count(d_model=2 * n), parameters)}
        found = count(**chosen)
        if abs(found / parameters - 1) > CLOSE:
            raise SettingError(
                f"{self.word} cannot have about {parameters:,} parameters: the nearest is {found:,}",
                "choose another --parameters",
            )
        return self.recipe(base, chosen)


def entrants(words: str) -> list[Contender]:
    found = [Contender(word.strip()) for word in words.split(",") if word.strip()]
    if not found:
        raise SettingError(
            "there is nothing to compare", "name models: --models transformer,bahdanau,rnn"
        )
    twice = next((e.word for e in found if [o.folder for o in found].count(e.folder) > 1), None)
    if twice:
        raise SettingError(f"{twice} takes part twice", "name each model once")
    return found


def _closest(count: Callable[[int], int], wanted: int) -> int:
    """The number whose count, which grows with it, is nearest to what is wanted."""
    low, high = 1, 2
    while count(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
    return min((low, high), key=lambda n: abs(count(n) - wanted))


@dataclass(frozen=True)
class Budget:
    """What every model may spend: `steps`, `flops` or `seconds` of training."""

    of: str
    amount: float

    def steps(self, flops: Callable[[], float], seconds: Callable[[], float]) -> int:
        """How many updates it buys, given the price of one."""
        price = {"steps": lambda: 1.0, "flops": flops, "seconds": seconds}[self.of]()
        return max(1, int(self.amount / price))


def budget(text: str) -> Budget:
    of, _, amount = text.partition(":")
    try:
        found = Budget(of, float(amount))
    except ValueError:
        found = Budget(of, 0.0)
    if of not in ("steps", "flops", "seconds") or found.amount <= 0:
        raise SettingError(f"{text!r} is no budget", "write steps:2000, flops:1e15 or seconds:600")
    return found
