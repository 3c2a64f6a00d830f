"""Checks of the splits: what they have in common, and whether inputs say anything of labels.

The same questions for every kind of data: it is read as examples, tuples of texts.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from regard.lab.doctor import stored_data
from regard.lab.doctor.hashed_words import presence, words
from regard.lab.doctor.run_evidence import RunEvidence
from regard.lab.doctor.stored_data import Example
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.run_log import finite

LEAST_OVERLAP = 0.05  # of a split: below it lies what chance brings about
SHINGLE = 4  # words of a text that are looked for together
CONTAINED = 0.8  # of the shingles of a text that make it a copy of another, but for a few words
WINDOW = 50  # characters of plain text that do not recur by chance
WINDOWS = 300  # of them that are searched for: a share is then known to within 3 %
LONG = 100_000  # characters of plain text that are compared by their words
LEAST = 50  # examples that a statement about a split takes
MOST = 4000  # that a linear classifier is fitted to
MOST_CLASSES = 20
OTHER_LABELS = 0.3  # total variation of two distributions of labels: samples of one have 0.1
OTHER_WORDS = 1.0  # nats a word; a split of the same source has 0.1
CONFLICTS = 0.1  # of the examples whose text stands there with another label
# Nothing learns from such numbers before it has learnt their mean, at a step of the rate at a time.
LARGE_NUMBERS = 100.0
CARRIES_OVER = 0.25  # of what a linear classifier gains on the training data
RIDGE = 10.0


def check_splits(run: RunEvidence) -> Iterator[Finding]:
    if run.has_generated_data:
        return
    splits = run.examples
    texts = run.texts
    if texts:
        yield from _passages_in_common(texts)
    train = splits.get("train", [])
    if train:
        yield from _copies(train)
        yield from _examples_in_common(splits)
    passages: dict[str, list[Example]] = {name: [(text[:LONG],)] for name, text in texts.items()}
    is_text = stored_data.is_text(run.objective)
    mismatch: list[Finding] = []
    if is_text:
        mismatch += _other_words(splits or passages)
    if run.recipe.objective == "regress":
        yield from _numbers(train)
    elif run.objective.labels_are_classes and _are_classes(train):
        yield from _conflicting_labels(train)
        if is_text and not mismatch:
            yield from _label_information(run, splits)
        mismatch += _other_labels(splits)
    yield from mismatch


# --- what the splits have in common ---------------------------------------------------------------


def _examples_in_common(splits: dict[str, list[Example]]) -> Iterator[Finding]:
    """Examples of other splits that stand in the training data, or whose inputs do.

    As many as copies within the training data are to be expected, since such an example is likely
    to be drawn again (Good and Turing's estimate).
    """
    train = splits["train"]
    counts = Counter(train)
    parts = Counter(part for example in train for part in _shingles(example[0]))
    measures: tuple[tuple[str, Callable[[Example, int], bool]], ...] = (
        ("whole examples", lambda example, least: counts[example] >= least),
        (
            "by their inputs, but for case and a few words",
            lambda example, least: _is_contained(_shingles(example[0]), parts, least),
        ),
    )
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


def _is_contained(shingles: set[str], parts: Counter[str], least: int) -> bool:
    return sum(parts[one] >= least for one in shingles) >= CONTAINED * len(shingles)


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
    if is_replicated(counts):
        detail = "they were copied as a whole"
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


def is_replicated(counts: Counter[Example]) -> bool:
    """Whether examples were copied: chance does not repeat all of them equally often."""
    mean = counts.total() / len(counts)
    variance = sum((count - mean) ** 2 for count in counts.values()) / len(counts)
    # Counts of independent draws have a variance of about their mean (Poisson).
    # Copies of a whole file have a variance of zero; those of a part of it, of a quarter at most.
    return mean > 1.5 and len(counts) >= 20 and variance < 0.3 * mean


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


def _numbers(train: list[Example]) -> Iterator[Finding]:
    """Numbers to be predicted that a new head does not reach."""
    values = np.array([float(example[-1]) for example in train])
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


# --- whether validation looks like training -------------------------------------------------------


def _are_classes(train: list[Example]) -> bool:
    labels = {example[-1] for example in train}
    return len(train) >= LEAST and 1 < len(labels) <= min(MOST_CLASSES, len(train) / 5)


def _other_labels(splits: dict[str, list[Example]]) -> Iterator[Finding]:
    train = Counter(example[-1] for example in splits["train"])
    for name, examples in splits.items():
        if name == "train" or len(examples) < LEAST:
            continue
        counts = Counter(example[-1] for example in examples)
        shares = {label: counts[label] / len(examples) for label in train | counts}
        variation = sum(abs(p - train[label] / train.total()) for label, p in shares.items()) / 2
        if variation > OTHER_LABELS + math.sqrt(len(shares) / len(examples)):
            label = max(shares, key=lambda label: abs(shares[label] - train[label] / train.total()))
            yield _mismatch(
                name,
                f"{100 * shares[label]:.0f} % of {name} have the label {label!r}, and "
                f"{100 * train[label] / train.total():.0f} % of the training data",
            )


def _other_words(splits: dict[str, list[Example]]) -> Iterator[Finding]:
    """Splits whose words are not those of the training data, by their unigram cross-entropy."""
    train = [words(example[0]) for example in splits.get("train", [])]
    flat = [word for text in train for word in text]
    # Every other word: what is expected of a text that is not counted itself.
    counts = Counter(flat[::2])
    expected = _cross_entropy(flat[1::2], counts)
    for name, examples in splits.items():
        others = [word for example in examples for word in words(example[0])]
        if name == "train" or min(len(others), len(flat)) < 10 * LEAST:
            continue
        excess = _cross_entropy(others, counts) - expected
        if excess > OTHER_WORDS:
            unknown = sum(word not in counts for word in others) / len(others)
            yield _mismatch(
                name,
                f"the words of {name} cost {excess:.1f} nats more than those of the training data "
                f"by its frequencies; {100 * unknown:.0f} % are not among them",
            )


def _cross_entropy(text: Sequence[str], counts: Counter[str]) -> float:
    smoothed = counts.total() + 0.5 * (len(counts) + 1)
    return -sum(math.log((counts[word] + 0.5) / smoothed) for word in text) / max(1, len(text))


def _mismatch(split: str, evidence: str) -> Finding:
    return Finding(
        "split_mismatch",
        evidence,
        f"{split} does not look like the training data",
        "shuffle the examples before they are split, or take both from the same source",
        0.85,
    )


# --- whether inputs say anything of labels --------------------------------------------------------


def _label_information(run: RunEvidence, splits: dict[str, list[Example]]) -> Iterator[Finding]:
    """Labels that a linear classifier on the words of the inputs cannot tell, nor the model."""
    train = splits["train"][:MOST]
    classes = sorted({example[-1] for example in train})
    half = len(train) // 2
    gain = _gain(train[:half], train[half:], classes)
    if gain > _noise(len(train) - half):
        for name, examples in splits.items():
            if name == "train" or len(examples) < LEAST or len({one[-1] for one in examples}) < 2:
                continue
            there = _gain(train, examples[:MOST], classes)
            if there < CARRIES_OVER * gain - _noise(len(examples)) / 3:
                yield _unrelated(
                    f"on training data that it has not seen a linear classifier has "
                    f"{100 * gain:.0f} points more than chance, and on {name} {100 * there:.0f}",
                    f"the labels of {name} do not follow from its inputs as in the training data",
                    0.85,
                )
    elif _learns_nothing(run):
        yield _unrelated(
            f"a linear classifier has {100 * gain:.0f} points more than chance on examples that "
            "it has not seen, and the validation loss is that of label frequencies",
            "the inputs say nothing of their labels",
            0.75,
        )


def _noise(count: int) -> float:
    """Three standard deviations of an accuracy."""
    return 1.5 / math.sqrt(count)


def _learns_nothing(run: RunEvidence) -> bool:
    """Whether validation never came below the frequencies of labels."""
    losses = finite(run.log.validation_losses)
    entropy = run.baseline.entropy
    return entropy is not None and len(losses) > 1 and min(losses) > 0.97 * entropy


def _gain(train: list[Example], others: list[Example], classes: list[str]) -> float:
    """By how much a ridge regression to the labels beats chance, the mean over the labels."""
    x = presence([example[0] for example in train])  # [N, W]
    center = x.mean(axis=0)
    x = x - center
    targets = np.array([[example[-1] == label for label in classes] for example in train], float)
    shares = targets.mean(axis=0) + 1e-6
    inverse = np.linalg.inv(x.T @ x + RIDGE * np.eye(x.shape[1]))
    weights = inverse @ (x.T @ (targets - shares))  # [W, C]
    # Relative to the frequency of each label, so that rare ones are predicted as well.
    scores = (presence([example[0] for example in others]) - center) @ weights / shares
    predicted = scores.argmax(axis=1)
    recalls = []
    for number, label in enumerate(classes):
        rows = np.array([example[-1] == label for example in others])
        if rows.any():
            recalls.append(float((predicted[rows] == number).mean()))
    return sum(recalls) / max(1, len(recalls)) - 1 / len(classes)


def _unrelated(evidence: str, cause: str, confidence: float) -> Finding:
    return Finding(
        "labels_unrelated",
        evidence,
        cause,
        "check that labels stand beside their inputs, and were not shuffled or exchanged",
        confidence,
    )
