"""Feed-forward layers as key–value memories: what a unit fires on, and what it promotes."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.probe import Probe
from regard.lab.study.figure import Shown, Table, column, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    NO_TARGET,
    Batch,
    as_text,
    builtin_text,
    builtin_vocabulary,
    language_model,
    trained,
)
from regard.look.drawing import Axis, BarChart, Bars

LAYERS = 2
TRIGGERS = 8  # the texts on which a unit fires most
SHOWN = 6  # units in the table
KEYS = ("shared", "chance", "follows", "shuffled")


class FeedForwardUnits(Study):
    """Feed-forward layers are key–value memories: a unit's key (its row of the first matrix) fires
    on texts with a pattern in common, and its value (its column of the second) promotes the tokens
    that follow them.

    A language model of the built-in language (2 layers, ReLU). Of each unit: the {TRIGGERS}
    positions of held-out sentences on which it fires most, the share of them with the most frequent
    last word, and whether the token that its value promotes most (through the output matrix) is one
    that follows there; the same with the values of other units for comparison.
    """

    name = "feedforward_units"
    source = "Geva et al. 2021, Sections 3 and 4"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(400, 2500)
        sentences = effort.choose(300, 1000)
        return {"runs": effort.each_seed(lambda seed: _run(seed, steps, sentences))}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the triggers of a unit share their last word at least twice as often as
        positions chosen at random, and the promoted token follows at least twice as often as with
        shuffled values. Within limits if only one of the two is so."""
        runs = numbers["runs"]
        values = {key: mean(mean(run[key]) for run in runs) for key in KEYS}
        has_key = values["shared"] >= 2 * values["chance"]
        # Both may be 0 in a model that learned little, and 0 ≥ 2 · 0.
        has_value = values["follows"] >= 2 * values["shuffled"] and values["follows"] > 0
        reason = (
            f"The triggers of a unit share their last word in {values['shared']:.0%} (chance "
            f"{values['chance']:.0%}); the token that it promotes most follows one of them for "
            f"{values['follows']:.0%} of the units ({values['shuffled']:.0%} with shuffled values)."
        )
        return judge(has_key and has_value, has_key or has_value, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        layers = [f"layer {layer + 1}" for layer in range(LAYERS)]
        # [layers][seeds] of each key, in %
        shares = {
            key: [
                [100 * share for share in of_layer]
                for of_layer in zip(*column(numbers["runs"], key), strict=True)
            ]
            for key in KEYS
        }
        rows = [
            [layer, *map(mean_text, of_layer)]
            for layer, *of_layer in zip(layers, *shares.values(), strict=True)
        ]
        columns = ["", "same last word, %", "chance, %", "promoted follows, %", "shuffled, %"]
        units = numbers["runs"][0]["units"]
        return [
            *(
                BarChart(
                    title,
                    Axis("%", low=0.0, high=100.0),
                    layers,
                    [Bars(key, shares[key]) for key in keys],
                )
                for title, keys in (
                    ("Triggers with the same last word", KEYS[:2]),
                    ("Promoted token follows a trigger", KEYS[2:]),
                )
            ),
            Table("Units as keys and values", columns, rows),
            Table("Some units", ["unit", "fires most after", "promotes"], units),
        ]


def _run(seed: int, steps: int, sentences: int) -> dict[str, Any]:
    words = builtin_vocabulary()
    description = language_model(
        len(words), 64, d_model=32, d_ff=128, layers=LAYERS, activation="relu"
    )
    stream = builtin_text("train", 20_000, seed)
    model = trained(description, seed, stream, steps)
    batch = next(builtin_text("test", 1000, seed=0, rows=sentences))
    rng = random.Random(seed)
    layers = [
        _layer(model, layer, active, batch, rng)
        for layer, active in enumerate(unit_activations(model, batch))
    ]
    result: dict[str, Any] = {key: column(layers, key) for key in KEYS}
    return result | {"units": [unit for one in layers for unit in one["units"][: SHOWN // LAYERS]]}


@torch.no_grad()
def unit_activations(model: Any, batch: Batch) -> list[Tensor]:
    """The activations of all units of each layer at the positions with a target: [positions, F].

    f(x · Kᵀ), the coefficients of the memories (Geva et al. 2021, Section 2).
    """
    probe = Probe(["*.hidden"])
    model(batch.tokens, None, Context(probe))
    is_position = batch.targets != NO_TARGET
    return [hidden[is_position] for hidden in probe.tensors.values()]


@torch.no_grad()
def _layer(
    model: Any, layer: int, active: Tensor, batch: Batch, rng: random.Random
) -> dict[str, Any]:
    words = builtin_vocabulary()
    is_position = batch.targets != NO_TARGET
    last = batch.tokens[is_position].tolist()  # the word that a text ends with
    following = batch.targets[is_position].tolist()
    values = model.stack.blocks[layer].feedforward.outer.weight.mT  # [F, D]
    # The value vector read by the output matrix, as the logit lens reads the stream.
    promoted = model.head(values).argmax(-1).tolist()
    # Dead units have no triggers.
    units = [unit for unit in range(active.shape[1]) if bool(active[:, unit].max() > 0)]
    # A permutation, so that on the whole the same tokens are promoted.
    other = dict(zip(units, rng.sample(units, len(units)), strict=True))
    result: dict[str, list[Any]] = {key: [] for key in (*KEYS, "units")}
    for unit in units:
        # Positions stand for the text that ends there.
        triggers = active[:, unit].topk(TRIGGERS).indices.tolist()
        tokens = [last[i] for i in triggers]
        result["shared"].append(_most_frequent(tokens))
        # Eight positions at random share a word too, now and then.
        result["chance"].append(_most_frequent(rng.choices(last, k=TRIGGERS)))
        next_tokens = {following[i] for i in triggers}
        result["follows"].append(promoted[unit] in next_tokens)
        # What another unit of the layer promotes: frequent words follow anyway.
        result["shuffled"].append(promoted[other[unit]] in next_tokens)
        common = as_text(words, sorted(set(tokens), key=tokens.count, reverse=True)[:4])
        promotes = as_text(words, [promoted[unit]])
        result["units"].append([f"{layer + 1}.{unit}", common, promotes])
    return {key: values if key == "units" else mean(values) for key, values in result.items()}


def _most_frequent(tokens: list[int]) -> float:
    """The share of the most frequent token."""
    return max(tokens.count(token) for token in set(tokens)) / len(tokens)
