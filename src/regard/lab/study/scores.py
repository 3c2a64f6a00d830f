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
    OVER_SEEDS,
    Shown,
    bar_chart,
    by_key,
    chart,
    column,
    curve_cells,
    mean,
    means,
    table,
    table_of_columns,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    TaskBatches,
    build_seeded,
    compare,
    language_model,
    packaged_translator,
    with_attention,
)
from regard.look.drawing import Axis
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

        def measure(seed: int) -> list[dict[str, float]]:
            generator = torch.Generator().manual_seed(seed)
            return [_at_width(width, queries, generator) for width in widths]

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
        reason = (
            f"From d_k = {widths[0]} to {widths[-1]}, Var(q·k)/d_k is {min(ratios):.3f} to "
            f"{max(ratios):.3f}; the Jacobian's median norm goes from {unscaled[0]:.3g} to "
            f"{unscaled[-1]:.2g} without the scale, and from {scaled[0]:.3g} to {scaled[-1]:.3g} "
            "with it."
        )
        return judge(is_linear, vanishes and stays, reason)

    def show(self, numbers: Numbers) -> Shown:
        widths = numbers["widths"]
        x = Axis("d_k", log=True, ticks=widths)
        entropy = Axis("share of log(keys)", low=0.0, high=1.0)
        jacobian = Axis("‖∂weights/∂scores‖", log=True)
        columns = {
            "variance": "Var(q·k)",
            "entropy": "entropy",
            "scaled_entropy": "… scaled",
            "jacobian": "Jacobian",
            "scaled_jacobian": "… scaled",
        }
        by_width = zip(widths, zip(*numbers["runs"], strict=True), strict=True)
        return [
            chart(
                "Variance of the scores q·k",
                x,
                Axis("variance", log=True),
                widths,
                {"unscaled": _by_seed(numbers, "variance")},
                # What independent components of variance 1 give.
                theory={"d_k": widths},
            ),
            *(
                chart(
                    title,
                    x,
                    y,
                    widths,
                    {
                        "unscaled": _by_seed(numbers, key),
                        "scaled by 1/√d_k": _by_seed(numbers, f"scaled_{key}"),
                    },
                )
                for title, y, key in (
                    ("Entropy of the attention weights", entropy, "entropy"),
                    ("Gradient that passes the softmax", jacobian, "jacobian"),
                )
            ),
            table("d_k", columns, dict(by_width)),
        ]


def _by_seed(numbers: Numbers, key: str) -> list[list[float]]:
    """A measurement over d_k: [seeds][widths]."""
    return [column(run, key) for run in numbers["runs"]]


