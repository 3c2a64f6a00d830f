"""Post-norm and pre-norm: gradients at the start, and training without warm-up."""

from __future__ import annotations

from itertools import islice
from typing import Any

from regard import spec
from regard.data.generated.algorithmic_tasks import LETTERS, Copying
from regard.lab.study.figure import Table, mean, mean_text, means
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    TaskBatches,
    build_seeded,
    evaluate,
    language_model,
    logits,
    mean_loss,
    trained,
)
from regard.look.drawing import Axis, Chart, Figure, Series
from regard.training.engine.optimizer import ConstantRate

# Words of `families/preset_changes.RESIDUALS`.
PLACES = {"post-norm": "post", "pre-norm": "pre"}
RATES = (0.001, 0.003, 0.01)
FALLS = 1.5  # factor between gradients that counts as a change
NEEDED = 0.5  # nats by which a loss must rise without warm-up


class NormPlacement(Study):
    name = "norm_placement"
    claim = (
        "With post-norm the gradients near the output are large at the start, so that training "
        "needs warm-up; with pre-norm they shrink with depth, and warm-up can be left out."
    )
    source = "Xiong et al. 2020, Theorem 1 and Section 4"
    measurement = (
        "Language models that copy letters, at their initial weights, with 2 to 24 layers: the "
        "gradient's norm in the last feed-forward layer, and in each layer of the deepest. Then "
        "test losses after training with several learning rates, with warm-up and without."
    )
    rule = (
        f"Two statements: from the smallest to the largest depth the last layer's gradient falls "
        f"by a factor of {FALLS:g} or more with pre-norm, and less with post-norm; at some rate "
        f"the loss without warm-up is higher than with it by more than {NEEDED:g} nats with "
        "post-norm, and by less than that with pre-norm. Holds if both are true, within limits if "
        "one is."
    )
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        task = TaskBatches(Copying(max_length=5), LETTERS)
        depths = effort.choose([2, 6, 12], [2, 4, 6, 12, 24])
        layers = effort.choose(3, 6)
        steps = effort.choose(100, 200)
        rates = effort.choose((0.001, 0.01), RATES)
        progress(0.0, "gradients at the start")
        gradients = {
            name: [
                [_gradients(task, place, depth, seed) for depth in depths] for seed in effort.seeds
            ]
            for name, place in PLACES.items()
        }
        runs = [f"{name}, {warmup}" for name in PLACES for warmup in ("warm-up", "none")]
        losses = effort.each(
            progress,
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
        # The first over the last depth, in the last layer of each.
        falls = {
            name: mean([run[0][-1] / run[-1][-1] for run in runs])
            for name, runs in numbers["gradients"].items()
        }
        losses = {name: means(runs) for name, runs in numbers["losses"].items()}
        rises = {
            name: [
                without - with_warmup
                for without, with_warmup in zip(
                    losses[f"{name}, none"], losses[f"{name}, warm-up"], strict=True
                )
            ]
            for name in PLACES
        }
        # Rates at which post-norm needs a warm-up and pre-norm does not.
        needed = [
            rate
            for rate, post, pre in zip(
                numbers["rates"], rises["post-norm"], rises["pre-norm"], strict=True
            )
            if post > NEEDED > pre
        ]
        # Theorem 1: of order 1/√layers with pre-norm, independent of them with post-norm.
        gradients_differ = falls["pre-norm"] >= FALLS > falls["post-norm"]
        depths = numbers["depths"]
        # The rate that decides, or the highest one.
        at = numbers["rates"].index(needed[-1]) if needed else -1
        reason = (
            f"From {depths[0]} to {depths[-1]} layers the last layer's gradient falls by a factor "
            f"of {falls['pre-norm']:.2f} with pre-norm and {falls['post-norm']:.2f} with "
            f"post-norm. At a rate of {numbers['rates'][at]:g} the loss without warm-up is higher "
            f"by {rises['post-norm'][at]:.2f} nats with post-norm and {rises['pre-norm'][at]:.2f} "
            "with pre-norm."
        )
        facts = [gradients_differ, bool(needed)]
        return judge(all(facts), any(facts), reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        depths = numbers["depths"]
        gradients = numbers["gradients"]
        by_depth = [
            Series.over_seeds(name, depths, [[at[-1] for at in run] for run in runs])
            for name, runs in gradients.items()
        ]
        # The deepest stack, layer by layer.
        layers = list(range(1, depths[-1] + 1))
        by_layer = [
            Series.over_seeds(name, layers, [run[-1] for run in runs])
            for name, runs in gradients.items()
        ]
        rates = numbers["rates"]
        losses = [Series.over_seeds(name, rates, runs) for name, runs in numbers["losses"].items()]
        return [
            Chart(
                "Gradient of the last layer, at the start",
                Axis("layers", ticks=tuple(depths)),
                Axis("norm", log=True),
                by_depth,
            ),
            Chart(
                f"Gradient of each layer, of {depths[-1]}",
                Axis("layer"),
                Axis("norm", log=True),
                by_layer,
            ),
            Chart(
                f"Loss after {numbers['steps']} steps, {numbers['layers']} layers",
                Axis("learning rate", log=True, ticks=tuple(rates)),
                Axis("test loss, nats a token", low=0.0),
                losses,
            ),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = [
            [name, *map(mean_text, zip(*runs, strict=True))]
            for name, runs in numbers["losses"].items()
        ]
        columns = ["norm, warm-up", *(f"rate {rate:g}" for rate in numbers["rates"])]
        return [Table("Test loss, mean ± standard deviation over the seeds", columns, rows)]


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
