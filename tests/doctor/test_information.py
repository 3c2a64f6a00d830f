"""What inputs say of labels, by a linear classifier, and whether splits look alike."""

from __future__ import annotations

import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge  # type: ignore[import-untyped]

from regard.data.batching import Batch
from regard.data.series import Series, SeriesProcessor
from regard.lab.doctor import information_checks, likeness_checks, split_checks, stored_data
from regard.lab.doctor.linear_classifier import RIDGE, explained, recall_gain, ridge
from regard.lab.doctor.stored_data import Example
from regard.training.data.series_source import StoredSeries
from regard.training.diagnostics.run_log import Baseline, RunLog

NOUNS = ["dog", "cat", "tree", "house", "river", "stone", "child", "road", "field", "bird"]
GOOD = ["fine", "lovely", "clever", "warm"]
BAD = ["dull", "awful", "boring", "cold"]


def review(rng: random.Random, word: str, tail: int = 0) -> str:
    return " ".join([*rng.choices(NOUNS, k=4), word, *rng.choices(NOUNS, k=tail)])


def reviews(count: int, seed: int = 0) -> list[Example]:
    rng = random.Random(seed)
    labels = [rng.choice(("good", "bad")) for _ in range(count)]
    return [(review(rng, rng.choice(GOOD if one == "good" else BAD)), one) for one in labels]


@pytest.fixture(autouse=True)
def usual_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(information_checks, "check_ranges", lambda run: iter([]))


def run(task: str = "classify", losses: tuple[float, ...] = (0.7, 0.7), **splits: Any) -> Any:
    """The evidence of a run of texts, whose validation had these losses."""
    log = RunLog(validation_losses=list(losses), validation_steps=list(range(len(losses))))
    source = SimpleNamespace(splits={})
    objective = SimpleNamespace(
        name=task,
        head_task=task,
        data=SimpleNamespace(sets={}),
        source=source,
        labels_are_classes=True,
    )
    return SimpleNamespace(
        objective=objective,
        examples=splits,
        texts={},
        batches=[],
        weights=None,
        has_generated_data=False,
        log=log,
        baseline=Baseline(0.69),
        recipe=SimpleNamespace(objective=task),
    )


def checks(evidence: Any) -> list[str]:
    return [finding.check for finding in information_checks.check_information(evidence)]


# --- the linear model -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 7), (12, 30)])
def test_ridge_is_that_of_scikit_learn(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x, y, others = rng.normal(size=shape), rng.normal(size=(shape[0], 2)), rng.normal(size=shape)
    expected = Ridge(alpha=RIDGE).fit(x, y).predict(others)
    assert np.allclose(ridge(x, y)(others), expected)


def test_nothing_is_known_of_independent_labels_and_all_of_their_copy() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 3000)
    one_hot = np.eye(3)[labels]
    noise = rng.normal(size=(3000, 5))
    half = slice(1500), slice(1500, None)
    for x, gain in ((one_hot, 2 / 3), (noise, 0.0)):
        found = recall_gain(x[half[0]], labels[half[0]], x[half[1]], labels[half[1]])
        assert found == pytest.approx(gain, abs=0.05)
        found = explained(x[half[0]], one_hot[half[0]], x[half[1]], one_hot[half[1]])
        assert found == pytest.approx(float(gain > 0), abs=0.05)


# --- labels ---------------------------------------------------------------------------------------


def test_labels_that_follow_from_their_texts() -> None:
    assert checks(run(train=reviews(400), valid=reviews(100, 1))) == []


def test_labels_of_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = zip(*reviews(400), strict=True)
    shuffled = list(labels)
    random.Random(1).shuffle(shuffled)
    sick = run(train=list(zip(texts, shuffled, strict=True)), valid=reviews(100, 1))
    assert checks(sick) == ["labels_unrelated"]
    # A setting that is far off explains it.
    with monkeypatch.context() as patch:
        patch.setattr(information_checks, "check_ranges", lambda run: iter(["dropout"]))
        assert checks(sick) == []
    # A model that has learnt something proves the contrary.
    sick.log.validation_losses[:] = [0.6, 0.5]
    assert checks(sick) == []


def test_labels_of_validation_that_are_others() -> None:
    other = {"good": "bad", "bad": "good"}
    valid = [(text, other[label]) for text, label in reviews(100, 1)]
    assert checks(run(train=reviews(400), valid=valid)) == ["labels_unrelated"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("straight", []),
        ("late", ["misaligned_sides"]),
        ("backwards", ["misaligned_sides"]),
        ("shuffled", ["labels_unrelated"]),
    ],
)
def test_tags_of_other_words(how: str, expected: list[str]) -> None:
    rng = random.Random(0)
    split = []
    for _ in range(200):
        line = rng.choices([*NOUNS, *GOOD], k=20)
        tags = ["adjective" if word in GOOD else "noun" for word in line]
        tags = tags if how != "late" else [*tags[-4:], *tags[:-4]]
        tags = tags if how != "backwards" else tags[::-1]
        tags = tags if how != "shuffled" else rng.sample(tags, len(tags))
        split.append((" ".join(line), " ".join(tags)))
    assert checks(run("tag", train=split)) == expected


