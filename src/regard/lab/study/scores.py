"""Scores of attention: divided by √d_k, additive or dot products; attention as a soft look-up."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import FullMask
from regard.core.mixers.scaled_dot_product_attention import explicit
from regard.data.generated import builtin
from regard.data.generated.algorithmic_tasks import Reversing
from regard.lab.measure.instruments import fastest
from regard.lab.study.evidence import judge_sentences
from regard.lab.study.figure import (
    Shown,
    bar_chart,
    chart,
    chart_and_table,
    column,
    columns,
    mean,
    means,
    named_columns,
    table,
    transposed,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    TaskBatches,
    build_seeded,
    compare,
    language_model,
    packaged_translator,
    seeded,
    with_attention,
)
from regard.look.drawing import Figure
from regard.look.forward import forward
from regard.look.model_inputs import LabelledBatch, batch

KEYS = 64  # of each query
SETS = 20  # of keys, so that no single one decides


class ScoreScaling(Study):
    """For large d_k the dot products grow large in magnitude, pushing the softmax into regions
    where it has extremely small gradients; scaling by 1/√d_k counteracts this.

    Queries and {KEYS} keys with independent standard normal components, for d_k from 4 to 1,024:
    the variance of q·k, the entropy of the softmax over the keys (as a share of the entropy of
    equal weights), and the Frobenius norm of its Jacobian ∂weights/∂scores for the median query;
    with the scale 1/√d_k and without.
    """

    source = "Vaswani et al. 2017, Section 3.2.1 and its footnote 4"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        # The paper has 64; larger ones show where the scale would be missed.
        widths = [4, 16, 64, 256, 512, 1024]
        queries = effort.choose(1000, 10_000)

        def measure(seed: int) -> list[Numbers]:
            with seeded(seed):
                return [_at_width(width, queries) for width in widths]

        return {"widths": widths, "runs": effort.each_seed(measure)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if Var(q·k)/d_k stays within 10 % of 1 for all d_k, the Jacobian of the unscaled
        softmax shrinks from the smallest to the largest d_k to less than a tenth, and that of the
        scaled one changes by less than a quarter. Within limits if only the last two hold."""
        variance, unscaled, scaled = (
            means(_by_seed(numbers, key)) for key in ("variance", "jacobian", "scaled_jacobian")
        )
        widths = numbers["widths"]
        # Footnote 4: a sum of d_k products with variance 1 has variance d_k.
        ratios = [v / width for v, width in zip(variance, widths, strict=True)]
        is_linear = all(abs(ratio - 1) < 0.1 for ratio in ratios)
        vanishes = unscaled[-1] < unscaled[0] / 10
        stays = abs(scaled[-1] / scaled[0] - 1) < 0.25
        return judge(
            is_linear,
            vanishes and stays,
            f"From d_k = {widths[0]} to {widths[-1]}, Var(q·k)/d_k is {min(ratios):.3f} to "
            f"{max(ratios):.3f}; the Jacobian's median norm goes from {unscaled[0]:.3g} to "
            f"{unscaled[-1]:.2g} without the scale, and from {scaled[0]:.3g} to {scaled[-1]:.3g} "
            "with it.",
        )

    def show(self, numbers: Numbers) -> Shown:
        widths = numbers["widths"]
        columns = {
            "variance": "Var(q·k)",
            "entropy": "entropy",
            "scaled_entropy": "… scaled",
            "jacobian": "Jacobian",
            "scaled_jacobian": "… scaled",
        }
        by_width = zip(widths, transposed(numbers["runs"]), strict=True)

        def with_and_without(title: str, unit: str, key: str, **axis: Any) -> Figure:
            curves = {
                "unscaled": _by_seed(numbers, key),
                "scaled by 1/√d_k": _by_seed(numbers, f"scaled_{key}"),
            }
            return chart(title, "d_k", unit, widths, curves, log_x=True, **axis)

        return [
            chart(
                "Variance of the scores q·k",
                "d_k",
                "variance",
                widths,
                {"unscaled": _by_seed(numbers, "variance")},
                log_x=True,
                # What independent components of variance 1 give.
                theory={"d_k": widths},
                log=True,
            ),
            with_and_without("Entropy of the weights", "share of log(keys)", "entropy", high=1.0),
            with_and_without("Gradient of the softmax", "‖∂weights/∂scores‖", "jacobian", log=True),
            table("d_k", columns, dict(by_width)),
        ]


