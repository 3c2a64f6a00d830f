"""What inputs say of labels: nothing, all of it in one place, or only where they are cut off.

Asked of a linear classifier, for every kind of data that it can read: texts by their words, words
by their neighbours, pixels, spectra, node features, series.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.batching import Batch
from regard.data.padding import IGNORED
from regard.lab.doctor import stored_data
from regard.lab.doctor.hashed_words import Array, hashed, words
from regard.lab.doctor.likeness_checks import LEAST
from regard.lab.doctor.linear_classifier import evenly, explained, recall_gain
from regard.lab.doctor.run_evidence import RunEvidence
from regard.lab.doctor.settings_checks import check_ranges
from regard.lab.doctor.stored_data import Example
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.monitor import label_counts
from regard.training.diagnostics.run_log import finite

MOST = 4000  # examples that a linear classifier is fitted to
BUCKETS = 1024  # of the strings that texts have
NEIGHBOURS = 3  # words on either side of one that has a tag
SLIPPED = 4  # places by which tags are tried at other words: some of their neighbours are shared
MOST_NOISE = 0.05  # of a statement about tags
CARRIES_OVER = 0.25  # of what a linear classifier gains on the training data
EXPLAINED = 0.02  # of the variance of numbers: less is nothing
LEARNT = 0.97  # of the loss without learning: above, nothing was learnt
TELLS_ALL = 0.95  # of a class by one value: as often as others do not have it
COLUMNS = 4000  # words or pixels that one of which may tell all
CUT = 0.2  # of the examples that are as long as is kept
ONE_CLASS = 0.99  # of the answers
FREQUENT = 0.9  # of the training labels: less does not lead to always the same answer
VALIDATION_BATCHES = 8


@dataclass(frozen=True)
class Table:
    """Examples as numbers."""

    inputs: Array  # [N, W]
    labels: Array  # [N] classes, or [N, C] numbers

    def part(self, rows: slice) -> Table:
        return Table(self.inputs[rows], self.labels[rows])

    def gain(self, other: Table) -> float:
        """What a linear model that is fitted to this knows of another table's labels."""
        score = recall_gain if self.labels.ndim == 1 else explained
        return score(self.inputs, self.labels, other.inputs, other.labels)

    @property
    def own_gain(self) -> float:
        """The same of one half of it for the other half."""
        half = len(self.labels) // 2
        return self.part(slice(half)).gain(self.part(slice(half, None)))

    @property
    def noise(self) -> float:
        """Three standard deviations of an accuracy on half of it."""
        return 1.5 / math.sqrt(len(self.labels) / 2) if self.labels.ndim == 1 else EXPLAINED


def check_information(run: RunEvidence) -> Iterator[Finding]:
    if run.has_generated_data:
        return
    splits = tables(run)
    train = splits.pop("train", None)
    if train is None or len(train.labels) < LEAST:
        return
    if train.labels.ndim == 1:
        if len(np.unique(train.labels)) < 2:
            return
        yield from answers_in_input(run)
        yield from majority_only(run)
    if run.objective.head_task == "tag" and stored_data.is_text(run.objective) and run.examples:
        yield from tags_beside_words(run.examples["train"])
        return
    gain = train.own_gain
    if gain > train.noise:
        yield from cut_off_inputs(run, gain)
        yield from _does_not_carry_over(train, splits, gain)
    elif _learns_nothing(run, splits) and not any(check_ranges(run)):  # which would explain it
        yield _unrelated(
            f"on training data that it has not seen a linear classifier has {_points(gain)} more "
            "than chance, and the model knows no more of the validation data than frequencies",
            "the inputs say nothing of their labels",
            0.75,
        )


def _does_not_carry_over(train: Table, splits: dict[str, Table], gain: float) -> Iterator[Finding]:
    for name, table in splits.items():
        if len(table.labels) < LEAST or len(np.unique(table.labels)) < 2:
            continue
        there = train.gain(table)
        if there < CARRIES_OVER * gain - table.noise / 3:
            yield _unrelated(
                f"on training data that it has not seen a linear classifier has {_points(gain)} "
                f"more than chance, and on {name} {_points(there)}",
                f"the labels of {name} do not follow from its inputs as in the training data",
                0.85,
            )


