"""Normalization: over tokens or over the batch, before or after the sublayer."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

import torch

from regard import spec
from regard.data.generated.algorithmic_tasks import LETTERS, Copying
from regard.lab.study.evidence import above, changes, judge_sentences
from regard.lab.study.figure import (
    OVER_SEEDS,
    Shown,
    Table,
    bar_chart,
    bars,
    cells,
    chart,
    column,
    curve_table,
    mean,
    mean_text,
    means,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    PADDING,
    Batch,
    TaskBatches,
    build_seeded,
    builtin_pairs,
    builtin_vocabulary,
    evaluate,
    language_model,
    logits,
    mean_loss,
    trained,
    translator,
    with_block,
)
from regard.look.drawing import Axis, BarChart
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

    name = "norms"
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

        def score(job: tuple[str, str], seed: int) -> dict[str, float]:
            name, size = job
            stream = builtin_pairs("train", 5000, seed, rows=BATCHES[size])
            model = trained(_translator(NORMS[name], layers), seed, stream, steps)
            loss = evaluate(model, test).loss
            return {"loss": loss, "training_mode": _training_loss(model, test)}

        scores = effort.each(product(NORMS, BATCHES), score)
        runs = {name: {size: scores[name, size] for size in BATCHES} for name in NORMS}
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
        by_batch = [a - b for a, b in zip(worse, worse_with_large, strict=True)]
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
            "more so than with large ones": above(by_batch, 0.0) if learned else None,
        }
        return judge_sentences(sentences, reason, main=main)

    def show(self, numbers: Numbers) -> list[Shown]:
        runs = numbers["runs"]
        sizes = numbers["batches"]
        moved = {"replaced": "other sentences replaced", "shortened": "others shortened"}
        rows = [
            [name, str(sizes[size]), *cells(each, ["loss", "training_mode"])]
            for name, of_size in runs.items()
            for size, each in of_size.items()
        ]
        return [
            bar_chart(
                "How far an output moves with the rest of the batch",
                "relative change",
                numbers["moves"],
                moved,
                log=True,
            ),
            BarChart(
                "Test loss by the size of training batches",
                Axis("loss, nats a token"),
                list(runs),
                [
                    bars({name: runs[name][size] for name in runs}, "loss", f"{rows} sentences")
                    for size, rows in sizes.items()
                ],
            ),
            Table(
                OVER_SEEDS,
                ["norm", "sentences a batch", "test loss", "… with statistics of the batch"],
                rows,
            ),
        ]


def _translator(norm: spec.Norm, layers: int) -> spec.Model:
    """The small translator with this norm in all blocks."""
    return with_block(translator(len(builtin_vocabulary()), 32, layers=layers), norm=norm)


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
    length = batch.source.shape[1]
    first = batch.source[:1]
    replaced = torch.full_like(batch.source, PADDING)
    replaced[0] = first
    width = min(length, other.source.shape[1])
    replaced[1:, :width] = other.source[1:, :width]
    shortened = batch.source.clone()
    # Four tokens of each other sentence are left.
    shortened[1:, 4:] = PADDING
    # As it is, with other sentences, with shorter ones.
    sources = [batch.source, replaced, shortened]
    outputs = [model.encode(source, source != PADDING).hidden for source in sources]
    real = first[0] != PADDING
    # Padding of the first row does not count.
    base, *changed = [output[0, real] for output in outputs]
    return {
        name: float((output - base).norm() / base.norm())
        for name, output in zip(("replaced", "shortened"), changed, strict=True)
    }


@torch.no_grad()
def _training_loss(model: Any, test: list[Batch]) -> float:
    """The loss with the statistics of the test batches themselves, as in training."""
    # `evaluate` would use the running statistics of BatchNorm.
    model.train()
    return mean(float(mean_loss(logits(model, batch), batch.targets)) for batch in test)


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

    name = "norm_placement"
    source = "Xiong et al. 2020, Theorem 1 and Section 4"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        task = TaskBatches(Copying(max_length=5), LETTERS)
        depths = effort.choose([2, 6, 12], [2, 4, 6, 12, 24])
        layers = effort.choose(3, 6)
        steps = effort.choose(100, 200)
        rates = effort.choose((0.001, 0.01), RATES)
        gradients = {
            name: [
                [_gradients(task, place, depth, seed) for depth in depths] for seed in effort.seeds
            ]
            for name, place in PLACES.items()
        }
        runs = [f"{name}, {warmup}" for name in PLACES for warmup in ("warm-up", "none")]
        losses = effort.each(
            runs,
            lambda name, seed: [_train(task, name, layers, rate, steps, seed) for rate in rates],
        )
        return {
            "depths": depths,
            "gradients": gradients,
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
            [
                without - warm
                for without, warm in zip(
                    losses[f"{name}, none"], losses[f"{name}, warm-up"], strict=True
                )
            ]
            for name in PLACES
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
        facts = [gradients_differ, bool(needed)]
        return judge(all(facts), any(facts), reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        depths = numbers["depths"]
        gradients = numbers["gradients"]
        rates = numbers["rates"]
        norm = Axis("norm", log=True)
        last = {name: [[at[-1] for at in run] for run in runs] for name, runs in gradients.items()}
        deepest = {name: [run[-1] for run in runs] for name, runs in gradients.items()}
        return [
            chart(
                "Gradient of the last layer, at the start",
                Axis("layers", ticks=tuple(depths)),
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
                Axis("learning rate", log=True, ticks=tuple(rates)),
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


def _model(task: TaskBatches, place: str, layers: int) -> spec.Model:
    sizes = {"d_model": 64, "heads": 2, "d_ff": 128}
    return language_model(len(task.vocabulary), 32, layers=layers, residual=place, **sizes)


def _gradients(task: TaskBatches, place: str, depth: int, seed: int) -> list[float]:
    """The norm of the gradient in the outer feed-forward weights of each layer."""
    # At the initial weights: no step has been taken.
    model: Any = build_seeded(_model(task, place, depth), seed)
    batch = next(task.stream("train", seed))
    mean_loss(logits(model, batch), batch.targets).backward()  # type: ignore[no-untyped-call]
    return [float(block.feedforward.outer.weight.grad.norm()) for block in model.stack.blocks]


def _train(task: TaskBatches, name: str, layers: int, rate: float, steps: int, seed: int) -> float:
    """The test loss after training; `name` says where the norm is and whether rates warm up."""
    place, _, warmup = name.partition(", ")
    # A warm-up of one step is none.
    # A quarter, because steps are few: the paper's 4 % would be 4 to 8 of them.
    schedule = ConstantRate(rate, steps // 4 if warmup == "warm-up" else 1)
    # Without clipping, which would hide what large gradients do.
    model = trained(
        _model(task, PLACES[place], layers),
        seed,
        task.stream("train", seed),
        steps,
        schedule=schedule,
        clip=None,
    )
    return evaluate(model, list(islice(task.stream("test", 0), 4))).loss
