"""Hierarchical attention over sentences, against flat attention over the whole document."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from regard import spec
from regard.families.presets import preset
from regard.lab.study.evidence import above, differences, judge_sentences
from regard.lab.study.figure import Shown, column, mean_text, measured_bars, table
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.lab.study.training_run import END, RESERVED, Batch, Task, Variants
from regard.training.engine.optimizer import ConstantRate

SENTENCES = 4
WORDS = 6  # of a sentence
LAYERS = 4
MATTERS = 2.0  # points of accuracy by which two models must differ
KEY = RESERVED
LOCK = RESERVED + 1
OTHERS = range(RESERVED + 2, RESERVED + 10)
FLAT = "flat"
HIERARCHICAL = "hierarchical"


class HierarchicalAttention(Study):
    """Documents have a hierarchical structure: an encoder that attends within sentences first and
    between them afterwards learns what stands within a sentence better than flat attention, and
    what holds between sentences no worse.

    Encoders of {LAYERS} layers of width 32 with equal parameters. The hierarchical one attends in
    its lower half within sentences only, in its upper half also to the ends of all sentences. On
    generated documents of {SENTENCES} sentences of {WORDS} words, they classify whether two words
    stand in one sentence or in two, and whether two sentences have the same one of two words or
    one each; accuracy on new documents.
    """

    source = "Yang et al. 2016, Hierarchical Attention Networks for Document Classification"
    seeds = (1, 4)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(60, 400)
        batches = effort.choose(1, 4)
        models = variants()
        tasks = {
            kind: Task(OTHERS.stop, partial(documents, kind), _held_out(kind, batches))
            for kind in DOCUMENTS
        }

        def accuracy(kind: str, name: str, seed: int) -> float:
            schedule = ConstantRate(0.002, steps // 10)
            return tasks[kind].score(models[name], seed, steps, schedule=schedule).accuracy

        return {"accuracies": effort.each_pair(tasks, models, accuracy), "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Over the seeds (Student's t, 95 %): the hierarchical model is better by {MATTERS:g}
        points or more within sentences, and not worse by more than that between them. Holds if
        both are so, fails without the first, else within limits; too small to say where the seeds
        do not tell."""
        gains = {
            kind: differences(each[HIERARCHICAL], each[FLAT])
            for kind, each in numbers["accuracies"].items()
        }
        inside, across = gains
        sentences = {
            "better within sentences": above(gains[inside], MATTERS),
            "no worse between them": above(gains[across], -MATTERS),
        }
        listed = "; ".join(
            f"{kind} {mean_text(each[HIERARCHICAL])} %, flat {mean_text(each[FLAT])} %"
            for kind, each in numbers["accuracies"].items()
        )
        reason = f"Hierarchical after {numbers['steps']} updates: {listed}."
        return judge_sentences(sentences, reason, main_first=True)

    def show(self, numbers: Numbers) -> Shown:
        accuracies = numbers["accuracies"]
        kinds = {kind: kind for kind in accuracies}
        runs = {
            name: [dict(zip(kinds, values, strict=True)) for values in _by_seed(accuracies, name)]
            for name in (FLAT, HIERARCHICAL)
        }
        title = "Accuracy of hierarchical and flat attention"
        return [
            measured_bars(title, "%", runs, kinds, high=100.0),
            table("attention", kinds, runs, f"{title}, %"),
        ]


def _by_seed(accuracies: dict[str, Any], name: str) -> Iterator[tuple[float, ...]]:
    return zip(*column(accuracies.values(), name), strict=True)


def variants() -> Variants:
    """Both encoders, of which only the masks differ."""
    length = SENTENCES * (WORDS + 1)
    sizes = {"d_model": 32, "d_ff": 64, "heads": 4, "layers": LAYERS, "dropout": 0.0}
    model: Any = preset("bert", OTHERS.stop, length, **sizes, attention_dropout=0.0)
    flat = model.with_heads(spec.Pool("mean", None), spec.ClassifierHead(2))
    block = flat.stack.block
    lower = replace(block, pattern=spec.SentenceMask(END))
    upper = replace(block, pattern=spec.SentenceMask(END, ends=True))
    half = LAYERS // 2
    blocks = (*[lower] * half, *[upper] * half)
    return {FLAT: flat, HIERARCHICAL: replace(flat, stack=replace(flat.stack, blocks=blocks))}


# ------------------------------------------------------------------ documents

Document = list[list[int]]  # sentences of words


def within(chance: random.Random, label: int) -> Document:
    """Two words, in one sentence (1) or in two (0)."""
    document = _other_words(chance)
    first, second = chance.sample(range(SENTENCES), 2)
    if label:
        second = first
    places = chance.sample(range(WORDS), 2)
    document[first][places[0]] = KEY
    document[second][places[1]] = LOCK
    return document


def between(chance: random.Random, label: int) -> Document:
    """Two sentences that have the same one of two words (1), or one each (0)."""
    document = _other_words(chance)
    word = chance.choice((KEY, LOCK))
    other = word if label else KEY + LOCK - word
    for sentence, one in zip(chance.sample(document, 2), (word, other), strict=True):
        sentence[chance.randrange(WORDS)] = one
    return document


def _other_words(chance: random.Random) -> Document:
    return [chance.choices(OTHERS, k=WORDS) for _ in range(SENTENCES)]


DOCUMENTS = {"within a sentence": within, "between sentences": between}


def documents(kind: str, seed: int, rows: int = 32) -> Iterator[Batch]:
    """Endless batches of documents with their label; each sentence ends with a token."""
    chance = random.Random(seed)
    while True:
        labels = [chance.randrange(2) for _ in range(rows)]
        texts = [DOCUMENTS[kind](chance, label) for label in labels]
        rows_of_tokens = [[word for one in text for word in (*one, END)] for text in texts]
        yield Batch(torch.tensor(rows_of_tokens), torch.tensor(labels)[:, None])


def _held_out(kind: str, batches: int) -> list[Batch]:
    """New documents, the same for all models and seeds."""
    return list(islice(documents(kind, seed=10**6, rows=128), batches))
