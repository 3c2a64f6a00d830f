"""Kinds of positions in trained models: which are better, and what can be read back of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.data.generated.algorithmic_tasks import LETTERS, Copying, Reversing
from regard.lab.study.evidence import (
    above,
    differences,
    every,
    failures,
    finite,
    judge_sentences,
    judge_tasks,
    negated,
    reductions,
    where_trained,
    without_failed,
)
from regard.lab.study.figure import (
    Shown,
    chart_and_table,
    column,
    deviation,
    mean,
    mean_text,
    measured_bars,
    table,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.lab.study.training_run import (
    POSITIONS,
    RESERVED,
    Batch,
    TaskBatches,
    bleu,
    builtin_pairs,
    builtin_vocabulary,
    english,
    evaluate,
    language_model,
    seeded,
    trained,
    translator,
)
from regard.look.linear_probing import fitted
from regard.training.engine.optimizer import LinearDecay

# `none` shows how much positions matter for the task at all.
KINDS = ("sinusoidal", "learned", "none")
LENGTH = 32  # tokens; no input is longer


class LearnedPositions(Study):
    """Learned positional embeddings and sinusoids give nearly identical results.

    Language models of two layers with sinusoidal, learned and no positions: on the built-in
    English, and on reversing letters, where positions are all that matters. Loss on test data
    within the training length.
    """

    source = "Vaswani et al. 2017, Section 3.5 and Table 3 (E): 25.7 and 25.8 BLEU"
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        # Which letter comes next follows from positions alone.
        reversing = TaskBatches(Reversing(max_length=4)).learned(effort.choose(4, 16))
        tasks = {"English": english(effort), "reversing": reversing}
        # Enough for the loss to fall well below that of word frequencies.
        steps = {"English": effort.choose(100, 600), "reversing": effort.choose(130, 400)}

        def score(name: str, kind: str, seed: int) -> Numbers:
            model = language_model(tasks[name].vocabulary, LENGTH, position=kind)
            return tasks[name].score(model, seed, steps[name])._asdict()

        return {"runs": effort.each_pair(tasks, KINDS, score)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """The two kinds are alike on a task if their losses differ by less than 2 % or by less than
        the standard deviations of both. Holds if they are alike on both tasks, within limits on
        one; else it does not hold."""
        alike = {}
        for task, runs in numbers["runs"].items():
            fixed, learned = (column(runs[kind], "loss") for kind in KINDS[:2])
            # Alike: within the noise, or too near to matter.
            noise = deviation(fixed) + deviation(learned)
            part = f"{task}: loss {mean_text(fixed)} sinusoidal, {mean_text(learned)} learned"
            alike[part] = abs(mean(fixed) - mean(learned)) < max(0.02 * mean(fixed), noise)
        return judge_tasks(alike)

    def show(self, numbers: Numbers) -> Shown:
        columns = {"loss": "loss", "accuracy": "accuracy, %"}
        return [
            shown
            for task, kinds in numbers["runs"].items()
            for shown in (
                measured_bars(f"Loss on {task}", "test loss, nats a token", kinds, {"loss": ""}),
                table(f"{task}, positions", columns, kinds),
            )
        ]


# ------------------------------------------------------------------ beyond the training length

TRAINED = 6  # letters in training, at most
LENGTHS = (3, 6, 9, 12)
LONGER = 9  # half as long again as in training
EXTRAPOLATES = 0.9  # share of the accuracy within the training length that is left beyond it
LEARNED = 75.0  # accuracy within it, in %, below which a model has not learned to copy


class Extrapolation(Study):
    """Sinusoids may allow a model to extrapolate to sequences longer than those of training;
    learned positions do not, and ALiBi extrapolates better than either.

    Language models of two layers that learn to copy 1 to {TRAINED} letters, with six kinds of
    position; then the accuracy of each letter, after the right ones before it, for up to 12
    letters. Copying, because the built-in English hardly needs positions (see learned_positions).
    The learned table has rows for all positions, of which training reaches the first; in use such a
    model refuses longer inputs.
    """

    source = (
        "Vaswani et al. 2017, Section 3.5 (sinusoids “may allow”); Press et al. 2022, Figure 1 "
        "(ALiBi, rotary, T5 bias, on text)"
    )
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(130, 500)
        task = TaskBatches(Copying(max_length=TRAINED))
        # The same inputs for all kinds and seeds.
        tests = [[_test(task, length, effort.choose(64, 256))] for length in LENGTHS]
        longest = 2 * max(LENGTHS) + 2  # start, letters, separator, letters

        def accuracies(kind: str, seed: int) -> list[float]:
            description = language_model(len(task.vocabulary), longest, position=POSITIONS[kind])
            model = trained(description, seed, task.stream("train", seed), steps)
            return [evaluate(model, test).accuracy for test in tests]

        scores = effort.each(POSITIONS, accuracies)
        return {"lengths": list(LENGTHS), "accuracies": scores, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """A kind extrapolates if its accuracy at {LONGER} letters is at least 90 % of that at
        {TRAINED}, over the seeds (Student's t, 95 %); seeds below {LEARNED:.0f} % at {TRAINED}
        letters have not learned to copy and are left out. Holds if sinusoids do, learned positions
        do not, and ALiBi keeps more than both; within limits if sinusoids do, but one of the others
        is not so; else it does not hold, or is too small to say where the seeds do not tell."""
        shares = {kind: shares_left(numbers, kind) for kind in numbers["accuracies"]}
        listed = ", ".join(f"{kind} {_percent(values)}" for kind, values in shares.items())
        # ALiBi's share above the mean of another kind.
        sentences = {
            "sinusoids extrapolate": above(shares["sinusoidal"], EXTRAPOLATES),
            "learned positions do not": negated(above(shares["learned"], EXTRAPOLATES)),
            "ALiBi keeps more than both": every(
                above(differences(shares["ALiBi"], shares[kind]), 0.0)
                for kind in ("sinusoidal", "learned")
            ),
        }
        return judge_sentences(
            sentences,
            f"Accuracy at {LONGER} letters as a share of that at {TRAINED}, the longest in "
            f"training: {listed}.{failures(shares, ' to copy')}",
            main_first=True,
        )

    def show(self, numbers: Numbers) -> Shown:
        return chart_and_table(
            f"Copying beyond the training length, after {numbers['steps']} steps",
            "letters",
            "accuracy of a letter, %",
            numbers["lengths"],
            numbers["accuracies"],
            note=f"Trained on up to {TRAINED} letters; bands: worst to best seed.",
            low=0.0,
            high=100.0,
        )


def shares_left(numbers: Numbers, kind: str) -> list[float]:
    """Of each seed, the accuracy beyond the training length relative to that at it.

    NaN for one that has not learned to copy.
    """
    # The longest of training, and one half longer.
    inside, beyond = (numbers["lengths"].index(length) for length in (TRAINED, LONGER))
    return [
        run[beyond] / run[inside] if run[inside] >= LEARNED else math.nan
        for run in numbers["accuracies"][kind]
    ]


def _percent(shares: list[float]) -> str:
    learned = finite(shares)
    return f"{100 * mean(learned):.0f} %" if learned else "not learned"


def _test(task: TaskBatches, length: int, rows: int) -> Batch:
    """Inputs of exactly this length; which are in training too is too unlikely to matter."""
    rng = random.Random(length)
    # Seeded by the length: a test set does not depend on which others are made.
    letters = [" ".join(rng.choices(LETTERS, k=length)) for _ in range(rows)]
    return task.batch([(text, text) for text in letters])


# ------------------------------------------------------------------ read back by a linear probe

ADDED = ("sinusoidal", "learned")
CONCATENATED = "concatenated"
PROBED = (*ADDED, CONCATENATED, "none")
PLACES = 12  # positions that a probe tells apart
READ = 90.0  # % of positions that a probe must find, for them to be readable
UNREADABLE = 50.0  # and below which they are not


class ReadPositions(Study):
    """Positions that are concatenated with the embeddings can be read back from a vector; those
    that are added to them cannot.

    Language models of the built-in English whose positions are added (sinusoidal, learned),
    concatenated (64 sinusoids and a linear map to d_model), or missing. A linear probe tells the
    first {PLACES} positions of random words apart, of which a word says nothing about its place:
    from the vectors that enter the first layer, and from those after the last. Right positions of
    new texts; chance is one in {PLACES}.
    """

    source = "Practical advice (concatenate, or add?); probes: Alain and Bengio 2016"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(100, 400)
        task = english(effort)

        def accuracies(kind: str, seed: int) -> Numbers:
            position = f"{CONCATENATED}:64" if kind == CONCATENATED else kind
            description = language_model(task.vocabulary, LENGTH, position=position)
            model: Any = trained(description, seed, task.stream(seed), steps)
            layers = {"input": model.tokens, "output": lambda tokens: model(tokens)[0]}
            return {
                name: readable(vectors, task.vocabulary, seed) for name, vectors in layers.items()
            }

        return {"runs": effort.each(PROBED, accuracies), "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Of the vectors that enter the first layer, over the seeds (Student's t, 95 %):
        concatenated positions can be read back if the probe finds {READ:.0f} % or more, added ones
        cannot if it finds less than {UNREADABLE:.0f} % of both kinds. Holds if both are so, within
        limits if one is, else it does not hold; too small to say where the seeds do not tell."""
        accuracy = {kind: column(runs, "input") for kind, runs in numbers["runs"].items()}
        sentences = {
            "concatenated ones can be read back": above(accuracy[CONCATENATED], READ),
            "added ones cannot": every(
                negated(above(accuracy[kind], UNREADABLE)) for kind in ADDED
            ),
        }
        listed = ", ".join(f"{kind} {mean_text(values)} %" for kind, values in accuracy.items())
        return judge_sentences(sentences, f"A linear probe finds the position: {listed}.")

    def show(self, numbers: Numbers) -> Shown:
        places = {"input": "before the first layer", "output": "after the last"}
        runs = numbers["runs"]
        title = "Positions that a linear probe finds"
        return [
            measured_bars(title, "%", runs, places, high=100.0),
            table("positions", places, runs, f"{title}, %"),
        ]


def readable(vectors: Callable[[Tensor], Tensor], vocabulary: int, seed: int) -> float:
    """The share of positions that a linear probe finds in the vectors [B, T, D] of new tokens."""
    with seeded(seed), torch.no_grad():
        # [texts, PLACES]: any word at any place
        texts = torch.randint(RESERVED, vocabulary, (2000, PLACES))
        features = vectors(texts).flatten(0, 1)  # [texts · PLACES, D]
    places = torch.arange(PLACES).repeat(len(texts))  # [texts · PLACES]
    half = len(features) // 2
    probe = fitted(features[:half], places[:half], PLACES)
    right = probe(features[half:]).argmax(-1) == places[half:]
    return 100 * float(right.double().mean())


# ------------------------------------------------------------------ in translation

TRANSLATED = ("sinusoidal", "relative", "T5 bias")
FREQUENCIES = 5.2  # nats: what the frequencies of words alone give
BETTER = 0.01  # share of the loss


class RelativePositions(Study):
    """Relative positions improve machine translation.

    Translators of two layers for the built-in language with sinusoids, with Shaw's relative
    positions and with T5's bias, trained on the same pairs: loss and BLEU of greedy translations on
    held-out sentences.
    """

    source = "Shaw et al. 2018, Table 1: 26.5 and 26.8 BLEU (base), 27.9 and 29.2 (big)"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(150, 600)
        test = next(builtin_pairs("test", 600, seed=0, rows=effort.choose(40, 200)))
        words = builtin_vocabulary()
        schedule = LinearDecay(0.003, steps // 10, steps)

        def score(kind: str, seed: int) -> Numbers:
            description = translator(len(words), position=POSITIONS[kind])
            batches = builtin_pairs("train", 20_000, seed)
            model = trained(description, seed, batches, steps, schedule=schedule)
            return {"loss": evaluate(model, [test]).loss, "bleu": bleu(model, test, words)}

        return {"runs": effort.each(TRANSLATED, score), "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """A relative kind improves translation if against sinusoids with the same seed its loss is
        lower by 1 % or more and its BLEU higher, over the seeds (Student's t, 95 %). Holds if both
        kinds do, within limits if one does; else it does not hold, or is too small to say where the
        seeds do not tell. Seeds whose loss is 95 % or more of what the frequencies of words give
        have failed to train, and are left out."""
        runs = numbers["runs"]
        losses = {
            kind: without_failed(column(of_kind, "loss"), FREQUENCIES)
            for kind, of_kind in runs.items()
        }
        base, *relative = TRANSLATED
        improves = {}
        for kind in relative:
            bleus = differences(column(runs[kind], "bleu"), column(runs[base], "bleu"))
            bleus = where_trained(where_trained(bleus, losses[kind]), losses[base])
            improves[kind] = every(
                [above(reductions(losses[kind], losses[base]), BETTER), above(bleus, 0.0)]
            )
        listed = "; ".join(
            f"{kind} loss {mean_text(column(of_kind, 'loss'))}, BLEU "
            f"{mean_text(column(of_kind, 'bleu'))}"
            for kind, of_kind in runs.items()
        )
        return judge_sentences(improves, f"{listed}.{failures(losses)}")

    def show(self, numbers: Numbers) -> Shown:
        names = {"loss": "test loss", "bleu": "BLEU"}
        runs = numbers["runs"]
        title = f"Translation after {numbers['steps']} steps"
        return [
            measured_bars(title, "test loss, nats a token", runs, {"loss": ""}),
            table("positions", names, runs, title),
        ]