def _at_width(width: int, queries: int, generator: torch.Generator) -> dict[str, float]:
    """The measurements at one d_k."""
    # [SETS, queries / SETS, d_k] and [SETS, KEYS, d_k]
    q = torch.randn(SETS, queries // SETS, width, generator=generator)
    k = torch.randn(SETS, KEYS, width, generator=generator)
    scores = q @ k.mT  # [SETS, queries / SETS, KEYS]
    # Both softmaxes see the same scores.
    unscaled = scores.softmax(-1)
    scaled = (scores / math.sqrt(width)).softmax(-1)
    return {
        "variance": float(scores.var()),
        "entropy": _entropy(unscaled),
        "scaled_entropy": _entropy(scaled),
        "jacobian": _jacobian_norm(unscaled),
        "scaled_jacobian": _jacobian_norm(scaled),
    }


def _entropy(weights: Tensor) -> float:
    """The mean entropy, as a share of that of equal weights."""
    return float(torch.special.entr(weights).sum(-1).mean()) / math.log(KEYS)


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
        runs = compare(variants, task, steps, effort)
        # The wide heads, where the score is most of the cost.
        times = {score: _times(variants[f"{score}, d_k = {WIDTHS[1]}"]) for score in SCORES}
        return {"runs": runs, "times": times, "lengths": list(LENGTHS), "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Three statements: for small d_k additive and unscaled dot product differ by less than 10
        % of the loss or 0.02; for large d_k the unscaled dot product is worse than additive by more
        than that; at the longest input the dot product is more than 1.5 times as fast. Holds if all
        are true, within limits if some are."""
        small, large = (
            {score: mean(_losses(numbers, score, width)) for score in SCORES} for width in WIDTHS
        )
        speed = numbers["times"]["additive"][-1] / numbers["times"]["scaled dot product"][-1]
        sentences = {
            "similar for small d_k": not _differs(small["additive"], small["dot product"]),
            "unscaled worse for large d_k": large["dot product"] > large["additive"]
            and _differs(large["additive"], large["dot product"]),
            "dot product faster": speed > 1.5,
        }
        losses = (
            f"d_k = {width}: loss {of['additive']:.3f} additive, "
            f"{of['scaled dot product']:.3f} scaled, {of['dot product']:.3f} unscaled. "
            for width, of in zip(WIDTHS, (small, large), strict=True)
        )
        reason = (
            f"{''.join(losses)}The dot product is {speed:.1f} times as fast at "
            f"{numbers['lengths'][-1]} tokens."
        )
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
                Axis("tokens", log=True, ticks=lengths),
                Axis("ms", log=True),
                lengths,
                {score: [times] for score, times in numbers["times"].items()},
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


def _differs(a: float, b: float) -> bool:
    return abs(a - b) > max(NEAR * a, 0.02)


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
        runs = effort.each_seed(partial(_look_up, queries))
        model = packaged_translator()
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

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        temperatures = numbers["temperatures"]
        x = Axis("temperature τ", log=True)
        errors = {
            "hard_error": "from the best key's value",
            "mean_error": "from the mean of all",
            "tied_error": "best key stored twice",
        }
        titles = {
            "weight": "weight of the best",
            "hard_error": "from its value",
            "mean_error": "from the mean",
            "tied_error": "stored twice",
        }
        same = numbers["translator"]["same"]
        return [
            chart(
                "Distance from the hard look-up and from the mean",
                x,
                Axis("relative error", log=True, low=1e-8),
                temperatures,
                by_key(runs, errors),
            ),
            chart(
                "Weight of the best key",
                x,
                Axis("weight", low=0.0, high=1.0),
                temperatures,
                {"one best key": column(runs, "weight")},
                theory={"equal weights": [1 / STORED_KEYS] * len(temperatures)},
            ),
            chart(
                "Tokens that a translator predicts as at τ = 1",
                x,
                Axis("%", low=0.0, high=100.0),
                temperatures,
                {"cross-attention divided by τ": [same]},
            ),
            table_of_columns(
                OVER_SEEDS,
                {
                    "τ": [f"{temperature:g}" for temperature in temperatures],
                    **{name: curve_cells(of) for name, of in by_key(runs, titles).items()},
                    "translator: same tokens, %": [f"{share:.1f}" for share in same],
                },
            ),
        ]


# ------------------------------------------------------------------ the formula


def _look_up(queries: int, seed: int) -> dict[str, Any]:
    """All curves of one set of keys and values."""
    generator = torch.Generator().manual_seed(seed)
    # In float64, so that the limits are those of the formula and not of the numbers.
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    keys = functional.normalize(normal(STORED_KEYS, STORED_WIDTH), dim=-1)
    values = normal(STORED_KEYS, STORED_WIDTH)
    q = normal(queries, STORED_WIDTH)
    scores = q @ keys.T  # [queries, STORED_KEYS]
    best = scores.argmax(-1)
    # The gap between the two best scores decides how low τ must be.
    first, second = scores.topk(2).values.T
    # What a dictionary would return.
    hard = values[best]
    # The best key once more at the end, with another value.
    twice = torch.cat([keys.expand(queries, -1, -1), keys[best][:, None]], dim=1)
    other = normal(queries, 1, STORED_WIDTH)
    both = torch.cat([values.expand(queries, -1, -1), other], dim=1)

    def at(temperature: float) -> dict[str, float]:
        soft = _attend(q[None], keys[None], values[None], temperature)[0]
        tied = _attend(q[:, None], twice, both, temperature)[:, 0]
        weight = (scores / temperature).softmax(-1).gather(1, best[:, None])[:, 0]
        # The weight of all others is at most (n − 1) · exp(−gap/τ).
        bound = (STORED_KEYS - 1) * ((second - first) / temperature).exp()
        # Either of the two values would be a look-up.
        nearest = torch.minimum((tied - hard).norm(dim=-1), (tied - other[:, 0]).norm(dim=-1))
        return {
            "hard_error": _relative((soft - hard).norm(dim=-1)),
            "mean_error": _relative((soft - values.mean(0)).norm(dim=-1)),
            "tied_error": _relative(nearest),
            "weight": float(weight.mean()),
            "above_bound": float((1 - weight - bound).max()) - 1e-12,
        }

    points = [at(temperature) for temperature in TEMPERATURES]
    curves = {key: column(points, key) for key in points[0]}
    return curves | {"above_bound": max(0.0, *curves["above_bound"])}


def _attend(q: Tensor, k: Tensor, v: Tensor, temperature: float) -> Tensor:
    """The attention kernel with one head: [B, T, STORED_WIDTH]."""
    mask = AttentionMask(FullMask(), torch.arange(q.shape[1]), torch.arange(k.shape[1]))
    return explicit(q[:, None], k[:, None], v[:, None], mask, 1 / temperature, 0.0)[:, 0]


def _relative(distance: Tensor) -> float:
    """The median distance, relative to the norm of values."""
    return max(float(distance.median()) / math.sqrt(STORED_WIDTH), 1e-16)


# ------------------------------------------------------------------ the trained model


@torch.no_grad()
def predictions(model: Any, texts: LabelledBatch) -> dict[str, Any]:
    """What a translator predicts at each temperature of its cross-attention, in %."""
    mixers = [block.cross.mixer for block in model.decoder.blocks]
    scales = [mixer.scale for mixer in mixers]
    labels = texts.labels

    def predict(temperature: float) -> Tensor:
        for mixer, scale in zip(mixers, scales, strict=True):
            mixer.scale = scale / temperature
        return forward(model, texts.named).argmax(-1)[labels >= 0]

    # The last one leaves the model as it was.
    *predicted, as_trained = [predict(temperature) for temperature in (*TEMPERATURES, 1.0)]
    return {
        "tokens": len(as_trained),
        "right": _percent(as_trained == labels[labels >= 0]),
        "same": [_percent(one == as_trained) for one in predicted],
    }


def _percent(truths: Tensor) -> float:
    return 100 * float(truths.float().mean())
