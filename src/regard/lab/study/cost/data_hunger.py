"""Data hunger and saturation: recurrent and Transformer ladders over size and data."""

from __future__ import annotations

import math
from itertools import product

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.families.presets import preset
from regard.lab.study.character_text import LENGTH, character_text
from regard.lab.study.evidence import (
    above,
    changes,
    every,
    failures,
    judge_sentences,
    negated,
    without_failed,
)
from regard.lab.study.figure import Shown, Table, chart, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.lab.study.training_run import Batch, build_seeded, evaluate, language_model, train
from regard.look.drawing import Axis, Chart, Series
from regard.training.engine.optimizer import ConstantRate

WIDTHS = [16, 32, 64, 128, 256]
AT_WIDTH = 32  # at which the data are varied
MODELS = ("LSTM", "Transformer")
MATTERS = 0.01  # share of the loss by which two losses must differ
CHECKS = 25  # of the validation loss during a training run
CHANCE = 3.97  # nats: a uniform guess among the 53 characters of the built-in language


class DataHunger(Study):
    """Transformers have a weak inductive bias: with little data they do worse than recurrent
    networks; with more parameters they go on improving, where recurrent networks saturate.

    Language models of characters, an LSTM and a Transformer of about equal size, trained for the
    same number of steps on corpora of several sizes, and at several widths on the whole corpus: the
    test loss where the validation loss is lowest (early stopping).
    """

    name = "data_hunger"
    source = "Kaplan et al. 2020, Figure 7 (LSTMs plateau); Tay et al. 2022 on inductive bias"
    seeds = (1, 4)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(150, 3000)
        # From what a model soon knows by heart to what it reads a few times at most.
        sizes = effort.choose([2_000, 500_000], [2_000, 10_000, 50_000, 500_000])
        widths = effort.choose(WIDTHS[:3], WIDTHS)
        # Data are varied at one width, widths on the whole corpus.
        jobs = [(AT_WIDTH, n) for n in sizes]
        jobs += [(width, sizes[-1]) for width in widths if width != AT_WIDTH]
        losses = effort.each(
            product(MODELS, jobs), lambda job, seed: _loss(job[0], *job[1], seed, steps)
        )
        return {
            "parameters": {
                name: [parameter_count(_model(name, width)) for width in widths] for name in MODELS
            },
            "by_data": {
                name: {str(n): losses[name, (AT_WIDTH, n)] for n in sizes} for name in MODELS
            },
            "by_width": {
                name: {str(w): losses[name, (w, sizes[-1])] for w in widths} for name in MODELS
            },
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Over the seeds (Student's t, 95 %): with the least data the LSTM's loss is lower by 1 %
        or more; from the second largest width to the largest the Transformer's falls by 1 % or
        more, and the LSTM's does not. Holds if both are so, within limits if one is, else it does
        not hold. Seeds whose loss is 95 % or more of a uniform guess have failed to train, and are
        left out; too small to say where the seeds do not tell."""
        # Numbers are stored from the smallest corpus to the largest.
        least = next(iter(numbers["by_data"]["LSTM"]))
        with_least = {
            name: without_failed(numbers["by_data"][name][least], CHANCE) for name in MODELS
        }
        gains = [-one for one in changes(with_least["LSTM"], with_least["Transformer"])]
        falls = {}
        for name in MODELS:
            before, last = list(numbers["by_width"][name].values())[-2:]
            falls[name] = [
                -one
                for one in changes(without_failed(last, CHANCE), without_failed(before, CHANCE))
            ]
        reason = (
            f"On {int(least):,} characters the LSTM has a loss of "
            f"{mean(numbers['by_data']['LSTM'][least]):.3f}, the Transformer of "
            f"{mean(numbers['by_data']['Transformer'][least]):.3f}."
            f"{failures(with_least)} The last step in width lowers the loss by "
            + ", ".join(f"{mean(fall):.1%} ({name})" for name, fall in falls.items() if fall)
            + "."
        )
        sentences = {
            "with little data the LSTM is better": above(gains, MATTERS),
            "the LSTM saturates where the Transformer goes on": every(
                [above(falls["Transformer"], MATTERS), negated(above(falls["LSTM"], MATTERS))]
            ),
        }
        return judge_sentences(sentences, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        by_data = numbers["by_data"]
        by_width = numbers["by_width"]
        y = Axis("nats a character")
        over_size = [
            Series.over_seeds(name, numbers["parameters"][name], _by_seed(of_model))
            for name, of_model in by_width.items()
        ]
        data = [
            [f"{int(size):,}", *(mean_text(by_data[name][size]) for name in MODELS)]
            for size in by_data["LSTM"]
        ]
        sizes = [
            [
                width,
                *(
                    cell
                    for name in MODELS
                    for cell in (
                        f"{numbers['parameters'][name][index]:,}",
                        mean_text(by_width[name][width]),
                    )
                ),
            ]
            for index, width in enumerate(by_width["LSTM"])
        ]
        return [
            chart(
                "Loss over data",
                Axis("characters of the corpus", log=True),
                y,
                list(map(int, by_data["LSTM"])),
                {name: _by_seed(of_model) for name, of_model in by_data.items()},
            ),
            Chart("Loss over size", Axis("parameters", log=True), y, over_size),
            Table("Held-out loss by corpus", ["characters", *MODELS], data),
            Table(
                "Held-out loss by size",
                ["width", "LSTM, parameters", "loss", "Transformer, parameters", "loss"],
                sizes,
            ),
        ]


def _by_seed(of_model: dict[str, list[float]]) -> list[tuple[float, ...]]:
    """The losses of each seed: they are stored for each setting."""
    return list(zip(*of_model.values(), strict=True))


def _model(name: str, width: int) -> spec.Model:
    vocabulary = len(character_text().characters)
    if name == "LSTM":
        # An LSTM layer has 8·d² weights, a Transformer layer 12·d²: √3 of the width for 2 layers.
        width = round(width * math.sqrt(3))
        return preset("lstm-lm:tiny", vocabulary, LENGTH, d_model=width, layers=1, dropout=0.0)
    # d_ff = 4·d_model and 4 heads at every width: only the size is varied.
    return language_model(vocabulary, LENGTH, d_model=width, d_ff=4 * width, heads=4)


def _loss(name: str, width: int, characters: int, seed: int, steps: int) -> float:
    text = character_text()
    # The first so many characters, again and again.
    batches = text.batches(seed, 16, characters=characters)
    held_out = text.held_out(120)
    validation, test = (
        Batch(held_out.tokens[half], held_out.targets[half]) for half in (slice(60), slice(60, 120))
    )
    model = build_seeded(_model(name, width), seed)
    checked: list[tuple[float, float]] = []

    def check(step: int, _: float) -> None:
        if step % max(1, steps // CHECKS) == 0:
            checked.append((evaluate(model, [validation]).loss, evaluate(model, [test]).loss))
            # Evaluation has switched dropout off, and training goes on.
            model.train()

    # Wide models need lower rates, or they diverge.
    rate = 0.003 * min(1.0, 64 / width)
    train(model, batches, steps, schedule=ConstantRate(rate, steps // 10), on_step=check)
    return min(checked)[1]
