"""Data hunger and saturation: recurrent and Transformer ladders over size and data."""

from __future__ import annotations

import math
from typing import Any

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.families.presets import preset
from regard.lab.compare.cost import growth_exponent
from regard.lab.study import training_run
from regard.lab.study.character_text import LENGTH, character_text
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
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
        by_data: dict[str, dict[str, list[float]]] = {name: {} for name in MODELS}
        by_width: dict[str, dict[str, list[float]]] = {name: {} for name in MODELS}
        # Data are varied at one width, widths on the whole corpus.
        middle = WIDTHS[1]
        jobs = [(seed, name) for seed in effort.seeds for name in MODELS]
        for seed, name in progress.over(jobs, lambda job: f"{job[1]}, seed {job[0]}"):
            for characters in sizes:
                loss = _loss(name, middle, seed, steps, characters)
                by_data[name].setdefault(str(characters), []).append(loss)
            for width in WIDTHS:
                # The middle one has been trained on the largest corpus already.
                loss = by_data[name][str(sizes[-1])][-1]
                if width != middle:
                    loss = _loss(name, width, seed, steps, sizes[-1])
                by_width[name].setdefault(str(width), []).append(loss)
        parameters = {name: [_parameters(name, width) for width in WIDTHS] for name in MODELS}
        return {"parameters": parameters, "by_data": by_data, "by_width": by_width}

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
        if is_hungry and goes_on:
            return Verdict(Outcome.HOLDS, reason)
        return Verdict(Outcome.LIMITED if is_hungry or goes_on else Outcome.FAILS, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        by_data = []
        by_size = []
        for name in MODELS:
            corpora = [int(size) for size in numbers["by_data"][name]]
            runs = list(zip(*numbers["by_data"][name].values(), strict=True))
            by_data.append(Series.over_seeds(name, corpora, runs))
            runs = list(zip(*numbers["by_width"][name].values(), strict=True))
            by_size.append(Series.over_seeds(name, numbers["parameters"][name], runs))
        y = Axis("nats a character")
        return [
            Chart("Loss over data", Axis("characters of the corpus", log=True), y, by_data),
            Chart("Loss over size", Axis("parameters", log=True), y, by_size),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        data = []
        for size in numbers["by_data"]["LSTM"]:
            cells = [mean_text(numbers["by_data"][name][size]) for name in MODELS]
            data.append([f"{int(size):,}", *cells])
        sizes = []
        for index, width in enumerate(numbers["by_width"]["LSTM"]):
            cells = []
            for name in MODELS:
                count = f"{numbers['parameters'][name][index]:,}"
                cells += [count, mean_text(numbers["by_width"][name][width])]
            sizes.append([width, *cells])
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
    changes: dict[str, Any] = {"d_model": width, "d_ff": 4 * width, "heads": 4}
    return training_run.language_model(vocabulary, LENGTH, **changes)


def _parameters(name: str, width: int) -> int:
    return parameter_count(_model(name, width))


def _loss(name: str, width: int, seed: int, steps: int, characters: int) -> float:
    text = character_text()
    model = training_run.build_seeded(_model(name, width), seed)
    # The first so many characters, again and again.
    batches = text.batches(seed, 16, characters=characters)
    training_run.train(model, batches, steps)
    return training_run.evaluate(model, [text.held_out(60)]).loss
