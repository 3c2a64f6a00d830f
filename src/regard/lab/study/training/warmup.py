"""Learning-rate warm-up: does a post-norm Transformer need it?"""

from __future__ import annotations

from regard.lab.study import training_run
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.look.drawing import Axis, Chart, Figure, Series
from regard.training.engine.lr_schedule import ConstantRate

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
        jobs = [(s, rate, warm) for s in effort.seeds for rate in RATES for warm in (True, False)]
        losses: dict[str, dict[str, list[float]]] = {"with": {}, "without": {}}
        for seed, rate, warm in progress.over(jobs, lambda job: f"rate {job[1]}, seed {job[0]}"):
            variant = losses["with" if warm else "without"]
            # A quarter, as 4,000 steps are of the first 16,000 of the paper's schedule.
            warmup = steps // 4 if warm else 0
            variant.setdefault(str(rate), []).append(_final_loss(seed, rate, warmup, steps))
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
        if at_highest < 0.1:
            return Verdict(Outcome.FAILS, reason)
        return Verdict(Outcome.HOLDS if at_best >= 0.1 else Outcome.LIMITED, reason)

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
        rows = []
        for rate in numbers["rates"]:
            cells = [mean_text(numbers["losses"][key][str(rate)]) for key in ("with", "without")]
            rows.append([f"{rate:g}", *cells])
        return [Table("Final training loss", ["peak rate", "warm-up", "no warm-up"], rows)]


def _final_loss(seed: int, rate: float, warmup: int, steps: int) -> float:
    words = training_run.builtin_vocabulary()
    # Post-norm, as in the paper: pre-norm needs warm-up less (Xiong et al., Section 4).
    description = training_run.language_model(
        len(words), 64, d_model=32, d_ff=128, layers=LAYERS, residual="post"
    )
    model = training_run.build_seeded(description, seed)
    batches = training_run.builtin_text("train", 20_000, seed, rows=16)
    losses = training_run.train(model, batches, steps, schedule=ConstantRate(rate, warmup))
    return mean(losses[-LAST:])