def tags_beside_words(train: Sequence[Example]) -> Iterator[Finding]:
    """Tags that follow from words some places away, or as little from their own as from any."""
    chosen = [(text.split(), tags.split()) for text, tags in evenly(train, MOST)]
    table = _of_words([(row, _rolled(tags, len(tags) // 2)) for row, tags in chosen])
    anywhere = table.own_gain
    gains = {
        places: _of_words([(row, _rolled(tags, places)) for row, tags in chosen]).own_gain
        for places in (0, SLIPPED, -SLIPPED)
    }
    backwards = _of_words([(row, tags[::-1]) for row, tags in chosen]).own_gain
    best = max(gains, key=lambda places: gains[places])
    if table.noise > MOST_NOISE:
        return
    if backwards > max(gains.values()) + 2 * table.noise:
        yield Finding(
            "misaligned_sides",
            f"a linear classifier of a word's neighbours has {_points(gains[0])} more than chance "
            f"of its own tags, and {_points(backwards)} of those counted from the end",
            "tags and words are misaligned: one of them stands backwards",
            "reverse one of them",
            0.9,
        )
    elif gains[best] > gains[0] + 2 * table.noise:
        yield Finding(
            "misaligned_sides",
            f"a linear classifier of a word's neighbours has {_points(gains[0])} more than chance "
            f"of its own tags, and {_points(gains[best])} of those {abs(best)} places "
            f"{'later' if best > 0 else 'earlier'}",
            "tags and words are misaligned: tags belong to other words",
            "find what was inserted or lost in one of them, or create both again",
            0.9,
        )
    elif gains[0] < anywhere + table.noise:
        yield _unrelated(
            f"a linear classifier of a word's neighbours has {_points(gains[0])} more than chance "
            f"of its own tags, and {_points(anywhere)} of those of another place in the sentence",
            "tags say no more of their own words than of any in the sentence",
            0.8,
        )


def _rolled(tags: list[str], places: int) -> list[str]:
    """The tags so many places earlier; the first ones at the end."""
    by = places % max(1, len(tags))
    return [*tags[by:], *tags[:by]]


def _points(gain: float) -> str:
    return f"{100 * gain:.0f} points"


def _learns_nothing(run: RunEvidence, splits: dict[str, Table]) -> bool:
    """Whether validation never came below what frequencies, or the mean, have."""
    losses = finite(run.log.validation_losses)
    loss = run.baseline.entropy
    if loss is None and run.objective.name == "regress" and "valid" in splits:
        loss = float(splits["valid"].labels.var())
    if loss is None:
        return True  # of another scale: the linear model alone says it
    return len(losses) > 1 and min(losses) > LEARNT * loss


def _unrelated(evidence: str, cause: str, confidence: float) -> Finding:
    return Finding(
        "labels_unrelated",
        evidence,
        cause,
        "check that labels stand beside their inputs, and were not shuffled or exchanged",
        confidence,
    )


# --- examples as numbers --------------------------------------------------------------------------


def tables(run: RunEvidence) -> dict[str, Table]:
    """A table of each split; empty where a linear model cannot read the data."""
    task = run.objective.head_task
    if run.objective.name == "regress":
        task = "regress"
    if not run.examples or not stored_data.is_text(run.objective):
        train = _joined(one_epoch(run.batches))
        valid = _joined(validation_batches(run))
        return {name: table for name, table in (("train", train), ("valid", valid)) if table}
    if task not in ("classify", "tag", "regress"):
        return {}
    return {name: _of_texts(split, task) for name, split in run.examples.items() if split}


def _of_texts(examples: Sequence[Example], task: str) -> Table:
    chosen = evenly(examples, MOST)
    if task == "tag":
        return _of_words([(text.split(), tags.split()) for text, tags in chosen])
    texts = [words(example[0]) for example in chosen]
    labels = [example[-1] for example in chosen]
    if task == "classify":
        return Table(_presence(texts), np.array(labels))
    placed = [[*row, *(f"{i} {word}" for i, word in enumerate(row))] for row in texts]
    return Table(_presence(placed), np.array(labels, dtype=float)[:, None])


def _of_words(sentences: Sequence[tuple[list[str], list[str]]]) -> Table:
    """Each word with its neighbours, and its tag."""
    rows: list[list[str]] = []
    labels: list[str] = []
    for text, tags in sentences:
        padded = ["", *text, ""]
        for place, tag in enumerate(tags, start=1):
            around = range(max(0, place - NEIGHBOURS), min(len(padded), place + NEIGHBOURS + 1))
            rows.append([f"{i - place} {padded[i]}" for i in around])
            labels.append(tag)
        if len(rows) >= 2 * MOST:
            break
    return Table(_presence(rows), np.array(labels))


def _presence(rows: Sequence[Sequence[str]]) -> Array:
    return np.minimum(hashed(rows, len(rows), BUCKETS), 1)


def one_epoch(batches: Sequence[Batch]) -> Iterator[Batch]:
    """The batches before a row comes again: a graph is the same each time."""
    before: set[int] = set()
    for batch in batches:
        rows = set(batch.rows.tolist())
        if rows & before:
            return
        before |= rows
        yield batch


def validation_batches(run: RunEvidence) -> Iterator[Batch]:
    if len(run.objective.source.splits.get("valid", ())):
        yield from islice(run.objective.evaluation_batches("valid"), VALIDATION_BATCHES)


def _joined(batches: Iterator[Batch]) -> Table | None:
    """The examples of some batches of images, spectra, series or nodes."""
    parts = [part for part in (_numbers(batch) for batch in batches) if part is not None]
    if not parts:
        return None
    inputs, labels = (torch.cat(list(column))[:MOST].numpy() for column in zip(*parts, strict=True))
    scale = inputs.std(axis=0).mean() + 1e-9
    return Table(inputs / scale, labels)


def _numbers(batch: Batch) -> tuple[Tensor, Tensor] | None:
    match {name: tensor.cpu() for name, tensor in batch.tensors.items()}:
        case {"pixels": pixels, "labels": labels}:
            small = functional.adaptive_avg_pool2d(pixels.float().permute(0, 3, 1, 2), 8)
            inputs = small.flatten(1)
        case {"features": spectra, "labels": labels}:
            inputs = torch.cat([spectra.mean(dim=-1), spectra.std(dim=-1)], dim=1)
        case {"node_features": features, "labels": labels}:
            inputs = features.flatten(0, 1)
            labels = labels.flatten()
            inputs, labels = inputs[labels != IGNORED], labels[labels != IGNORED]
        case {"past": past, "future": future}:
            # Each channel is an example, beside the mean of its window.
            center = past.mean(dim=1, keepdim=True)
            inputs = (past - center).transpose(1, 2).flatten(0, 1)
            return inputs, (future - center).transpose(1, 2).flatten(0, 1)
        case _:
            return None
    return None if len(labels) != len(inputs) or labels.ndim != 1 else (inputs, labels)


# --- all in one place -----------------------------------------------------------------------------


def answers_in_input(run: RunEvidence) -> Iterator[Finding]:
    """Classes each of which has one word, pixel or feature that no other class has."""
    values = _values(run)
    if values is None:
        return
    names, inputs, labels = values
    signs = []
    for one in np.unique(labels):
        inside, outside = inputs[labels == one], inputs[labels != one]
        usual = np.median(inside, axis=0)  # [W]
        scores = (inside == usual).mean(axis=0) - (outside == usual).mean(axis=0)
        if inputs.max() <= 1:
            scores[usual == 0] = 0  # where two words are the task, one says which it is not
        best = int(scores.argmax())
        if scores[best] < TELLS_ALL:
            return
        signs.append(names[best])
    yield Finding(
        "answers_in_input",
        f"each of the {len(signs)} classes is told by one value of the input: "
        f"{', '.join(dict.fromkeys(signs[:3]))}",
        "the label stands in the input, which will not have it where the model is used",
        "remove it from the inputs",
        0.94,
    )


def _values(run: RunEvidence) -> tuple[list[str], Array, Array] | None:
    """Values as they are: the names of their columns, [N, W], and the classes [N]."""
    if run.examples and stored_data.is_text(run.objective):
        return _words(run) if run.objective.head_task == "classify" else None
    tensors = [batch.tensors for batch in one_epoch(run.batches)]
    name = next((name for name in ("pixels", "node_features") if name in tensors[0]), None)
    if name is None or any(part["labels"].ndim > 2 for part in tensors):
        return None
    labels = torch.cat([part["labels"].flatten() for part in tensors]).numpy()
    rows = torch.cat([part[name].reshape(part["labels"].numel(), -1) for part in tensors]).numpy()
    names = [f"{name} {i}" for i in range(rows.shape[1])]
    return names, rows[labels != IGNORED], labels[labels != IGNORED]


def _words(run: RunEvidence) -> tuple[list[str], Array, Array]:
    chosen = evenly(run.examples["train"], MOST)
    rows = [set(words(example[0])) for example in chosen]
    total = Counter(word for row in rows for word in row)
    names = [word for word, _ in total.most_common(COLUMNS)]
    inputs = np.array([[word in row for word in names] for row in rows])
    return names, inputs, np.array([example[-1] for example in chosen])


# --- only where it is cut off ---------------------------------------------------------------------


def cut_off_inputs(run: RunEvidence, gain: float) -> Iterator[Finding]:
    """Texts whose words say more of their labels than those that are kept."""
    if run.objective.head_task != "classify" or not run.examples:
        return
    rows = getattr(run.objective.source, "splits", {}).get("train")
    examples = run.examples["train"]
    share = getattr(rows, "truncated", 0) / max(1, len(examples))
    if rows is None or share < CUT or len(rows) != len(examples):
        return
    source = run.objective.source
    rest = [(source.example(i)["text"], one[-1]) for i, one in enumerate(examples[:MOST])]
    table = _of_texts(rest, "classify")
    left = table.own_gain
    if gain - left > 2 * table.noise and left < gain / 2:
        yield Finding(
            "cut_off_inputs",
            f"{100 * share:.0f} % of the texts are cut off; by all of their words a linear "
            f"classifier has {_points(gain)} more than chance, by those that are kept "
            f"{_points(left)}",
            "what decides stands behind the part of the texts that is kept",
            "raise context, or keep the end of the texts",
            0.9,
        )


# --- in their order -------------------------------------------------------------------------------


def order_tells(run: RunEvidence) -> bool:
    """Whether the order of words is needed: words alone may do for the class of a text."""
    if run.is_weak or not run.objective.labels_are_classes or run.objective.head_task != "classify":
        return True
    chosen = evenly(run.examples.get("train", []), MOST)
    if len(chosen) < LEAST:
        return True
    rows = [words(example[0]) for example in chosen]
    labels = np.array([example[-1] for example in chosen])
    alone = Table(_presence(rows), labels)
    in_order = Table(_presence([[*row, *map(" ".join, pairwise(row))] for row in rows]), labels)
    return in_order.own_gain > alone.own_gain + alone.noise


# --- one class ------------------------------------------------------------------------------------


@torch.no_grad()
def majority_only(run: RunEvidence) -> Iterator[Finding]:
    """A model that always answers the class that most of the training data has."""
    objective = run.objective
    if run.weights is None or objective.head_task != "classify":
        return
    counts = label_counts(run.batches)
    if counts is None or counts.max() < FREQUENT * counts.sum():
        return
    with run.loaded(run.weights):
        batches = list(validation_batches(run))
        answers = [objective.logits(batch.tensors)[0].argmax(dim=-1) for batch in batches]
    if not answers:
        return
    majority = int(counts.argmax())
    always = float((torch.cat(answers) == majority).float().mean())
    labels = torch.cat([batch.tensors["labels"] for batch in batches])
    others = float((labels != majority).float().mean())
    if always >= ONE_CLASS and others > 2 * (1 - ONE_CLASS):
        share = float(counts.max() / counts.sum())
        yield Finding(
            "majority_only",
            f"{100 * always:.0f} % of the answers on the validation data are one class, which "
            f"{100 * share:.0f} % of the training data and {100 * (1 - others):.0f} % of the "
            "validation data have",
            "the classes are so unequal that always answering one of them is nearly best",
            "sample the rare classes more often, and measure f1 instead of accuracy",
            0.9,
        )
