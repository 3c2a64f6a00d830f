"""Checks of the splits: what they have in common, what recurs, and whether labels conflict.

The same questions for every kind of data: it is read as examples, tuples of texts.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from regard.lab.doctor import stored_data
from regard.lab.doctor.hashed_words import words
from regard.lab.doctor.likeness_checks import LEAST, check_likeness, other_labels, other_numbers
from regard.lab.doctor.run_evidence import RunEvidence
from regard.lab.doctor.stored_data import Example
from regard.training.data.parallel_text import ParallelCorpora
from regard.training.diagnostics.finding import Finding

LEAST_OVERLAP = 0.05  # of a split: below it lies what chance brings about
SHINGLE = 4  # words of a text that are looked for together
CONTAINED = 0.8  # of the shingles of a text that make it a copy of another, but for a few words
WINDOW = 50  # characters of plain text that do not recur by chance
WINDOWS = 300  # of them that are searched for: a share is then known to within 3 %
MOST_CLASSES = 20
CONFLICTS = 0.1  # of the examples whose text stands there with another label
# Nothing learns from such numbers before it has learnt their mean, at a step of the rate at a time.
LARGE_NUMBERS = 100.0
RECURS = 20  # times that a passage of plain text stands there
RECURRING = 0.15  # of its passages
FEW_TEXTS = 0.1  # of the examples are different, but for case and punctuation
ALIKE = 0.25  # of the way from chance to equal targets
REPEATED = 0.1  # of the pairs have a source that others have too


def check_splits(run: RunEvidence) -> Iterator[Finding]:
    if run.has_generated_data:
        return
    splits = run.examples
    texts = run.texts
    if texts:
        yield from _passages_in_common(texts)
        yield from _recurring_passages(texts["train"])
    train = splits.get("train", [])
    is_pairs = isinstance(run.objective.data, ParallelCorpora)
    if train:
        yield from _copies(train)
        yield from _examples_in_common(splits, is_pairs)
    yield from check_likeness(run)
    yield from other_numbers(stored_data.numbers(run.objective))
    if run.recipe.objective == "regress":
        yield from _numbers(splits)
    elif run.objective.labels_are_classes and _are_classes(train):
        yield from _conflicting_labels(train)
        yield from other_labels(splits)
    elif is_pairs:
        yield from _conflicting_targets(train)


# --- what the splits have in common ---------------------------------------------------------------


def _examples_in_common(splits: dict[str, list[Example]], is_pairs: bool) -> Iterator[Finding]:
    """Examples of other splits that stand in the training data, or whose inputs do.

    As many as copies within the training data are to be expected, since such an example is likely
    to be drawn again (Good and Turing's estimate).
    """
    train = splits["train"]
    counts = Counter(train)
    measures: list[tuple[str, Callable[[Example, int], bool]]] = [
        ("whole examples", lambda example, least: counts[example] >= least),
        ("by their inputs, but for case and a few words", _contained(train, 0)),
    ]
    if is_pairs:
        measures.append(("by their targets, but for case and a few words", _contained(train, 1)))
    for what, is_inside in measures:
        # Each training example is in itself once.
        expected = sum(is_inside(example, 2) for example in train) / len(train)
        for name, examples in splits.items():
            if name == "train" or not examples:
                continue
            inside = sum(is_inside(example, 1) for example in examples)
            share = inside / len(examples)
            if _is_more(share, expected, len(examples)):
                detail = f"{inside:,} of its {len(examples):,} examples, {what}"
                yield _overlap(name, share, detail, expected)
                return


def _shingles(text: str) -> set[str]:
    """The runs of some words; a short text is one of them."""
    all_words = words(text)
    starts = range(max(1, len(all_words) - SHINGLE + 1))
    return {" ".join(all_words[i : i + SHINGLE]) for i in starts}


def _contained(train: list[Example], place: int) -> Callable[[Example, int], bool]:
    """Whether most of a text of an example is in others of training, so many times."""
    parts = Counter(part for example in train for part in _shingles(example[place]))

    def is_inside(example: Example, least: int) -> bool:
        shingles = _shingles(example[place])
        return sum(parts[one] >= least for one in shingles) >= CONTAINED * len(shingles)

    return is_inside


def _is_more(share: float, expected: float, count: int) -> bool:
    # Of a share of so many draws; never 0, since the expectation is an estimate itself.
    deviation = math.sqrt(max(expected * (1 - expected), 0.01) / count)
    return share > max(LEAST_OVERLAP, expected + LEAST_OVERLAP + 3 * deviation)


def _passages_in_common(texts: dict[str, str]) -> Iterator[Finding]:
    """Passages of the validation text in the training text, beside those that recur in that."""
    train, valid = (" ".join(words(texts[name])) for name in ("train", "valid"))
    inside = windows_inside(valid, train, least=1)
    expected = windows_inside(train, train, least=2)
    if inside is None or expected is None:
        return
    if _is_more(inside, expected, WINDOWS):
        yield _overlap("valid", inside, f"random passages of {WINDOW} characters", expected)


def windows_inside(text: str, other: str, least: int) -> float | None:
    """The share of random passages of a text that another has at least so many times."""
    if len(text) < 4 * WINDOW:  # passages would overlap each other
        return None
    draw = random.Random(0)  # the same passages each time
    starts = [draw.randrange(len(text) - WINDOW) for _ in range(WINDOWS)]
    return sum(_occurs(text[i : i + WINDOW], other, least) for i in starts) / WINDOWS


def _occurs(passage: str, text: str, least: int) -> bool:
    start = -1
    for _ in range(least):
        # One place further on: occurrences may overlap.
        start = text.find(passage, start + 1)
        if start < 0:
            return False
    return True


def _overlap(split: str, share: float, what: str, expected: float) -> Finding:
    return Finding(
        "test_in_train",
        f"{100 * share:.0f} % of {split} ({what}) are in the training data; "
        f"{100 * expected:.0f} % are expected by chance",
        f"{split} data is contained in the training data, so its scores are not meaningful",
        "remove these examples from the training data and train again",
        0.95,
    )


# --- the training data ----------------------------------------------------------------------------


def _copies(train: list[Example]) -> Iterator[Finding]:
    """A file that was copied, or one example over and over."""
    counts = Counter(train)
    dominant, count = counts.most_common(1)[0]
    plain = Counter(tuple(" ".join(words(part)) for part in example) for example in train)
    if is_replicated(counts):
        detail = "they were copied as a whole"
    elif len(plain) < FEW_TEXTS * len(train) >= 1:
        detail = f"but for case and punctuation {len(plain):,}"
    # A fifth of all: short ones, such as "Yes.", recur in every corpus.
    elif count > 0.2 * len(train) >= 10 and len(" ".join(dominant).split()) >= 4:
        detail = f"one example makes up {100 * count / len(train):.0f} % of it"
    else:
        return
    yield Finding(
        "duplicate_examples",
        f"the training data has {len(train):,} examples, of which {len(counts):,} are different; "
        f"{detail}",
        "the training data contains duplicates",
        "remove duplicates before splitting the data",
        0.85,
    )


def _recurring_passages(text: str) -> Iterator[Finding]:
    """Passages that stand in a text again and again: headers, menus, licences."""
    plain = " ".join(words(text))
    share = windows_inside(plain, plain, least=RECURS)
    if share is not None and share > RECURRING:
        yield Finding(
            "duplicate_examples",
            f"{100 * share:.0f} % of random passages of {WINDOW} characters stand in the training "
            f"text {RECURS} times or more",
            "most of the text is one that recurs, such as a header",
            "remove what recurs before training",
            0.9,
        )


def is_replicated(counts: Counter[Example]) -> bool:
    """Whether examples were copied: chance does not repeat all of them equally often."""
    mean = counts.total() / len(counts)
    variance = sum((count - mean) ** 2 for count in counts.values()) / len(counts)
    # Counts of independent draws have a variance of about their mean (Poisson).
    # Copies of a whole file have a variance of zero; those of a part of it, of a quarter at most.
    return mean > 1.5 and len(counts) >= 20 and variance < 0.3 * mean


def _are_classes(train: list[Example]) -> bool:
    labels = {example[-1] for example in train}
    return len(train) >= LEAST and 1 < len(labels) <= min(MOST_CLASSES, len(train) / 5)


def _conflicting_labels(train: list[Example]) -> Iterator[Finding]:
    labels: dict[str, set[str]] = defaultdict(set)
    for example in train:
        labels[" ".join(words(example[0]))].add(example[-1])
    both = [len(labels[" ".join(words(example[0]))]) > 1 for example in train]
    share = sum(both) / len(train)
    if share > CONFLICTS:
        yield Finding(
            "conflicting_labels",
            f"{100 * share:.0f} % of the training examples stand there with another label, too: "
            f"{train[both.index(True)][0][:40]!r}",
            "the same inputs have different labels, which no model can tell apart",
            "decide on one label for each, or remove these examples",
            0.9,
        )


def _conflicting_targets(train: list[Example]) -> Iterator[Finding]:
    """Targets of one source that are no more alike than those of any two."""
    targets: dict[str, list[set[str]]] = defaultdict(list)
    for source, target in train:
        targets[source].append(set(words(target)))
    repeated = [group for group in targets.values() if len(group) > 1]
    if sum(map(len, repeated)) < max(LEAST, REPEATED * len(train)):
        return
    alike = [_likeness(one, other) for group in repeated for one, other in pairwise(group)]
    first = [group[0] for group in repeated]
    random.Random(0).shuffle(first)
    by_chance = sum(_likeness(a, b) for a, b in pairwise(first)) / max(1, len(first) - 1)
    likeness = sum(alike) / len(alike)
    if likeness < by_chance + ALIKE * (1 - by_chance):
        yield Finding(
            "conflicting_labels",
            f"{100 * sum(map(len, repeated)) / len(train):.0f} % of the training pairs share their "
            f"source with another; their targets have {100 * likeness:.0f} % of their words in "
            f"common, those of other sources {100 * by_chance:.0f} %",
            "the same sources have different targets, which no model can tell apart",
            "keep one target for each source",
            0.9,
        )


def _likeness(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _numbers(splits: dict[str, list[Example]]) -> Iterator[Finding]:
    """Numbers to be predicted that a new head does not reach."""
    numbers = {
        name: np.array([float(example[-1]) for example in split]) for name, split in splits.items()
    }
    yield from other_numbers(numbers)
    values = numbers["train"]
    mean = float(values.mean())
    deviation = float(values.std())
    if abs(mean) > LARGE_NUMBERS * max(deviation, 0.1) or deviation > LARGE_NUMBERS:
        yield Finding(
            "label_scale",
            f"the numbers to predict have a mean of {mean:.3g} and a deviation of {deviation:.3g}",
            "the labels are not standardized: a head begins with outputs of about 0",
            "subtract their mean and divide them by their deviation",
            0.85,
        )
