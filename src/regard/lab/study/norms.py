"""Normalization and residual connections: over what, before or after the sublayer, and without."""

from __future__ import annotations

import math
from itertools import islice
from statistics import geometric_mean
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.data.generated.algorithmic_tasks import Copying
from regard.lab.study.evidence import (
    above,
    changes,
    differences,
    failures,
    judge_cases,
    judge_sentences,
    where_trained,
)
from regard.lab.study.figure import (
    Shown,
    Table,
    chart,
    chart_and_table,
    column,
    mean,
    mean_text,
    means,
    measured_bars,
    table,
    transposed,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    PADDING,
    Task,
    TaskBatches,
    build_seeded,
    builtin_pairs,
    builtin_vocabulary,
    compare,
    evaluate,
    language_model,
    mean_loss,
    trained,
    translator,
    with_block,
)
from regard.training.engine.optimizer import ConstantRate

NORMS: dict[str, spec.Norm] = {
    "LayerNorm": spec.LayerNorm(),
    "RMSNorm": spec.RMSNorm(),
    "BatchNorm": spec.BatchNorm(),
}
COMPARED = ("LayerNorm", "BatchNorm")  # in training
INDEPENDENT = 1e-8  # relative change of an output that is rounding, in float64
# BatchNorm's statistics are over all tokens of these: some twenty, or eighty.
BATCHES = {"small": 2, "large": 8}  # sentences in a batch of training
LEARNED = 3.5  # nats: two thirds of 5.2, what the frequencies of words alone give


