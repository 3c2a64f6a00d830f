"""Attention as a soft look-up: the limits of temperature, by formula and in a trained model."""

from __future__ import annotations

import importlib.resources
import math
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import FullMask
from regard.core.mixers.scaled_dot_product_attention import explicit
from regard.data.generated import builtin
from regard.lab.study.evidence import judge_sentences
from regard.lab.study.figure import OVER_SEEDS, Shown, Table, column, line, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.look.drawing import Axis, Chart, Series
from regard.look.forward import forward
from regard.look.model_inputs import LabelledBatch, batch
from regard.models.loading import load

KEYS = 32
WIDTH = 16  # of keys and values
TEMPERATURES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
EXACT = 1e-3  # relative error of a look-up that counts as hard
LOOKED_UP = 90.0  # % of the tokens that a look-up predicts as soft attention does
NEEDED = 50.0  # % of the tokens that remain where attention finds nothing
FEWEST_TOKENS = 100


class SoftLookup(Study):
    """Attention is a soft dictionary look-up: softmax(q·k/τ) applied to the values becomes the hard
    look-up of the best key as τ → 0, and the mean of all values as τ → ∞; what a trained model
    reads by attention is such a look-up.

    {KEYS} random keys of length 1 in {WIDTH} dimensions with random values; the attention kernel
    with the scale 1/τ against the value of the best key, the mean of all values, and the bound
    (n−1)·exp(−gap/τ) on the weight of the others; once more with the best key stored twice, with
    two values, which is no look-up at any τ. Then the packaged translator of the built-in language
    on test sentences, the scores of its cross-attention divided by τ: the share of target tokens
    that it predicts as at τ = 1, with the true ones before.
    """

    name = "lookup"
    source = "Bahdanau et al. 2015, Section 3.1; Graves et al. 2014, Section 3.3.1 (key strength β)"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        queries = effort.choose(200, 5000)
        runs = effort.each_seed(lambda seed: _look_up(queries, torch.Generator().manual_seed(seed)))
        with importlib.resources.as_file(importlib.resources.files("regard")) as package:
            model = load(package / "studio" / "demo")
        sentences = list(islice(builtin.sentences("test"), effort.choose(50, 500)))
        texts = batch(model, [one.source for one in sentences], [one.target for one in sentences])
        return {
            "temperatures": list(TEMPERATURES),
            "runs": runs,
            "translator": predictions(model.model, texts),
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """The limits are so if the error is below {EXACT:g} of the values' norm at the lowest τ,
        the difference from the mean at the highest below 0.1, and no error exceeds the bound. The
        translator looks up if at the lowest τ {LOOKED_UP:.0f} % of its tokens are the same, and
        needs to if at the highest fewer than {NEEDED:.0f} % are. Fails without the limits; too
        small to say with fewer than {FEWEST_TOKENS} tokens, or if the translator is right in fewer
        than half of them."""
        runs = numbers["runs"]
        model = numbers["translator"]
        # Temperatures ascend: the first is the hard limit, the last the flat one.
        hard = mean(run["hard_error"][0] for run in runs)
        flat = mean(run["mean_error"][-1] for run in runs)
        above = max(run["above_bound"] for run in runs)
        lowest, *_, highest = numbers["temperatures"]
        reason = (
            f"At τ = {lowest:g} the result differs from the best key's value by {hard:.1e} of its "
            f"norm, at τ = {highest:g} from the mean of all values by {flat:.2g}; the bound is "
            f"exceeded by {above:.1e}. The translator predicts {model['same'][0]:.1f} % of its "
            f"{model['tokens']:,} tokens as before with hard look-ups, and {model['same'][-1]:.1f} "
            "% with means of all values."
        )
        # Of a model that cannot translate, nothing follows.
        can_tell = model["tokens"] >= FEWEST_TOKENS and model["right"] >= 50
        limits = "the limits"
        sentences = {
            limits: hard <= EXACT and flat <= 0.1 and above <= 0,
            "the translator looks up": model["same"][0] >= LOOKED_UP if can_tell else None,
            "and needs to": model["same"][-1] < NEEDED if can_tell else None,
        }
        return judge_sentences(sentences, reason, main=limits)

    def show(self, numbers: Numbers) -> list[Shown]:
        runs = numbers["runs"]
        temperatures = numbers["temperatures"]
        x = Axis("temperature τ", log=True)
        equal = [1 / KEYS] * len(temperatures)
        titles = {
            "weight": "weight of the best",
            "hard_error": "from its value",
            "mean_error": "from the mean",
            "tied_error": "stored twice",
        }
        by_temperature = [
            [mean_text(values) for values in zip(*column(runs, key), strict=True)] for key in titles
        ]
        same = numbers["translator"]["same"]
        return [
            Chart(
                "Distance from the hard look-up and from the mean",
                x,
                Axis("relative error", log=True, low=1e-8),
                [
                    line("from the best key's value", temperatures, runs, "hard_error"),
                    line("from the mean of all", temperatures, runs, "mean_error"),
                    line("best key stored twice", temperatures, runs, "tied_error"),
                ],
            ),
            Chart(
                "Weight of the best key",
                x,
                Axis("weight", low=0.0, high=1.0),
                [
                    line("one best key", temperatures, runs, "weight"),
                    Series("equal weights", temperatures, equal, style="dashed"),
                ],
            ),
            Chart(
                "Tokens that a translator predicts as at τ = 1",
                x,
                Axis("%", low=0.0, high=100.0),
                [Series("cross-attention divided by τ", temperatures, same)],
            ),
            Table(
                OVER_SEEDS,
                ["τ", *titles.values(), "translator: same tokens, %"],
                [
                    [f"{temperature:g}", *row, f"{share:.1f}"]
                    for temperature, *row, share in zip(
                        temperatures, *by_temperature, same, strict=True
                    )
                ],
            ),
        ]


# ------------------------------------------------------------------ the formula


def _look_up(queries: int, generator: torch.Generator) -> dict[str, object]:
    """All curves of one set of keys and values."""
    keys = torch.nn.functional.normalize(_normal(generator, KEYS, WIDTH), dim=-1)
    values = _normal(generator, KEYS, WIDTH)
    q = _normal(generator, queries, WIDTH)
    scores = q @ keys.T  # [queries, KEYS]
    best = scores.argmax(-1)
    # The gap between the two best scores decides how low τ must be.
    top = scores.topk(2).values
    gap = top[:, 0] - top[:, 1]
    # What a dictionary would return.
    hard = values[best]
    # The best key once more at the end, with another value.
    twice = torch.cat([keys.expand(queries, -1, -1), keys[best][:, None]], dim=1)
    other = _normal(generator, queries, 1, WIDTH)
    both = torch.cat([values.expand(queries, -1, -1), other], dim=1)
    curves: dict[str, list[float]] = {
        "hard_error": [], "mean_error": [], "tied_error": [], "weight": [],
    }  # fmt: skip
    above = 0.0
    for temperature in TEMPERATURES:
        soft = _attend(q[None], keys[None], values[None], temperature)[0]
        tied = _attend(q[:, None], twice, both, temperature)[:, 0]
        weight = (scores / temperature).softmax(-1).gather(1, best[:, None])[:, 0]
        # The weight of all others is at most (n − 1) · exp(−gap/τ).
        bound = (KEYS - 1) * (-gap / temperature).exp()
        above = max(above, float((1 - weight - bound).max()) - 1e-12)
        # Either of the two values would be a look-up.
        nearest = torch.minimum((tied - hard).norm(dim=-1), (tied - other[:, 0]).norm(dim=-1))
        curves["hard_error"].append(_relative((soft - hard).norm(dim=-1)))
        curves["mean_error"].append(_relative((soft - values.mean(0)).norm(dim=-1)))
        curves["tied_error"].append(_relative(nearest))
        curves["weight"].append(float(weight.mean()))
    return {**curves, "above_bound": max(0.0, above)}


def _attend(q: Tensor, k: Tensor, v: Tensor, temperature: float) -> Tensor:
    """The attention kernel with one head: [B, T, WIDTH]."""
    mask = AttentionMask(FullMask(), torch.arange(q.shape[1]), torch.arange(k.shape[1]))
    return explicit(q[:, None], k[:, None], v[:, None], mask, 1 / temperature, 0.0)[:, 0]


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    # In float64, so that the limits are those of the formula and not of the numbers.
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _relative(distance: Tensor) -> float:
    """The median distance, relative to the norm of values."""
    return max(float(distance.median()) / math.sqrt(WIDTH), 1e-16)


# ------------------------------------------------------------------ the trained model


@torch.no_grad()
def predictions(model: Any, texts: LabelledBatch) -> dict[str, Any]:
    """What a translator predicts at each temperature of its cross-attention, in %."""
    mixers = [block.cross.mixer for block in model.decoder.blocks]
    is_token = texts.labels >= 0

    def predict(temperature: float) -> Tensor:
        scales = [mixer.scale for mixer in mixers]
        for mixer, scale in zip(mixers, scales, strict=True):
            mixer.scale = scale / temperature
        predicted = forward(model, texts.named).argmax(-1)[is_token]
        for mixer, scale in zip(mixers, scales, strict=True):
            mixer.scale = scale
        return predicted

    as_trained = predict(1.0)
    return {
        "tokens": len(as_trained),
        "right": 100 * float((as_trained == texts.labels[is_token]).float().mean()),
        "same": [100 * float((predict(t) == as_trained).float().mean()) for t in TEMPERATURES],
    }