def _by_seed(numbers: Numbers, key: str) -> list[list[float]]:
    """A measurement over d_k: [seeds][widths]."""
    return [column(run, key) for run in numbers["runs"]]


def _at_width(width: int, queries: int) -> Numbers:
    """The measurements at one d_k."""
    # [SETS, queries / SETS, d_k] and [SETS, KEYS, d_k]
    q = torch.randn(SETS, queries // SETS, width)
    k = torch.randn(SETS, KEYS, width)
    scores = q @ k.mT  # [SETS, queries / SETS, KEYS]
    measured = {"variance": float(scores.var())}
    # Both softmaxes see the same scores.
    for name, scale in (("", 1.0), ("scaled_", width**-0.5)):
        weights = (scale * scores).softmax(-1)
        # As a share of the entropy of equal weights
        entropy = torch.special.entr(weights).sum(-1).mean() / math.log(KEYS)
        measured[f"{name}entropy"] = float(entropy)
        measured[f"{name}jacobian"] = _jacobian_norm(weights)
    return measured


def _jacobian_norm(weights: Tensor) -> float:
    """The median Frobenius norm of diag(p) − p pᵀ, the Jacobian of the softmax."""
    squares = weights.square()
    # Σ_i (p_i − p_i²)² on the diagonal, Σ_{i≠j} p_i² p_j² beside it
    diagonal = (weights - squares).square().sum(-1)
    off_diagonal = squares.sum(-1).square() - squares.square().sum(-1)
    return float((diagonal + off_diagonal).sqrt().median())


# ------------------------------------------------------------------ additive and dot product

# The order of figures and tables.
SCORES: dict[str, dict[str, Any]] = {
    "additive": {"mixer": spec.AdditiveAttention()},
    "scaled dot product": {},  # 1/√d_k is the default.
    "dot product": {"scale": 1.0},
}
WIDTHS = (4, 64)  # d_k, small and large
LENGTHS = (32, 64, 128, 256)  # tokens, of the timing
NEAR = 0.1  # relative difference of losses that counts as similar


class ScoreFunction(Study):
    """Additive and dot-product attention perform similarly for small d_k; for large d_k additive
    attention outperforms the dot product without scaling; the dot product is much faster.

    Language models of two layers that learn to reverse up to four letters, with d_k = {WIDTHS[0]}
    and {WIDTHS[1]} and three scores: w·tanh(q + k), q·k/√d_k and q·k; loss on test inputs. Then the
    time of one forward pass over 32 to 256 tokens.
    """

    source = "Vaswani et al. 2017, Section 3.2.1; Britz et al. 2017, Section 4.5"
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        task = TaskBatches(Reversing(max_length=4)).learned(effort.choose(4, 16))
        steps = effort.choose(120, 400)
        # One head, so that d_k can be chosen freely.
        model = language_model(task.vocabulary, max(LENGTHS), heads=1)
        variants = {
            f"{score}, d_k = {width}": with_attention(model, d_k=width, **change)
            for width in WIDTHS
            for score, change in SCORES.items()
        }
        # The wide heads, where the score is most of the cost.
        times = {score: _times(variants[f"{score}, d_k = {WIDTHS[1]}"]) for score in SCORES}
        return {"times": times, "lengths": LENGTHS, **compare(variants, task, steps, effort)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Three statements: for small d_k additive and unscaled dot product differ by less than 10
        % of the loss or 0.02; for large d_k the unscaled dot product is worse than additive by more
        than that; at the longest input the dot product is more than 1.5 times as fast. Holds if all
        are true, within limits if some are."""
        reason = ""
        rises = []
        for width in WIDTHS:
            additive, scaled, unscaled = (mean(_losses(numbers, one, width)) for one in SCORES)
            reason += (
                f"d_k = {width}: loss {additive:.3f} additive, {scaled:.3f} scaled, "
                f"{unscaled:.3f} unscaled. "
            )
            # In units of what counts as a difference
            rises.append((unscaled - additive) / max(NEAR * additive, 0.02))
        speed = numbers["times"]["additive"][-1] / numbers["times"]["scaled dot product"][-1]
        sentences = {
            "similar for small d_k": abs(rises[0]) <= 1,
            "unscaled worse for large d_k": rises[1] > 1,
            "dot product faster": speed > 1.5,
        }
        tokens = numbers["lengths"][-1]
        reason += f"The dot product is {speed:.1f} times as fast at {tokens} tokens."
        return judge_sentences(sentences, reason)

    def show(self, numbers: Numbers) -> Shown:
        lengths = numbers["lengths"]
        return [
            bar_chart(
                "Loss on reversing letters",
                "test loss, nats a token",
                [f"d_k = {width}" for width in WIDTHS],
                {one: [_losses(numbers, one, width) for width in WIDTHS] for one in SCORES},
            ),
            chart(
                "Time of a forward pass",
                "tokens",
                "ms",
                lengths,
                {score: [times] for score, times in numbers["times"].items()},
                log_x=True,
                log=True,
            ),
            table(
                "score",
                {"loss": "loss", "exact": "without a mistake, %"},
                numbers["runs"],
                f"After {numbers['steps']} steps",
            ),
        ]


@torch.no_grad()
def _times(model_spec: spec.Model) -> list[float]:
    """Milliseconds of a forward pass at each length: the least of a few."""
    model: Any = build_seeded(model_spec, 1).eval()
    # The time does not depend on which tokens they are.
    batches = [torch.zeros(4, length, dtype=torch.long) for length in LENGTHS]
    return [1000 * fastest(partial(model, tokens), 5) for tokens in batches]


def _losses(numbers: Numbers, score: str, width: int) -> list[float]:
    return column(numbers["runs"][f"{score}, d_k = {width}"], "loss")


STORED_KEYS = 32
STORED_WIDTH = 16  # of keys and values
TEMPERATURES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
EXACT = 1e-3  # relative error of a look-up that counts as hard
LOOKED_UP = 90.0  # % of the tokens that a look-up predicts as soft attention does
NEEDED = 50.0  # % of the tokens that remain where attention finds nothing
FEWEST_TOKENS = 100


class SoftLookup(Study):
    """Attention is a soft dictionary look-up: softmax(q·k/τ) applied to the values becomes the hard
    look-up of the best key as τ → 0, and the mean of all values as τ → ∞; what a trained model
    reads by attention is such a look-up.

    {STORED_KEYS} random keys of length 1 in {STORED_WIDTH} dimensions with random values; the
    attention kernel with the scale 1/τ against the value of the best key, the mean of all values,
    and the bound (n−1)·exp(−gap/τ) on the weight of the others; once more with the best key stored
    twice, with two values, which is no look-up at any τ. Then the packaged translator of the
    built-in language on test sentences, the scores of its cross-attention divided by τ: the share
    of target tokens that it predicts as at τ = 1, with the true ones before.
    """

    source = "Bahdanau et al. 2015, Section 3.1; Graves et al. 2014, Section 3.3.1 (key strength β)"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        queries = effort.choose(200, 5000)
        model = packaged_translator()
        sentences = list(islice(builtin.sentences("test"), effort.choose(50, 500)))
        texts = batch(model, [one.source for one in sentences], [one.target for one in sentences])
        return {
            "temperatures": TEMPERATURES,
            "runs": effort.each_seed(partial(_look_up, queries)),
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
        # Of a model that cannot translate, nothing follows.
        can_tell = model["tokens"] >= FEWEST_TOKENS and model["right"] >= 50
        sentences = {
            "the limits": hard <= EXACT and flat <= 0.1 and above <= 0,
            "the translator looks up": model["same"][0] >= LOOKED_UP if can_tell else None,
            "and needs to": model["same"][-1] < NEEDED if can_tell else None,
        }
        return judge_sentences(
            sentences,
            f"At τ = {lowest:g} the result differs from the best key's value by {hard:.1e} of its "
            f"norm, at τ = {highest:g} from the mean of all values by {flat:.2g}; the bound is "
            f"exceeded by {above:.1e}. The translator predicts {model['same'][0]:.1f} % of its "
            f"{model['tokens']:,} tokens as before with hard look-ups, and {model['same'][-1]:.1f} "
            "% with means of all values.",
            main_first=True,
        )

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        temperatures = numbers["temperatures"]
        errors = {
            "hard_error": "from the best key's value",
            "mean_error": "from the mean of all",
            "tied_error": "best key stored twice",
        }
        shown = partial(chart_and_table, x="temperature τ", at=temperatures, log_x=True)
        return [
            *shown(
                "Distance from the hard look-up and from the mean",
                y="relative error",
                curves=named_columns(runs, errors),
                log=True,
                low=1e-8,
            ),
            *shown(
                "Weight of the best key",
                y="weight",
                curves={"one best key": column(runs, "weight")},
                theory={"equal weights": [1 / STORED_KEYS] * len(temperatures)},
                low=0.0,
                high=1.0,
            ),
            *shown(
                "Tokens that a translator predicts as at τ = 1",
                y="%",
                curves={"cross-attention divided by τ": [numbers["translator"]["same"]]},
                low=0.0,
                high=100.0,
            ),
        ]


# ------------------------------------------------------------------ the formula


def _look_up(queries: int, seed: int) -> Numbers:
    """All curves of one set of keys and values."""
    generator = torch.Generator().manual_seed(seed)
    # In float64, so that the limits are those of the formula and not of the numbers.
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    keys = functional.normalize(normal(STORED_KEYS, STORED_WIDTH), dim=-1)
    values = normal(STORED_KEYS, STORED_WIDTH)
    q = normal(queries, 1, STORED_WIDTH)
    scores = q @ keys.T  # [queries, 1, STORED_KEYS]
    # The gap between the two best scores decides how low τ must be.
    (first, second), (best, _) = (of.unbind(-1) for of in scores.topk(2))  # [queries, 1] each
    hard = values[best]  # what a dictionary would return
    # The best key once more at the end, with another value.
    other = normal(queries, 1, STORED_WIDTH)
    best_keys = keys[best]
    keys, values = (of.expand(queries, -1, -1) for of in (keys, values))
    twice = torch.cat([keys, best_keys], dim=1)
    both = torch.cat([values, other], dim=1)

    def at(temperature: float) -> Numbers:
        soft = _attend(q, keys, values, temperature)
        tied = _attend(q, twice, both, temperature)
        weight = (scores / temperature).softmax(-1).amax(-1)
        # The weight of all others is at most (n − 1) · exp(−gap/τ).
        bound = (STORED_KEYS - 1) * ((second - first) / temperature).exp()
        return {
            "hard_error": _relative(soft - hard),
            "mean_error": _relative(soft - values.mean(1, keepdim=True)),
            # Either of the two values would be a look-up.
            "tied_error": _relative(tied - hard, tied - other),
            "weight": float(weight.mean()),
            "above_bound": float((1 - weight - bound).max()) - 1e-12,
        }

    points = [at(temperature) for temperature in TEMPERATURES]
    curves = columns(points, points[0])
    return curves | {"above_bound": max(0.0, *curves["above_bound"])}


def _attend(q: Tensor, k: Tensor, v: Tensor, temperature: float) -> Tensor:
    """The attention kernel with one head: [B, 1, STORED_WIDTH]."""
    mask = AttentionMask(FullMask(), torch.arange(1), torch.arange(k.shape[1]))
    return explicit(q[:, None], k[:, None], v[:, None], mask, 1 / temperature, 0.0)[:, 0]


def _relative(*errors: Tensor) -> float:
    """The median of the smallest error, relative to the norm of values."""
    distances = torch.stack(errors).norm(dim=-1).amin(0)
    return max(float(distances.median()) / math.sqrt(STORED_WIDTH), 1e-16)


# ------------------------------------------------------------------ the trained model


@torch.no_grad()
def predictions(model: Any, texts: LabelledBatch) -> Numbers:
    """What a translator predicts at each temperature of its cross-attention, in %."""
    mixers = [block.cross.mixer for block in model.decoder.blocks]
    scales = [mixer.scale for mixer in mixers]
    is_token = texts.labels >= 0

    def predict(temperature: float) -> Tensor:
        for mixer, scale in zip(mixers, scales, strict=True):
            mixer.scale = scale / temperature
        return forward(model, texts.named).argmax(-1)[is_token]

    # The last one leaves the model as it was.
    *predicted, as_trained = [predict(temperature) for temperature in (*TEMPERATURES, 1.0)]
    # In %: of the true tokens, and of those of each temperature
    right, *same = (
        float((100.0 * (one == as_trained)).mean()) for one in (texts.labels[is_token], *predicted)
    )
    return {"tokens": len(as_trained), "right": right, "same": same}