class Norms(Study):
    """LayerNorm (and RMSNorm) normalizes each token by itself, so that neither the other sentences
    of a batch nor their lengths matter; BatchNorm depends on both, and suffers with small batches
    of sentences of varying length.

    Translators of two layers (one in a quick study) for the built-in language with each norm. How
    far the output for a sentence moves, in training mode and in float64, if the rest of the batch
    is replaced or only made shorter; then, with LayerNorm and BatchNorm, trained on batches of 2
    and of 8 sentences with as many updates, the test loss, in evaluation and in training mode.
    """

    source = (
        "Ba et al. 2016, Sections 3 and 6.6; Shen et al. 2020 (PowerNorm), Section 3; Zhang and "
        "Sennrich 2019"
    )
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(80, 2500)
        layers = effort.choose(1, 2)
        test = list(islice(builtin_pairs("test", 500, 0, rows=32), effort.choose(2, 6)))
        moves = {
            name: [_moves(norm, layers, seed) for seed in effort.seeds]
            for name, norm in NORMS.items()
        }

        def score(name: str, size: str, seed: int) -> Numbers:
            stream = builtin_pairs("train", 5000, seed, rows=BATCHES[size])
            model = trained(_translator(NORMS[name], layers), seed, stream, steps)
            loss = evaluate(model, test).loss
            # The statistics of the test batches themselves, where `evaluate` has running ones.
            model.train()
            training_mode = mean(mean_loss(model, batch).item() for batch in test)
            return {"loss": loss, "training_mode": training_mode}

        runs = effort.each_pair(COMPARED, BATCHES, score)
        return {"moves": moves, "runs": runs, "batches": BATCHES, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if LayerNorm and RMSNorm move by less than {INDEPENDENT:g} and BatchNorm by more
        than 0.01, where the rest of the batch is replaced and where it is shortened, and the loss
        of BatchNorm against that of LayerNorm is higher with small batches, and more so than with
        large ones, over the seeds (Student's t, 95 %); within limits if only it moves so; else it
        does not hold. Seeds in which LayerNorm's loss with small batches is above {LEARNED:g} nats
        have learned little beyond the frequencies of words, and are left out; too small to say
        where the others do not tell."""
        runs = numbers["runs"]
        # BatchNorm must see both changes, the others neither.
        moves = {
            name: mean((min if name == "BatchNorm" else max)(run.values()) for run in each)
            for name, each in numbers["moves"].items()
        }
        layer, batch = (
            {size: column(runs[name][size], "loss") for size in BATCHES} for name in COMPARED
        )
        worse, worse_with_large = (changes(batch[size], layer[size]) for size in BATCHES)
        reason = (
            f"Other sentences in the batch move an output by {moves['LayerNorm']:.0e} with "
            f"LayerNorm, {moves['RMSNorm']:.0e} with RMSNorm and {moves['BatchNorm']:.2g} with "
            f"BatchNorm. With {numbers['batches']['small']} sentences a batch the test loss is "
            f"{mean_text(layer['small'])} with LayerNorm and "
            f"{mean_text(batch['small'])} with BatchNorm ({mean(worse):+.1%}; with "
            f"{numbers['batches']['large']} sentences {mean(worse_with_large):+.1%})."
        )
        independent = max(moves["LayerNorm"], moves["RMSNorm"]) < INDEPENDENT
        learned = [loss if loss <= LEARNED else math.nan for loss in layer["small"]]
        reason += failures({"LayerNorm": learned}, " with small batches")
        worse = where_trained(worse, learned)
        sentences = {
            "only BatchNorm sees the rest of the batch": independent and moves["BatchNorm"] > 0.01,
            "it is worse with small batches": above(worse, 0.0),
            "more so than with large ones": above(differences(worse, worse_with_large), 0.0),
        }
        return judge_sentences(sentences, reason, main_first=True)

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        moved = {"replaced": "other sentences replaced", "shortened": "others shortened"}
        headings = {"loss": "test loss", "training_mode": "… with statistics of the batch"}
        shown: list[Any] = [
            measured_bars(
                "How far an output moves with the rest of the batch",
                "relative change",
                numbers["moves"],
                moved,
                log=True,
            )
        ]
        for size, rows in numbers["batches"].items():
            each = {name: of_size[size] for name, of_size in runs.items()}
            title = f"Trained on batches of {rows} sentences"
            shown += [
                measured_bars(title, "test loss, nats a token", each, {"loss": ""}),
                table("norm", headings, each, title),
            ]
        return shown


def _translator(norm: spec.Norm, layers: int) -> spec.Model:
    """The small translator with this norm in all blocks."""
    return with_block(translator(len(builtin_vocabulary()), layers=layers), norm=norm)


@torch.no_grad()
def _moves(norm: spec.Norm, layers: int, seed: int) -> Numbers:
    """The relative change of the first row's output as the other rows change, in training mode."""
    # In float64: what is left is rounding, or none.
    model: Any = build_seeded(_translator(norm, layers), seed).train().double()
    source, other = (
        batch.source for batch in islice(builtin_pairs("train", 5000, seed, rows=8), 2)
    )
    # Four tokens of each sentence but the first are left.
    shortened = source.clone()
    shortened[1:, 4:] = PADDING
    # All but the first are those of the other batch.
    replaced = source.clone()
    width = min(source.shape[1], other.shape[1])
    replaced[1:] = PADDING
    replaced[1:, :width] = other[1:, :width]
    # Padding of the first row does not count.
    is_token = source[0] != PADDING

    def output(source: Tensor) -> Any:
        return model.encode(source, source != PADDING).hidden[0, is_token]

    base = output(source)
    return {
        name: float((output(source) - base).norm() / base.norm())
        for name, source in (("replaced", replaced), ("shortened", shortened))
    }


# ------------------------------------------------------------------ before or after

# Words of `families/preset_changes.RESIDUALS`.
PLACES = {"post-norm": "post", "pre-norm": "pre"}
FALLS = 1.5  # factor between gradients that counts as a change
NEEDED = 0.5  # nats by which a loss must rise without warm-up


class NormPlacement(Study):
    """With post-norm the gradients near the output are large at the start, so that training needs
    warm-up; with pre-norm they shrink with depth, and warm-up can be left out.

    Language models that copy letters, at their initial weights, with 2 to 24 layers: the gradient's
    norm in the last feed-forward layer, and in each layer of the deepest. Then test losses after
    training with several learning rates, with warm-up and without.
    """

    source = "Xiong et al. 2020, Theorem 1 and Section 4"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        task = TaskBatches(Copying(max_length=5)).learned(4)
        depths = effort.choose([2, 6, 12], [2, 4, 6, 12, 24])
        layers = effort.choose(3, 6)
        steps = effort.choose(100, 200)
        rates = effort.choose([0.001, 0.01], [0.001, 0.003, 0.01])

        def model(place: str, layers: int) -> spec.Model:
            sizes = {"d_model": 64, "heads": 2, "d_ff": 128}
            return language_model(task.vocabulary, layers=layers, residual=PLACES[place], **sizes)

        def losses(name: str, seed: int) -> list[float]:
            """The test loss after training with each rate."""
            place, warmup = name.split(", ")
            # A quarter, because steps are few: 4 % would be 4 to 8 of them. One is none.
            warmup_steps = steps // 4 if warmup == "warm-up" else 1
            schedules = [ConstantRate(rate, warmup_steps) for rate in rates]
            # Without clipping, which would hide what large gradients do.
            return [
                task.score(model(place, layers), seed, steps, schedule=schedule, clip=None).loss
                for schedule in schedules
            ]

        return {
            "depths": depths,
            "gradients": {
                place: [
                    [_gradients(model(place, depth), task, seed, "outer") for depth in depths]
                    for seed in effort.seeds
                ]
                for place in PLACES
            },
            "rates": rates,
            "losses": effort.each(
                [f"{place}, {warmup}" for place in PLACES for warmup in ("warm-up", "none")], losses
            ),
            "layers": layers,
            "steps": steps,
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Two statements: from the smallest to the largest depth the last layer's gradient falls by
        a factor of {FALLS:g} or more with pre-norm, and less with post-norm; at some rate the loss
        without warm-up is higher than with it by more than {NEEDED:g} nats with post-norm, and by
        less than that with pre-norm. Holds if both are true, within limits if one is."""
        rates = numbers["rates"]
        # The first over the last depth, in the last layer of each.
        falls = {
            name: mean(run[0][-1] / run[-1][-1] for run in runs)
            for name, runs in numbers["gradients"].items()
        }
        losses = numbers["losses"]
        post, pre = (
            differences(means(losses[f"{name}, none"]), means(losses[f"{name}, warm-up"]))
            for name in PLACES
        )
        # Rates at which post-norm needs a warm-up and pre-norm does not.
        needed = [index for index in range(len(rates)) if post[index] > NEEDED > pre[index]]
        # Theorem 1: of order 1/√layers with pre-norm, independent of them with post-norm.
        gradients_differ = falls["pre-norm"] >= FALLS > falls["post-norm"]
        # The rate that decides, or the highest one.
        at = needed[-1] if needed else -1
        return judge_cases(
            [gradients_differ, bool(needed)],
            f"From {numbers['depths'][0]} to {numbers['depths'][-1]} layers the last layer's "
            f"gradient falls by a factor of {falls['pre-norm']:.2f} with pre-norm and "
            f"{falls['post-norm']:.2f} with post-norm. At a rate of {rates[at]:g} the loss without "
            f"warm-up is higher by {post[at]:.2f} nats with post-norm and {pre[at]:.2f} with "
            "pre-norm.",
        )

    def show(self, numbers: Numbers) -> Shown:
        depths = numbers["depths"]
        gradients = numbers["gradients"]
        rates = numbers["rates"]
        last = {name: [[at[-1] for at in run] for run in runs] for name, runs in gradients.items()}
        deepest = {name: column(runs, -1) for name, runs in gradients.items()}
        layers = range(1, depths[-1] + 1)
        title = f"Loss after {numbers['steps']} steps, {numbers['layers']} layers"
        unit = "test loss, nats a token"
        losses = numbers["losses"]
        return [
            chart(
                "Gradient of the last layer, at the start",
                "layers",
                "norm",
                depths,
                last,
                log=True,
            ),
            chart(
                f"Gradient of each layer, of {layers[-1]}",
                "layer",
                "norm",
                layers,
                deepest,
                log=True,
            ),
            *chart_and_table(title, "learning rate", unit, rates, losses, log_x=True, low=0.0),
        ]


def _gradients(description: spec.Model, task: Task, seed: int, matrix: str) -> list[float]:
    """The norm of the gradient in a feed-forward matrix of each layer, at the initial weights."""
    # In float64: without residuals the gradient falls below what float32 can hold.
    model: Any = build_seeded(description, seed).double()
    mean_loss(model, next(task.stream(seed))).backward()  # type: ignore[no-untyped-call]
    feedforwards = [block.feedforward for block in model.stack.blocks]
    return [float(getattr(one, matrix).weight.grad.norm()) for one in feedforwards]


RESIDUALS: dict[str, spec.Residual] = {
    "pre-norm": spec.PreNorm(),
    "post-norm": spec.PostNorm(),
    "none, norm before": spec.NoResidual("pre"),
    "none, norm after": spec.NoResidual("post"),
}
LARGE = 10.0  # a gradient that changes by this factor vanishes or explodes


class Residuals(Study):
    """Residual connections give the gradient a direct path, ∂(x + f(x))/∂x = 1 + ∂f/∂x, so that it
    passes a hundred layers and deep stacks can be trained; without them it does not.

    Stacks of 2 to 100 layers at their initial weights, with residual connections (pre-norm,
    post-norm) and without: the norm of the loss's gradient in the feed-forward weights of the first
    block over that in the last. Then language models that copy letters, at two depths: test loss.
    """

    source = "He et al. 2016, Section 3; Vaswani et al. 2017, Section 3.1"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        task = TaskBatches(Copying(max_length=5)).learned(4)
        depths = effort.choose([2, 10, 30, 100], [2, 5, 10, 20, 50, 100])
        # [seeds][depths] for each kind
        ratios = {
            name: [
                [_gradient_ratio(task, residual, depth, seed) for depth in depths]
                for seed in effort.seeds
            ]
            for name, residual in RESIDUALS.items()
        }
        # A stack of 100 layers would take minutes: the gradients above are measured, these trained.
        trained = effort.choose([2, 6], [2, 8])
        steps = effort.choose(100, 250)
        variants = {
            f"{name}, {depth} layers": _deep_model(task, residual, depth, 64)
            for depth in trained
            for name, residual in RESIDUALS.items()
            if name != "post-norm" and not (effort.quick and name == "none, norm after")
        }
        runs = compare(variants, task, steps, effort)
        return {"depths": depths, "ratios": ratios, "trained": trained, **runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if at the largest depth the ratio with pre-norm residuals is within a factor of
        {LARGE:.0f} of 1, both stacks without residuals are beyond it, and the deeper model without
        residuals ends with a higher loss than with them; within limits if only the loss is higher;
        else it does not hold."""
        last = {
            name: geometric_mean(run[-1] for run in runs)
            for name, runs in numbers["ratios"].items()
        }
        # The deeper of the two trained ones, where residuals matter.
        depth = numbers["trained"][-1]
        with_residuals, without = (
            mean(column(numbers["runs"][f"{name}, {depth} layers"], "loss"))
            for name in ("pre-norm", "none, norm before")
        )
        # Vanishing and exploding gradients are alike here.
        passing = {name for name, value in last.items() if 1 / LARGE < value < LARGE}
        listed = ", ".join(f"{name} {value:.1e}" for name, value in last.items())
        passes = passing - {"post-norm"} == {"pre-norm"}
        return judge(
            passes,
            without > with_residuals,
            f"Gradient of the first over the last of {numbers['depths'][-1]} blocks: {listed}. "
            f"With {depth} layers, trained for {numbers['steps']} steps, the loss is "
            f"{with_residuals:.2f} with residuals and {without:.2f} without.",
        )

    def show(self, numbers: Numbers) -> Shown:
        depths = numbers["depths"]
        rows = [
            [name, *(f"{geometric_mean(values):.1e}" for values in transposed(runs))]
            for name, runs in numbers["ratios"].items()
        ]
        title = f"After {numbers['steps']} steps of copying letters"
        return [
            chart(
                "Gradient of the first block over the last",
                "layers",
                "ratio of norms",
                depths,
                numbers["ratios"],
                log_x=True,
                log=True,
            ),
            measured_bars(title, "test loss, nats a token", numbers["runs"], {"loss": ""}),
            Table(
                "Gradient of the first over the last block (geometric mean)",
                ["residuals", *(f"{depth} layers" for depth in depths)],
                rows,
            ),
            table(
                "residuals",
                {"loss": "loss", "exact": "without a mistake, %"},
                numbers["runs"],
                title,
            ),
        ]


def _deep_model(task: Task, residual: spec.Residual, depth: int, width: int) -> spec.Model:
    sizes = {"d_model": width, "heads": 2, "d_ff": 2 * width}
    return with_block(language_model(task.vocabulary, layers=depth, **sizes), residual=residual)


def _gradient_ratio(task: Task, residual: spec.Residual, depth: int, seed: int) -> float:
    """‖gradient of the first block‖ / ‖that of the last‖, in their feed-forward weights."""
    first, *_, last = _gradients(_deep_model(task, residual, depth, 32), task, seed, "inner")
    return max(first / last, 1e-300)
