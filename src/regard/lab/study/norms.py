"""Normalization and residual connections: over what, before or after the sublayer, and without."""

from __future__ import annotations

from itertools import islice
from statistics import geometric_mean
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.data.generated.algorithmic_tasks import Copying
from regard.lab.study.evidence import above, changes, differences, judge_cases, judge_sentences
from regard.lab.study.figure import (
    OVER_SEEDS,
    Shown,
    Table,
    bar_chart,
    cells,
    chart,
    column,
    curve_table,
    mean,
    mean_text,
    means,
    measured_bars,
    table,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    PADDING,
    Batch,
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
from regard.look.drawing import Axis
from regard.training.engine.optimizer import ConstantRate

NORMS: dict[str, spec.Norm] = {
    "LayerNorm": spec.LayerNorm(),
    "RMSNorm": spec.RMSNorm(),
    "BatchNorm": spec.BatchNorm(),
}
INDEPENDENT = 1e-8  # relative change of an output that is rounding, in float64
# BatchNorm's statistics are over all tokens of these: some twenty, or over a hundred.
BATCHES = {"small": 2, "large": 16}  # sentences in a batch of training
LEARNED = 3.5  # nats: two thirds of 5.2, what the frequencies of words alone give


class Norms(Study):
    """LayerNorm (and RMSNorm) normalizes each token by itself, so that neither the other sentences
    of a batch nor their lengths matter; BatchNorm depends on both, and suffers with small batches
    of sentences of varying length.

    Translators of two layers (one in a quick study) for the built-in language with each norm. How
    far the output for a sentence moves, in training mode and in float64, if the rest of the batch
    is replaced or only made shorter; then, trained on batches of 2 and of 16 sentences with as many
    updates, the test loss, in evaluation and in training mode.
    """

    source = (
        "Ba et al. 2016, Sections 3 and 6.6; Shen et al. 2020 (PowerNorm), Section 3; Zhang and "
        "Sennrich 2019"
    )
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(80, 3000)
        layers = effort.choose(1, 2)
        test = list(islice(builtin_pairs("test", 500, 0, rows=32), effort.choose(2, 6)))
        moves = {
            name: [_moves(norm, layers, seed) for seed in effort.seeds]
            for name, norm in NORMS.items()
        }

        def score(name: str, size: str, seed: int) -> dict[str, float]:
            stream = builtin_pairs("train", 5000, seed, rows=BATCHES[size])
            model = trained(_translator(NORMS[name], layers), seed, stream, steps)
            loss = evaluate(model, test).loss
            return {"loss": loss, "training_mode": _training_loss(model, test)}

        runs = effort.each_pair(NORMS, BATCHES, score)
        return {"moves": moves, "runs": runs, "batches": BATCHES, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if LayerNorm and RMSNorm move by less than {INDEPENDENT:g} and BatchNorm by more
        than 0.01, and the loss of BatchNorm against that of LayerNorm is higher with small batches,
        and more so than with large ones, over the seeds (Student's t, 95 %); within limits if only
        it moves so; else it does not hold. Too small to say where the seeds do not tell, or
        LayerNorm's loss with small batches is above {LEARNED:g} nats: then it has learned little
        beyond the frequencies of words."""
        runs = numbers["runs"]
        moves = {
            name: mean(max(run.values()) for run in each) for name, each in numbers["moves"].items()
        }
        small, large = (
            {name: column(runs[name][size], "loss") for name in ("LayerNorm", "BatchNorm")}
            for size in BATCHES
        )
        worse, worse_with_large = (
            changes(losses["BatchNorm"], losses["LayerNorm"]) for losses in (small, large)
        )
        reason = (
            f"Other sentences in the batch move an output by {moves['LayerNorm']:.0e} with "
            f"LayerNorm, {moves['RMSNorm']:.0e} with RMSNorm and {moves['BatchNorm']:.2g} with "
            f"BatchNorm. With {numbers['batches']['small']} sentences a batch the test loss is "
            f"{mean_text(small['LayerNorm'])} with LayerNorm and "
            f"{mean_text(small['BatchNorm'])} with BatchNorm ({mean(worse):+.1%}; with "
            f"{numbers['batches']['large']} sentences {mean(worse_with_large):+.1%})."
        )
        independent = max(moves["LayerNorm"], moves["RMSNorm"]) < INDEPENDENT
        main = "only BatchNorm sees the rest of the batch"
        learned = mean(small["LayerNorm"]) <= LEARNED
        sentences = {
            main: independent and moves["BatchNorm"] > 0.01,
            "it is worse with small batches": above(worse, 0.0) if learned else None,
            "more so than with large ones": above(differences(worse, worse_with_large), 0.0)
            if learned
            else None,
        }
        return judge_sentences(sentences, reason, main=main)

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        sizes = numbers["batches"]
        moved = {"replaced": "other sentences replaced", "shortened": "others shortened"}
        rows = [
            [name, str(sizes[size]), *cells(each, ["loss", "training_mode"])]
            for name, of_size in runs.items()
            for size, each in of_size.items()
        ]
        return [
            measured_bars(
                "How far an output moves with the rest of the batch",
                "relative change",
                numbers["moves"],
                moved,
                log=True,
            ),
            bar_chart(
                "Test loss by the size of training batches",
                "loss, nats a token",
                runs,
                {
                    f"{rows} sentences": [
                        column(of_size[size], "loss") for of_size in runs.values()
                    ]
                    for size, rows in sizes.items()
                },
            ),
            Table(
                OVER_SEEDS,
                ["norm", "sentences a batch", "test loss", "… with statistics of the batch"],
                rows,
            ),
        ]


def _translator(norm: spec.Norm, layers: int) -> spec.Model:
    """The small translator with this norm in all blocks."""
    return with_block(translator(len(builtin_vocabulary()), layers=layers), norm=norm)


@torch.no_grad()
def _moves(norm: spec.Norm, layers: int, seed: int) -> dict[str, float]:
    """The relative change of the first row's output as the other rows change, in training mode."""
    # In float64: what is left is rounding, or none.
    model: Any = build_seeded(_translator(norm, layers), seed).train().double()
    stream = builtin_pairs("train", 5000, seed, rows=8)
    batch = next(stream)
    # Its sentences replace all but the first.
    other = next(stream)
    assert batch.source is not None
    assert other.source is not None
    replaced = batch.source.clone()
    replaced[1:] = PADDING
    width = min(replaced.shape[1], other.source.shape[1])
    replaced[1:, :width] = other.source[1:, :width]
    shortened = batch.source.clone()
    # Four tokens of each other sentence are left.
    shortened[1:, 4:] = PADDING
    # Padding of the first row does not count.
    is_token = batch.source[0] != PADDING

    def output(source: Tensor) -> Any:
        return model.encode(source, source != PADDING).hidden[0, is_token]

    base = output(batch.source)
    return {
        name: float((output(source) - base).norm() / base.norm())
        for name, source in (("replaced", replaced), ("shortened", shortened))
    }


@torch.no_grad()
def _training_loss(model: Any, test: list[Batch]) -> float:
    """The loss with the statistics of the test batches themselves, as in training."""
    # `evaluate` would use the running statistics of BatchNorm.
    model.train()
    return mean(float(mean_loss(model, batch)) for batch in test)


# ------------------------------------------------------------------ before or after

# Words of `families/preset_changes.RESIDUALS`.
PLACES = {"post-norm": "post", "pre-norm": "pre"}
RATES = (0.001, 0.003, 0.01)
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
        rates = effort.choose((0.001, 0.01), RATES)

        def gradients(place: str, depth: int, seed: int) -> list[float]:
            """The norm of the gradient in the outer feed-forward weights of each layer."""
            blocks = _blocks_with_gradients(_placed_model(task, place, depth), task, seed)
            return [float(block.feedforward.outer.weight.grad.norm()) for block in blocks]

        at_start = {
            name: [[gradients(place, depth, seed) for depth in depths] for seed in effort.seeds]
            for name, place in PLACES.items()
        }
        runs = [f"{name}, {warmup}" for name in PLACES for warmup in ("warm-up", "none")]
        losses = effort.each(
            runs,
            lambda name, seed: [_train(task, name, layers, rate, steps, seed) for rate in rates],
        )
        return {
            "depths": depths,
            "gradients": at_start,
            "rates": list(rates),
            "losses": losses,
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
        losses = {name: means(runs) for name, runs in numbers["losses"].items()}
        post, pre = (
            differences(losses[f"{name}, none"], losses[f"{name}, warm-up"]) for name in PLACES
        )
        # Rates at which post-norm needs a warm-up and pre-norm does not.
        needed = [index for index in range(len(rates)) if post[index] > NEEDED > pre[index]]
        # Theorem 1: of order 1/√layers with pre-norm, independent of them with post-norm.
        gradients_differ = falls["pre-norm"] >= FALLS > falls["post-norm"]
        # The rate that decides, or the highest one.
        at = needed[-1] if needed else -1
        reason = (
            f"From {numbers['depths'][0]} to {numbers['depths'][-1]} layers the last layer's "
            f"gradient falls by a factor of {falls['pre-norm']:.2f} with pre-norm and "
            f"{falls['post-norm']:.2f} with post-norm. At a rate of {rates[at]:g} the loss without "
            f"warm-up is higher by {post[at]:.2f} nats with post-norm and {pre[at]:.2f} with "
            "pre-norm."
        )
        return judge_cases([gradients_differ, bool(needed)], reason)

    def show(self, numbers: Numbers) -> Shown:
        depths = numbers["depths"]
        gradients = numbers["gradients"]
        rates = numbers["rates"]
        norm = Axis("norm", log=True)
        last = {name: [[at[-1] for at in run] for run in runs] for name, runs in gradients.items()}
        deepest = {name: [run[-1] for run in runs] for name, runs in gradients.items()}
        return [
            chart(
                "Gradient of the last layer, at the start",
                Axis("layers", ticks=depths),
                norm,
                depths,
                last,
            ),
            chart(
                f"Gradient of each layer, of {depths[-1]}",
                Axis("layer"),
                norm,
                range(1, depths[-1] + 1),
                deepest,
            ),
            chart(
                f"Loss after {numbers['steps']} steps, {numbers['layers']} layers",
                Axis("learning rate", log=True, ticks=rates),
                Axis("test loss, nats a token", low=0.0),
                rates,
                numbers["losses"],
            ),
            curve_table(
                "Test loss, mean ± standard deviation over the seeds",
                "norm, warm-up",
                [f"rate {rate:g}" for rate in rates],
                numbers["losses"],
            ),
        ]


def _placed_model(task: Task, place: str, layers: int) -> spec.Model:
    sizes = {"d_model": 64, "heads": 2, "d_ff": 128}
    return language_model(task.vocabulary, layers=layers, residual=place, **sizes)


def _blocks_with_gradients(
    description: spec.Model, task: Task, seed: int, dtype: torch.dtype = torch.float32
) -> Any:
    """The blocks at their initial weights, with the gradients of a first batch."""
    model: Any = build_seeded(description, seed).to(dtype)
    mean_loss(model, next(task.stream(seed))).backward()  # type: ignore[no-untyped-call]
    return model.stack.blocks


def _train(task: Task, name: str, layers: int, rate: float, steps: int, seed: int) -> float:
    """The test loss after training; `name` says where the norm is and whether rates warm up."""
    place, _, warmup = name.partition(", ")
    # A warm-up of one step is none.
    # A quarter, because steps are few: the paper's 4 % would be 4 to 8 of them.
    schedule = ConstantRate(rate, steps // 4 if warmup == "warm-up" else 1)
    # Without clipping, which would hide what large gradients do.
    model = _placed_model(task, PLACES[place], layers)
    return task.score(model, seed, steps, schedule=schedule, clip=None).loss


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
        return {
            "depths": depths,
            "ratios": ratios,
            "runs": compare(variants, task, steps, effort),
            "trained": trained,
            "steps": steps,
        }

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
        losses = {
            name: mean(column(numbers["runs"][f"{name}, {depth} layers"], "loss"))
            for name in ("pre-norm", "none, norm before")
        }
        # Vanishing and exploding gradients are alike here.
        passes = {name: 1 / LARGE < value < LARGE for name, value in last.items()}
        blocked = not any(passes[name] for name in last if name.startswith("none"))
        worse = losses["none, norm before"] > losses["pre-norm"]
        listed = ", ".join(f"{name} {value:.1e}" for name, value in last.items())
        reason = (
            f"Gradient of the first over the last of {numbers['depths'][-1]} blocks: {listed}. "
            f"With {depth} layers, trained for {numbers['steps']} steps, the loss is "
            f"{losses['pre-norm']:.2f} with residuals and {losses['none, norm before']:.2f} "
            "without."
        )
        return judge(passes["pre-norm"] and blocked, worse, reason)

    def show(self, numbers: Numbers) -> Shown:
        depths = numbers["depths"]
        rows = [
            [name, *(f"{geometric_mean(values):.1e}" for values in zip(*runs, strict=True))]
            for name, runs in numbers["ratios"].items()
        ]
        return [
            chart(
                "Gradient of the first block over the last",
                Axis("layers", log=True, ticks=depths),
                Axis("ratio of norms", log=True),
                depths,
                numbers["ratios"],
            ),
            measured_bars(
                f"Loss after {numbers['steps']} steps of copying letters",
                "test loss, nats a token",
                numbers["runs"],
                {"loss": ""},
            ),
            Table(
                "Gradient of the first over the last block (geometric mean)",
                ["residuals", *(f"{depth} layers" for depth in depths)],
                rows,
            ),
            table(
                "residuals",
                {"loss": "loss", "exact": "without a mistake, %"},
                numbers["runs"],
                "Trained models",
            ),
        ]


def _deep_model(task: Task, residual: spec.Residual, depth: int, width: int) -> spec.Model:
    sizes = {"d_model": width, "heads": 2, "d_ff": 2 * width}
    return with_block(language_model(task.vocabulary, layers=depth, **sizes), residual=residual)


def _gradient_ratio(task: Task, residual: spec.Residual, depth: int, seed: int) -> float:
    """‖gradient of the first block‖ / ‖that of the last‖, in their feed-forward weights."""
    # In float64: without residuals the gradient falls below what float32 can hold.
    model = _deep_model(task, residual, depth, 32)
    blocks = _blocks_with_gradients(model, task, seed, torch.float64)
    # The inner weights of the feed-forward networks: all variants have them.
    first, last = (blocks[i].feedforward.inner.weight.grad.norm() for i in (0, -1))
    return max(float(first / last), 1e-300)
