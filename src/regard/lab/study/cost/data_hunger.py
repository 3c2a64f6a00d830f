"""Data hunger and saturation: recurrent and Transformer ladders over size and data."""

from __future__ import annotations

import math
from itertools import product

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.families.presets import preset
from regard.lab.measure.instruments import growth_exponent
from regard.lab.study.character_text import LENGTH, character_text
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import evaluate, language_model, trained
from regard.look.drawing import Axis, Chart, Figure, Series

WIDTHS = [16, 32, 64]
MODELS = ("LSTM", "Transformer")


class DataHunger(Study):
    name = "data_hunger"
    claim = (
        "Transformers have a weak inductive bias: with little data they do worse than recurrent "
        "networks; with more parameters they go on improving, where recurrent networks saturate."
    )
    source = "Kaplan et al. 2020, Figure 7 (LSTMs plateau); Tay et al. 2022 on inductive bias"
    measurement = (
        "Language models of characters, an LSTM and a Transformer of about equal size, trained for "
        "the same number of steps on corpora of several sizes, and at several widths on the whole "
        "corpus: held-out loss."
    )
    rule = (
        "Holds if with the least data the LSTM is better (by 1 % or more), and over the widths the "
        "Transformer's loss falls with a steeper exponent of the parameters than the LSTM's. "
        "Within limits if only one of the two is so."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(150, 2500)
        # From what a model soon knows by heart to what it reads a few times at most.
        sizes = effort.choose([2_000, 500_000], [2_000, 10_000, 50_000, 500_000])
        middle = WIDTHS[1]
        # Data are varied at one width, widths on the whole corpus.
        jobs = [(middle, n) for n in sizes] + [(w, sizes[-1]) for w in WIDTHS if w != middle]
        losses = effort.each(
            progress,
            product(MODELS, jobs),
            lambda model, seed: _loss(model[0], *model[1], seed, steps),
        )
        return {
            "parameters": {
                name: [parameter_count(_model(name, width)) for width in WIDTHS] for name in MODELS
            },
            "by_data": {
                name: {str(n): losses[name, (middle, n)] for n in sizes} for name in MODELS
            },
            "by_width": {
                name: {str(w): losses[name, (w, sizes[-1])] for w in WIDTHS} for name in MODELS
            },
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        # Numbers are stored from the smallest corpus to the largest.
        least = next(iter(numbers["by_data"]["LSTM"]))
        with_least = {name: mean(numbers["by_data"][name][least]) for name in MODELS}
        exponents = {}
        for name in MODELS:
            losses = [mean(values) for values in numbers["by_width"][name].values()]
            # Loss falls: the exponent that is reported is positive.
            exponents[name] = -growth_exponent(numbers["parameters"][name], losses)
        # One per cent better: a smaller difference may be noise.
        is_hungry = with_least["LSTM"] <= 0.99 * with_least["Transformer"]
        goes_on = exponents["Transformer"] > exponents["LSTM"]
        reason = (
            f"On {int(least):,} characters the LSTM has a loss of {with_least['LSTM']:.3f}, the "
            f"Transformer of {with_least['Transformer']:.3f}; over the widths, loss falls as "
            f"N^-{exponents['LSTM']:.3f} (LSTM) and N^-{exponents['Transformer']:.3f} "
            "(Transformer)."
        )
        return judge(is_hungry and goes_on, is_hungry or goes_on, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        by_data = []
        by_size = []
        for name, of_model in numbers["by_data"].items():
            runs = list(zip(*of_model.values(), strict=True))
            by_data.append(Series.over_seeds(name, [int(size) for size in of_model], runs))
            runs = list(zip(*numbers["by_width"][name].values(), strict=True))
            by_size.append(Series.over_seeds(name, numbers["parameters"][name], runs))
        y = Axis("nats a character")
        return [
            Chart("Loss over data", Axis("characters of the corpus", log=True), y, by_data),
            Chart("Loss over size", Axis("parameters", log=True), y, by_size),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        data = [
            [f"{int(size):,}", *(mean_text(numbers["by_data"][name][size]) for name in MODELS)]
            for size in numbers["by_data"]["LSTM"]
        ]
        sizes = []
        for index, width in enumerate(numbers["by_width"]["LSTM"]):
            row = [width]
            for name in MODELS:
                count = f"{numbers['parameters'][name][index]:,}"
                row += [count, mean_text(numbers["by_width"][name][width])]
            sizes.append(row)
        return [
            Table("Held-out loss by corpus", ["characters", *MODELS], data),
            Table(
                "Held-out loss by size",
                ["width", "LSTM, parameters", "loss", "Transformer, parameters", "loss"],
                sizes,
            ),
        ]


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
    model = trained(_model(name, width), seed, batches, steps)
    return evaluate(model, [text.held_out(60)]).loss
