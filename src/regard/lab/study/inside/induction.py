"""Induction heads: QK and OV circuits, induction scores, and composition between heads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.probe import Probe
from regard.lab.study.figure import Shown, Table, cells, column, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import NO_TARGET, Batch, build_seeded, language_model, train
from regard.look.drawing import Axis, BarChart, Bars, HeatMap
from regard.look.head_circuits import (
    composition_scores,
    head_circuits,
    induction_scores,
    previous_token_scores,
)

VOCABULARY = 32
LAYERS = 2
HEADS = 4
PERIODS = (6, 16)  # a text repeats after a random number of tokens: no fixed distance helps
TEST_PERIOD = 12  # inside the range of training
NAMES = [f"{layer + 1}.{head}" for layer in range(LAYERS) for head in range(HEADS)]


class Induction(Study):
    """Models of two layers learn to continue repeated texts by induction heads: a head of the first
    layer writes which token came before, and a head of the second reads it through its keys
    (K-composition) and copies what followed.

    A language model of {LAYERS} layers with {HEADS} heads (ALiBi), trained on random texts that
    repeat after {PERIODS[0]} to {PERIODS[1]} tokens. Of each head: attention to the token before,
    the induction score (attention to the token after the last occurrence), and ‖W_OV
    W_QKᵀ‖/(‖W_OV‖‖W_QK‖) between the layers; loss in the second half of a text.
    """

    name = "induction"
    source = "Elhage et al. 2021; Olsson et al. 2022, Sections 1 and 2"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(450, 3000)
        return {"runs": effort.each_seed(lambda seed: _run(seed, steps))}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the best induction score of layer 2 is 0.4 or more and none of layer 1 reaches
        half of it, the best previous-token head is in layer 1 with 0.4 or more, and these two
        compose through keys more than the mean pair of heads. Within limits if the induction head
        is there, but not the composition."""
        best = [_best(run) for run in numbers["runs"]]
        induction = mean(column(best, "induction"))
        first_layer = mean(max(run["induction"][0]) for run in numbers["runs"])
        previous = mean(column(best, "previous"))
        ratio = mean(one["composition"] / one["mean_composition"] for one in best)
        reason = (
            f"The best induction score of layer 2 is {induction:.2f} (layer 1: {first_layer:.2f}), "
            f"the best previous-token head of layer 1 attends {previous:.2f} to the token before, "
            f"and their K-composition is {ratio:.2f} times the mean of all pairs."
        )
        # One layer cannot do it: it would need to know what came before a key.
        is_induction = induction >= 0.4 and first_layer < induction / 2
        return judge(previous >= 0.4 and ratio > 1, is_induction, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        # A score of each head, with all seeds: they have stored [layers][heads].
        scores = {
            name: list(zip(*[chain(*run[key]) for run in numbers["runs"]], strict=True))
            for name, key in (("token before", "previous"), ("induction", "induction"))
        }
        rows = [
            [name, *map(mean_text, of_head)]
            for name, *of_head in zip(NAMES, *scores.values(), strict=True)
        ]
        losses = cells(numbers["runs"], ["loss"])
        return [
            BarChart(
                "What heads attend to (layer.head)",
                Axis("mean attention", low=0.0, high=1.0),
                NAMES,
                [Bars(name, values) for name, values in scores.items()],
            ),
            HeatMap(
                "K-composition, layer 1 to layer 2",
                numbers["runs"][0]["composition"],
                [f"1.{head}" for head in range(HEADS)],
                [f"2.{head}" for head in range(HEADS)],
                x_label="reads by its keys",
                y_label="writes",
            ),
            Table("Heads", ["layer.head", "to the token before", "induction score"], rows),
            Table("Repeated half of a text", ["loss, nats"], [losses]),
        ]


def _best(run: dict[str, Any]) -> dict[str, float]:
    """The strongest previous-token and induction heads, and their composition."""
    # The two heads that the mechanism is made of, by what they do.
    writer = max(range(HEADS), key=lambda head: run["previous"][0][head])
    reader = max(range(HEADS), key=lambda head: run["induction"][1][head])
    return {
        "previous": run["previous"][0][writer],
        "induction": run["induction"][1][reader],
        "composition": run["composition"][writer][reader],
        "mean_composition": mean(chain(*run["composition"])),
    }


def repeated(period: int, rows: int, generator: torch.Generator) -> Tensor:
    """Random texts that are said twice: [rows, 2 · period]."""
    half = torch.randint(0, VOCABULARY, (rows, period), generator=generator)
    return torch.cat([half, half], dim=1)


def _batches(seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        period = int(torch.randint(PERIODS[0], PERIODS[1] + 1, (), generator=generator))
        tokens = repeated(period, 32, generator)
        targets = tokens[:, 1:].clone()
        targets[:, : period - 1] = NO_TARGET  # what comes first is random
        yield Batch(tokens[:, :-1], targets)


def _run(seed: int, steps: int) -> dict[str, Any]:
    description = language_model(
        VOCABULARY, 2 * PERIODS[1], layers=LAYERS, heads=HEADS, position="alibi"
    )
    model: Any = build_seeded(description, seed)
    losses = train(model, _batches(seed), steps)
    model.eval()
    tokens = repeated(TEST_PERIOD, 32, torch.Generator().manual_seed(0))
    names = [f"{layer}.self" for layer in range(LAYERS)]
    probe = Probe(names)
    with torch.no_grad():
        # Arguments of the kernels are recorded; weights follow from them.
        model.stack(model.tokens(tokens), context=Context(probe=probe))
    weights = [probe.weights(name) for name in names]  # [B, H, T, T] each
    # Of the weights alone, without a text
    scores = composition_scores(head_circuits(model.stack), "K")  # [L, H, L, H]
    return {
        "loss": mean(losses[-20:]),  # of the last updates: single batches vary
        "previous": [previous_token_scores(one).tolist() for one in weights],
        "induction": [induction_scores(one, TEST_PERIOD).tolist() for one in weights],
        # [H, H]: from the heads of layer 1 to those of layer 2
        "composition": scores[0, :, 1].tolist(),
    }