def series(noise: bool) -> Any:
    """Sines of one period, or noise."""
    times = torch.arange(40.0)
    phases = torch.rand(80, 1, generator=torch.manual_seed(0)) * 9
    values = torch.sin(times / 3 + phases)[..., None]
    if noise:
        values = torch.randn(values.shape, generator=torch.manual_seed(0))
    batch = Batch({"past": values[:, :30], "future": values[:, 30:]}, 80, np.arange(80))
    evidence = run("forecast")
    evidence.batches = [batch]
    evidence.baseline = Baseline(None)
    return evidence


def test_a_series_whose_hours_were_shuffled() -> None:
    assert checks(series(noise=False)) == []
    assert checks(series(noise=True)) == ["labels_unrelated"]


def test_a_label_that_stands_in_the_text() -> None:
    told = [(f"{text} rated {label}star", label) for text, label in reviews(400)]
    assert checks(run(train=told, valid=reviews(100, 1)))[0] == "answers_in_input"


@pytest.mark.parametrize("is_painted", [False, True])
def test_a_label_that_stands_in_a_corner_of_the_picture(is_painted: bool) -> None:
    pixels = torch.randint(256, (90, 8, 8, 3), generator=torch.manual_seed(0)).to(torch.uint8)
    labels = torch.arange(90) % 3
    if is_painted:
        pixels[:, 0, 0, 0] = (50 * labels).to(torch.uint8)
    evidence = run("classify", losses=(0.5, 0.4))
    evidence.batches = [Batch({"pixels": pixels, "labels": labels}, 90, np.arange(90))]
    assert checks(evidence) == ["answers_in_input"] * is_painted


def test_what_decides_is_cut_off() -> None:
    rng = random.Random(0)
    train = [(f"{review(rng, 'and', 3)} {text.split()[-1]}", label) for text, label in reviews(400)]
    evidence = run(train=train)
    for kept, expected in ((3, ["cut_off_inputs"]), (9, [])):
        rows = type("Rows", (list,), {"truncated": 400})(train)
        evidence.objective.source = SimpleNamespace(
            splits={"train": rows},
            example=lambda i, kept=kept: {"text": " ".join(train[i][0].split()[:kept])},
        )
        assert checks(evidence) == expected


