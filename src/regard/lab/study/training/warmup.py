"""Learning-rate warm-up: does a post-norm Transformer need it?"""

from __future__ import annotations

from itertools import product

from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    build_seeded,
    builtin_text,
    builtin_vocabulary,
    language_model,
    train,
)
from regard.look.drawing import Axis, Chart, Figure, Series
from regard.training.engine.optimizer import ConstantRate

RATES = [0.001, 0.003, 0.01]
LAYERS = 6  # gradients of post-norm differ more, the deeper the stack (Xiong et al., Section 3)
LAST = 20  # steps over which the final loss is averaged


class Warmup(Study):
    name = "warmup"
    claim = (
        "The learning rate must be warmed up: a post-norm Transformer that starts at the full rate "
        "trains badly or diverges."
    )
    source = "Vaswani et al. 2017, Section 5.3; Xiong et al. 2020, Section 1"
    measurement = (
        f"A post-norm language model of {LAYERS} layers on the built-in language, trained with "
        "Adam at constant peak rates, with a linear warm-up over the first quarter of the steps "
        f"and without: the mean training loss of the last {LAST} steps."
    )
    rule = (
        "Holds if warm-up lowers the final loss by 0.1 nats or more both at the highest rate and "
        "when each variant takes its own best rate; within limits if only at the highest rate: "
        "then a lower rate does instead of warm-up."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(100, 600)  # each run sees its rate for three quarters of them
        # A quarter, as 4,000 steps are of the first 16,000 of the paper's schedule.
        warmups = {"with": steps // 4, "without": 0}
        runs = effort.each(
            progress,
            product(warmups, RATES),
            lambda job, seed: _final_loss(seed, job[1], warmups[job[0]], steps),
        )
        losses = {name: {str(rate): runs[name, rate] for rate in RATES} for name in warmups}
        return {"rates": RATES, "losses": losses}

    def verdict(self, numbers: Numbers) -> Verdict:
        rates = [str(rate) for rate in numbers["rates"]]
        warm = [mean(numbers["losses"]["with"][rate]) for rate in rates]
        cold = [mean(numbers["losses"]["without"][rate]) for rate in rates]
        at_highest = cold[-1] - warm[-1]
        # Each variant may choose its rate, as one would who tunes it.
        at_best = min(cold) - min(warm)
        reason = (
            f"Warm-up lowers the final loss by {at_highest:.2f} nats at the rate {rates[-1]}, and "
            f"by {at_best:.2f} between the best rates ({min(warm):.2f} against {min(cold):.2f})."
        )
        return judge(at_best >= 0.1, at_highest >= 0.1, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        rates = numbers["rates"]
        series = []
        for name, key in (("warm-up", "with"), ("no warm-up", "without")):
            by_rate = [numbers["losses"][key][str(rate)] for rate in rates]
            # by_rate is [rates][seeds]; a series takes [seeds][rates].
            series.append(Series.over_seeds(name, rates, list(zip(*by_rate, strict=True))))
        x = Axis("peak learning rate", log=True, ticks=tuple(rates))
        return [Chart("Final loss over the learning rate", x, Axis("nats a token"), series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        losses = numbers["losses"]
        rows = [
            [f"{rate:g}", *(mean_text(losses[key][str(rate)]) for key in ("with", "without"))]
            for rate in numbers["rates"]
        ]
        return [Table("Final training loss", ["peak rate", "warm-up", "no warm-up"], rows)]


def _final_loss(seed: int, rate: float, warmup: int, steps: int) -> float:
    words = builtin_vocabulary()
    # Post-norm, as in the paper: pre-norm needs warm-up less (Xiong et al., Section 4).
    description = language_model(
        len(words), 64, d_model=32, d_ff=128, layers=LAYERS, residual="post"
    )
    model = build_seeded(description, seed)
    batches = builtin_text("train", 20_000, seed, rows=16)
    losses = train(model, batches, steps, schedule=ConstantRate(rate, warmup))
    return mean(losses[-LAST:])
