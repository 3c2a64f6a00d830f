"""Small language models: warm-up, batches, depth before width, data hunger."""

from __future__ import annotations

import math
from itertools import pairwise, takewhile
from typing import Any

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.families.presets import preset
from regard.lab.study.evidence import (
    above,
    every,
    failures,
    judge_sentences,
    negated,
    reductions,
    without_failed,
)
from regard.lab.study.figure import (
    Shown,
    Table,
    chart,
    chart_and_table,
    column,
    curve_cells,
    deviation,
    mean,
    mean_text,
    table_of_columns,
    transposed,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    ROW,
    Batch,
    build_seeded,
    builtin_task,
    builtin_text,
    builtin_vocabulary,
    character_text,
    evaluate,
    language_model,
    non_embedding_parameters,
    train,
)
from regard.look.drawing import Axis, Chart, Series
from regard.training.engine.optimizer import ConstantRate, LinearDecay

RATES = [0.001, 0.003, 0.01]
LAYERS = 6  # gradients of post-norm differ more, the deeper the stack (Xiong et al., Section 3)
LAST = 20  # steps over which the final loss is averaged


class Warmup(Study):
    """The learning rate must be warmed up: a post-norm Transformer that starts at the full rate
    trains badly or diverges.

    A post-norm language model of {LAYERS} layers on the built-in language, trained with Adam at
    constant peak rates, with a linear warm-up over the first quarter of the steps and without: the
    mean training loss of the last {LAST} steps.
    """

    source = "Vaswani et al. 2017, Section 5.3; Xiong et al. 2020, Section 1"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(100, 600)  # each run sees its rate for three quarters of them
        # A quarter, as 4,000 steps are of the first 16,000 of the paper's schedule.
        warmups = {"with": steps // 4, "without": 0}
        # Post-norm, as in the paper: pre-norm needs warm-up less (Xiong et al., Section 4).
        description = language_model(
            len(builtin_vocabulary()), d_model=32, d_ff=128, layers=LAYERS, residual="post"
        )

        def final_loss(name: str, rate: float, seed: int) -> float:
            model = build_seeded(description, seed)
            schedule = ConstantRate(rate, warmups[name])
            batches = builtin_text("train", 20_000, seed)
            return mean(train(model, batches, steps, schedule=schedule)[-LAST:])

        return {"rates": RATES, "losses": effort.each_pair(warmups, RATES, final_loss)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if warm-up lowers the final loss by 0.1 nats or more both at the highest rate and
        when each variant takes its own best rate; within limits if only at the highest rate: then a
        lower rate does instead of warm-up."""
        warm, cold = (
            [mean(numbers["losses"][name][str(rate)]) for rate in numbers["rates"]]
            for name in ("with", "without")
        )
        at_highest = cold[-1] - warm[-1]
        # Each variant may choose its rate, as one would who tunes it.
        at_best = min(cold) - min(warm)
        return judge(
            at_best >= 0.1,
            at_highest >= 0.1,
            f"Warm-up lowers the final loss by {at_highest:.2f} nats at the rate "
            f"{numbers['rates'][-1]}, and by {at_best:.2f} between the best rates ({min(warm):.2f} "
            f"against {min(cold):.2f}).",
        )

    def show(self, numbers: Numbers) -> Shown:
        rates = numbers["rates"]
        curves = {
            f"{name} warm-up": transposed(by_rate.values())
            for name, by_rate in numbers["losses"].items()
        }
        unit = "final training loss, nats a token"
        return chart_and_table("Warm-up", "peak learning rate", unit, rates, curves, log_x=True)


# ------------------------------------------------------------------ larger batches

SENTENCES = (4, 16, 64)  # in a batch
BUDGETS = {"examples": "equal examples", "updates": "equal updates"}
GAINS = 0.01  # share of the loss by which larger batches must be better


class BatchSize(Study):
    """Larger batches are better: with as many updates, and with as many examples.

    Language models of the built-in English, trained on batches of {SENTENCES} sentences: all on as
    many sentences, so that larger batches make fewer updates, and all with as many updates, so that
    larger batches read more. Each with two learning rates, of which the one with the lowest
    validation loss over the seeds counts; test loss.
    """

    source = "Practical advice (the larger the better); against it Shallue et al. 2019, Section 4"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        examples = effort.choose(2048, 6400)
        # As many updates as the middle size makes.
        updates = examples // SENTENCES[1]
        rates = effort.choose([0.01], [0.01, 0.03])
        vocabulary = len(builtin_vocabulary())
        held_out = next(builtin_text("test", 800, seed=0, rows=effort.choose(100, 400)))
        half = len(held_out.tokens) // 2
        halves = [
            Batch(held_out.tokens[part], held_out.targets[part])
            for part in (slice(half), slice(half, None))
        ]

        def losses(job: tuple[int, int, float], seed: int) -> list[float]:
            """The losses of validation and test."""
            rows, steps, rate = job
            model = build_seeded(language_model(vocabulary, d_model=32, d_ff=128), seed)
            batches = builtin_text("train", 20_000, seed, rows)
            train(model, batches, steps, schedule=LinearDecay(rate, steps // 10, steps))
            return [evaluate(model, [one]).loss for one in halves]

        steps = {
            "examples": {rows: examples // rows for rows in SENTENCES},
            "updates": dict.fromkeys(SENTENCES, updates),
        }
        # What both budgets have in common is trained once.
        pairs = {(rows, of[rows]) for of in steps.values() for rows in SENTENCES}
        jobs = [(*pair, rate) for pair in sorted(pairs) for rate in rates]
        runs = effort.each(jobs, losses)

        def best(rows: int, steps: int) -> Numbers:
            rate = min(rates, key=lambda rate: mean(column(runs[rows, steps, rate], 0)))
            return {"steps": steps, "rate": rate, "losses": column(runs[rows, steps, rate], 1)}

        return {
            budget: {rows: best(rows, count) for rows, count in of_size.items()}
            for budget, of_size in steps.items()
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Of each budget: the loss with the largest batches is lower by 1 % or more than with the
        smallest, over the seeds (Student's t, 95 %). Holds if it is for both, within limits if it
        is for one; else it does not hold, or is too small to say where the seeds do not tell."""
        better = {}
        parts = []
        for budget, name in BUDGETS.items():
            smallest, *_, largest = (one["losses"] for one in numbers[budget].values())
            better[f"better with {name}"] = above(reductions(largest, smallest), GAINS)
            parts.append(
                f"with {name} batches of {SENTENCES[-1]} sentences have a loss of "
                f"{mean_text(largest)}, of {SENTENCES[0]} {mean_text(smallest)}"
            )
        reason = "; ".join(parts)
        return judge_sentences(better, f"{reason[0].upper()}{reason[1:]}.")

    def show(self, numbers: Numbers) -> Shown:
        curves = {
            name: transposed(one["losses"] for one in numbers[budget].values())
            for budget, name in BUDGETS.items()
        }
        rows = [
            [name, str(size), f"{one['steps']:,}", f"{one['rate']:g}", mean_text(one["losses"])]
            for budget, name in BUDGETS.items()
            for size, one in numbers[budget].items()
        ]
        title = "Test loss over the batch size"
        unit = "sentences in a batch"
        columns = ["", unit, "updates", "best rate", "test loss"]
        return [
            chart(title, unit, "nats a token", SENTENCES, curves, log_x=True),
            Table(title, columns, rows),
        ]


# ------------------------------------------------------------------ depth before width

DEPTHS = [1, 2, 4, 8]
HEADS = 4
BUDGET = 50_000  # parameters of the blocks: those of 4 layers of width 32


class Depth(Study):
    """At equal numbers of parameters, a deeper Transformer is better than a wider one.

    Pre-norm language models of the built-in language with {DEPTHS} layers, whose width is chosen so
    that their blocks have about {BUDGET:,} parameters, trained for the same number of steps: loss
    on held-out sentences.
    """

    source = (
        "Practical advice (depth before width); Kaplan et al. 2020, Figure 5, finds the shape to "
        "matter little"
    )

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(120, 1200)
        widths = {depth: width_of(depth) for depth in DEPTHS}
        task = builtin_task(builtin_text, [next(builtin_text("test", 600, seed=0, rows=100))])
        return {
            "widths": widths,
            "parameters": {n: non_embedding_parameters(_deep_model(n, widths[n])) for n in DEPTHS},
            "losses": effort.each(
                DEPTHS,
                lambda depth, seed: task.score(_deep_model(depth, widths[depth]), seed, steps).loss,
            ),
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the loss falls from each depth to the next by more than the standard deviation
        over the seeds; within limits if some deeper model is better than the shallowest by that
        much, but the best is not the deepest."""
        losses = {depth: mean(values) for depth, values in numbers["losses"].items()}
        # The largest over the depths: deeper models vary more.
        noise = max(map(deviation, numbers["losses"].values()))
        first, *deeper = losses.values()
        # Every step deeper must pay, not only the first.
        falls = all(deep < shallow - noise for shallow, deep in pairwise(losses.values()))
        listed = ", ".join(f"{depth} layers {loss:.3f}" for depth, loss in losses.items())
        return judge(
            falls,
            min(deeper) < first - noise,
            f"Held-out loss: {listed}; the standard deviation over seeds is {noise:.3f}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        losses = numbers["losses"]
        columns = {
            "layers": losses,
            "d_model": map(str, numbers["widths"].values()),
            "parameters of the blocks": map("{:,}".format, numbers["parameters"].values()),
            "held-out loss": map(mean_text, losses.values()),
        }
        return [
            chart(
                "Held-out loss over depth",
                "layers",
                "nats a token",
                [*map(int, losses)],
                {"equal parameters": transposed(losses.values())},
                log_x=True,
            ),
            table_of_columns("Depth and width", columns),
        ]


def _deep_model(depth: int, width: int) -> spec.Model:
    words = len(builtin_vocabulary())
    return language_model(words, layers=depth, d_model=width, d_ff=4 * width, heads=HEADS)


def width_of(depth: int) -> int:
    """The multiple of the number of heads for which the blocks come nearest to the budget."""
    # Heads divide the width. Wide models have more embeddings; the budget is of what computes.
    widths = range(2 * HEADS, 129, HEADS)
    return min(
        widths, key=lambda width: abs(non_embedding_parameters(_deep_model(depth, width)) - BUDGET)
    )


WIDTHS = [16, 32, 64]
AT_WIDTH = 32  # at which the data are varied
MODELS = ("LSTM", "Transformer")
MATTERS = 0.01  # share of the loss by which two losses must differ
CHECKS = 25  # of the validation loss during a training run
PATIENCE = 5  # checks without a lower one, after which it ends
CHANCE = 3.97  # nats: a uniform guess among the 53 characters of the built-in language


class DataHunger(Study):
    """Transformers have a weak inductive bias: with little data they do worse than recurrent
    networks; with more parameters they go on improving, where recurrent networks saturate.

    Language models of characters, an LSTM and a Transformer of about equal size, trained for the
    same number of steps on corpora of several sizes, and at several widths on the whole corpus: the
    test loss where the validation loss is lowest (early stopping).
    """

    source = "Kaplan et al. 2020, Figure 7 (LSTMs plateau); Tay et al. 2022 on inductive bias"
    seeds = (1, 3)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(150, 1500)
        # From what a model soon knows by heart to what it reads a few times at most.
        sizes = effort.choose([2_000, 500_000], [2_000, 10_000, 500_000])
        widths = effort.choose(WIDTHS[:2], WIDTHS)
        # Data are varied at one width, widths on the whole corpus.
        jobs = [(AT_WIDTH, n) for n in sizes]
        jobs += [(width, sizes[-1]) for width in widths if width != AT_WIDTH]
        losses = effort.each_pair(
            MODELS, jobs, lambda name, job, seed: _hunger_loss(name, *job, seed, steps)
        )
        return {
            "parameters": {
                name: [parameter_count(_ladder_model(name, width)) for width in widths]
                for name in MODELS
            },
            "by_data": {name: {n: losses[name][AT_WIDTH, n] for n in sizes} for name in MODELS},
            "by_width": {name: {w: losses[name][w, sizes[-1]] for w in widths} for name in MODELS},
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Over the seeds (Student's t, 95 %): with the least data the LSTM's loss is lower by 1 %
        or more; from the second largest width to the largest the Transformer's falls by 1 % or
        more, and the LSTM's does not. Holds if both are so, within limits if one is, else it does
        not hold. Seeds whose loss is 95 % or more of a uniform guess have failed to train, and are
        left out; too small to say where the seeds do not tell."""
        by_data = numbers["by_data"]
        # Numbers are stored from the smallest corpus to the largest.
        least, *_ = by_data["LSTM"]
        with_least = {name: without_failed(by_data[name][least], CHANCE) for name in MODELS}
        gains = reductions(with_least["LSTM"], with_least["Transformer"])
        falls = {}
        for name, by_width in numbers["by_width"].items():
            *_, before, last = (without_failed(losses, CHANCE) for losses in by_width.values())
            falls[name] = reductions(last, before)
        listed = ", ".join(f"{mean(fall):.1%} ({name})" for name, fall in falls.items() if fall)
        sentences = {
            "with little data the LSTM is better": above(gains, MATTERS),
            "the LSTM saturates where the Transformer goes on": every(
                [above(falls["Transformer"], MATTERS), negated(above(falls["LSTM"], MATTERS))]
            ),
        }
        return judge_sentences(
            sentences,
            f"On {int(least):,} characters the LSTM has a loss of "
            f"{mean(by_data['LSTM'][least]):.3f}, the Transformer of "
            f"{mean(by_data['Transformer'][least]):.3f}.{failures(with_least)} The last step in "
            f"width lowers the loss by {listed}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        by_data, by_width = (
            {name: transposed(losses.values()) for name, losses in numbers[key].items()}
            for key in ("by_data", "by_width")
        )
        sizes = [*map(int, numbers["by_data"]["LSTM"])]
        over_size = []
        columns: dict[str, Any] = {"width": numbers["by_width"]["LSTM"]}
        for name, counts in numbers["parameters"].items():
            over_size.append(Series.over_seeds(name, counts, by_width[name]))
            columns[f"{name}, parameters"] = map("{:,}".format, counts)
            columns[f"{name}, loss"] = curve_cells(by_width[name])
        unit = "nats a character"
        corpus = "characters of the corpus"
        return [
            *chart_and_table("Loss over data", corpus, unit, sizes, by_data, log_x=True),
            Chart("Loss over size", Axis("parameters", log=True), Axis(unit), over_size),
            table_of_columns("Held-out loss by size", columns),
        ]


def _ladder_model(name: str, width: int) -> spec.Model:
    vocabulary = len(character_text().characters)
    if name == "LSTM":
        # An LSTM layer has 8·d² weights, a Transformer layer 12·d²: √3 of the width for 2 layers.
        width = round(width * math.sqrt(3))
        return preset("lstm-lm:tiny", vocabulary, ROW, d_model=width, layers=1, dropout=0.0)
    # d_ff = 4·d_model and 4 heads at every width: only the size is varied.
    return language_model(vocabulary, d_model=width, d_ff=4 * width)


def _hunger_loss(name: str, width: int, characters: int, seed: int, steps: int) -> float:
    text = character_text()
    # The first so many characters, again and again.
    batches = text.batches(seed, 16, characters=characters)
    tokens, targets, _ = text.held_out(120)
    # Validation and test.
    halves = [*map(Batch, tokens.split(60), targets.split(60))]
    model = build_seeded(_ladder_model(name, width), seed)
    # Wide models need lower rates, or they diverge.
    schedule = LinearDecay(0.003 * min(1.0, 64 / width), steps // 10, steps)
    checked: list[list[float]] = []

    def check(step: int) -> None:
        if step % max(1, steps // CHECKS) == 0:
            checked.append([evaluate(model, [half]).loss for half in halves])

    def goes_on(batch: Batch) -> bool:
        # The lowest validation loss is one of the last few.
        return min(checked[-PATIENCE:], default=[]) == min(checked, default=[])

    train(model, takewhile(goes_on, batches), steps, schedule=schedule, on_step=check)
    return min(checked)[1]