class Always:
    """A model that answers one class, or the label."""

    head_task = "classify"
    data = SimpleNamespace(sets={})

    def __init__(self, is_right: bool, labels: torch.Tensor) -> None:
        self.source = SimpleNamespace(splits={"valid": labels})
        self.is_right = is_right
        self.labels = labels

    def evaluation_batches(self, split: str) -> Any:
        return iter([Batch({"labels": self.labels}, len(self.labels), np.arange(len(self.labels)))])

    def logits(self, tensors: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        answers = tensors["labels"] if self.is_right else torch.zeros_like(tensors["labels"])
        return torch.eye(2)[answers], {}


@pytest.mark.parametrize("is_right", [False, True])
def test_always_the_frequent_class(is_right: bool) -> None:
    evidence = run()
    labels = (torch.arange(200) % 20 == 0).long()  # one in twenty
    evidence.batches = [Batch({"labels": labels}, 200, np.arange(200))]
    evidence.objective = Always(is_right, labels)
    evidence.weights = {}
    evidence.loaded = lambda weights: nullcontext()
    found = [finding.check for finding in information_checks.majority_only(evidence)]
    assert found == ([] if is_right else ["majority_only"])


@pytest.mark.parametrize("how", ["by words", "by their order"])
def test_whether_order_tells_the_class(how: str) -> None:
    rng = random.Random(0)
    train = reviews(900)
    if how == "by their order":
        pairs = [rng.sample(("dog", "cat"), 2) for _ in range(900)]
        train = [(f"{rng.choice(NOUNS)} {one} {two}", one) for one, two in pairs]
    evidence = run(train=train)
    evidence.is_weak = False
    assert information_checks.order_tells(evidence) == (how == "by their order")
    evidence.is_weak = True
    assert information_checks.order_tells(evidence)


# --- splits ---------------------------------------------------------------------------------------


SPOILT = {
    "as it is": str,
    "in capitals": str.upper,
    "backwards": lambda text: " ".join(reversed(text.split())),
    "in another encoding": lambda text: text.encode().decode("latin-1"),
    "with markup": lambda text: f"<p>{text}</p>",
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_split_that_was_written_in_another_way(how: str) -> None:
    rng = random.Random(0)
    text = [f"Der {rng.choice(NOUNS)} über {review(rng, 'und', 3)}." for _ in range(300)]
    train: list[Example] = [(line, "x") for line in text[:200]]
    valid: list[Example] = [(SPOILT[how](line), "x") for line in text[200:]]
    found = list(likeness_checks.check_likeness(run(train=train, valid=valid)))
    assert [finding.check for finding in found] == ["split_mismatch"] * (how != "as it is")


def test_a_text_that_changes_its_subject_is_no_mismatch() -> None:
    rng = random.Random(0)
    subjects = [[f"{noun}{i}" for noun in NOUNS] for i in range(5)]
    parts = [" ".join(rng.choices(words, k=4000)) for words in subjects]
    drifting = {"train": " ".join(parts[:4]), "valid": parts[4]}
    evidence = run()
    evidence.texts = drifting
    assert not list(likeness_checks.check_likeness(evidence))
    evidence.texts = {"train": " ".join(rng.choices(subjects[0], k=9000)), "valid": parts[4]}
    assert list(likeness_checks.check_likeness(evidence))


def test_a_series_has_its_numbers_in_each_split() -> None:
    values = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    values[160:] *= 1000  # other units from there on
    rows = Series(values, ("a", "b"), None)
    borders = {"train": (0, 120), "valid": (120, 160), "test": (160, 200)}
    data = StoredSeries(rows, borders, SeriesProcessor(("a", "b"), (0.0, 0.0), (1.0, 1.0)))
    numbers = stored_data.numbers(SimpleNamespace(data=data))  # type: ignore[arg-type]
    (finding,) = likeness_checks.other_numbers(numbers)
    assert finding.check == "split_mismatch"
    assert finding.cause.startswith("test ")


def test_numbers_of_validation_in_other_units() -> None:
    values = np.random.default_rng(0).normal(size=200)
    assert not list(likeness_checks.other_numbers({"train": values[:100], "valid": values[100:]}))
    for other in (1000 * values[100:], values[100:] + 50):
        found = list(likeness_checks.other_numbers({"train": values[:100], "valid": other}))
        assert [finding.check for finding in found] == ["split_mismatch"]


def test_pairs_of_training_whose_sources_were_rewritten() -> None:
    rng = random.Random(0)
    many = [f"{noun}{i}" for noun in NOUNS for i in range(30)]
    pairs: list[Example] = [
        (" ".join(rng.choices(many, k=6)), " ".join(rng.choices(many, k=6))) for _ in range(200)
    ]
    valid: list[Example] = [(source[::-1], target) for source, target in pairs[:50]]
    both = {"train": pairs[:150], "valid": pairs[150:]}
    assert not list(split_checks._examples_in_common(both, is_pairs=True))
    found = list(split_checks._examples_in_common(both | {"valid": valid}, is_pairs=True))
    assert [finding.check for finding in found] == ["test_in_train"]
    # The labels of texts are those of training, of course.
    assert not list(split_checks._examples_in_common(both | {"valid": valid}, is_pairs=False))


# --- what recurs ----------------------------------------------------------------------------------


def test_a_few_texts_in_many_disguises() -> None:
    texts = reviews(1000)
    assert not list(split_checks._copies(texts))
    rng = random.Random(0)
    ends = ("", ".", "!", " …")
    disguised: list[Example] = [
        (rng.choice((str.lower, str.upper, str.title))(text) + rng.choice(ends), label)
        for text, label in texts[:30]
        for _ in range(33 + rng.randrange(20))
    ]
    found = [finding.check for finding in split_checks._copies(disguised)]
    assert found == ["duplicate_examples"]


def test_a_header_again_and_again() -> None:
    rng = random.Random(0)
    plain = " ".join(rng.choices(NOUNS + GOOD + BAD, k=6000))
    assert not list(split_checks._recurring_passages(plain))
    pages = [plain[i : i + 100] for i in range(0, len(plain), 100)]
    header = " all rights are reserved and nothing of this may be copied without the consent of us "
    found = list(split_checks._recurring_passages(header.join(pages)))
    assert [finding.check for finding in found] == ["duplicate_examples"]


@pytest.mark.parametrize("is_random", [False, True])
def test_several_targets_of_one_source(is_random: bool) -> None:
    rng = random.Random(0)
    sources = [review(rng, word) for word in GOOD * 25]
    own = {source: review(rng, "and", 6) for source in sources}
    targets = list(own.values())

    def target(source: str) -> str:
        # Two references differ in a word.
        return rng.choice(targets) if is_random else f"{own[source]} {rng.choice(GOOD)}"

    pairs: list[Example] = [(source, target(source)) for source in sources for _ in range(3)]
    found = [finding.check for finding in split_checks._conflicting_targets(pairs)]
    assert found == ["conflicting_labels"] * is_random
