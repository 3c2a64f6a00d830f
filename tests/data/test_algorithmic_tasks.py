"""Algorithmic tasks: each example is right by an independent rule, and splits do not meet."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listops_value import evaluate

from regard.cli.data import command
from regard.data import labelled
from regard.data.generated.algorithmic_tasks import (
    SEPARATOR,
    SPLITS,
    TASKS,
    AlgorithmicTask,
    AssociativeRecall,
    Copying,
    Dyck,
    ListOps,
    Parity,
    write_examples,
)
from regard.data.generated.molecules import is_valid
from regard.system.errors import DataError, SettingError

# --- rules that know only the text of an example ---


def is_sorted_copy(source: str, target: str) -> bool:
    numbers = [int(token) for token in target.split()]
    in_order = all(a <= b for a, b in pairwise(numbers))
    return in_order and Counter(source.split()) == Counter(target.split())


def is_sum(source: str, target: str) -> bool:
    """Schoolbook addition, from the last digits."""
    first, second = (list(map(int, term.split()))[::-1] for term in source.split(" + "))
    digits = []
    carry = 0
    for i in range(max(len(first), len(second))):
        carry += sum(term[i] for term in (first, second) if i < len(term))
        digits.append(carry % 10)
        carry //= 10
    if carry:
        digits.append(carry)
    return " ".join(map(str, reversed(digits))) == target


def is_recalled(source: str, target: str) -> bool:
    """The answer stands behind the one earlier place of the key."""
    pairs, query = source.split(" ? ")
    return re.findall(rf"\b{query} (\w+)", pairs) == [target]


def is_parity(source: str, target: str) -> bool:
    return target == ("odd" if int(source.replace(" ", ""), 2).bit_count() & 1 else "even")


def is_dyck_label(source: str, target: str) -> bool:
    """A word is balanced if nothing is left after adjacent pairs have been removed."""
    word = source.replace(" ", "")
    while (shorter := word.replace("()", "").replace("[]", "")) != word:
        word = shorter
    return target == ("unbalanced" if word else "balanced")


def atoms(source: str) -> int:
    return len(re.findall(r"Cl|Br|\[nH\]|[A-Za-z]", source))


CHECKERS: dict[str, Callable[[str, str], bool]] = {
    "copying": lambda source, target: source == target,
    "reversing": lambda source, target: source.split() == target.split()[::-1],
    "sorting": is_sorted_copy,
    "addition": is_sum,
    "smiles": lambda source, target: is_valid(source) and not target,
    "associative_recall": is_recalled,
    "parity": is_parity,
    "dyck": is_dyck_label,
    "listops": lambda source, target: str(evaluate(source)) == target,
}

# The length of an input in the unit of its task, by its text.
LENGTHS: dict[str, Callable[[str], int]] = {
    "copying": lambda source: len(source.split()),
    "reversing": lambda source: len(source.split()),
    "sorting": lambda source: len(source.split()),
    "addition": lambda source: max(len(term.split()) for term in source.split(" + ")),
    "associative_recall": lambda source: source.count("v"),
    "parity": lambda source: len(source.split()),
    "dyck": lambda source: len(source.split()) // 2,
    "smiles": atoms,
}


def test_every_task_has_a_rule_here() -> None:
    assert CHECKERS.keys() == TASKS.keys()
    assert LENGTHS.keys() | {"listops"} == TASKS.keys()


@pytest.mark.parametrize("name", LENGTHS)
@given(
    split=st.sampled_from(SPLITS),
    index=st.integers(0, 10**9),
    seed=st.integers(0, 100),
    lengths=st.tuples(st.integers(1, 30), st.integers(0, 10)),
)
def test_an_example_is_right_and_as_long_as_asked(
    name: str, split: str, index: int, seed: int, lengths: tuple[int, int]
) -> None:
    least, span = lengths
    # Of fewer than 10, there may be too few inputs.
    most = max(10, least + span)
    task = TASKS[name](least, most)
    assert isinstance(task, AlgorithmicTask)
    source, target = task.example(split, index, seed)
    assert CHECKERS[name](source, target)
    assert (source, target) == task.example(split, index, seed)
    length = LENGTHS[name](source)
    if split == "longer":
        assert most < length <= 2 * most
    else:
        assert least <= length <= most
        assert task.split_of_input(source, length) == split


@pytest.mark.parametrize("name", TASKS)
def test_streams_are_right_fixed_and_differ_by_seed(name: str) -> None:
    task = TASKS[name](min_length=8, max_length=16)
    for split in SPLITS:
        first = list(islice(task.examples(split), 100))
        assert all(CHECKERS[name](*example) for example in first)
        assert first == list(islice(task.examples(split), 100))
        assert first != list(islice(task.examples(split, 1), 100))


@pytest.mark.parametrize("name", LENGTHS)
def test_splits_do_not_meet_whatever_the_seed(name: str) -> None:
    task = TASKS[name](min_length=2, max_length=14)
    inputs = {
        split: {source for seed in (0, 1) for source, _ in islice(task.examples(split, seed), 500)}
        for split in SPLITS
    }
    for split in SPLITS:
        for other in SPLITS:
            assert split == other or not inputs[split] & inputs[other]
    # Nor are the streams poor: few inputs come twice, but for the shortest in training.
    assert all(len(sources) > 600 for sources in inputs.values())


@pytest.mark.parametrize("name", LENGTHS)
def test_all_lengths_occur_about_as_often(name: str) -> None:
    task = TASKS[name](min_length=1, max_length=19)
    assert isinstance(task, AlgorithmicTask)
    for split in ("train", "test"):
        examples = islice(task.examples(split), 2000)
        counts = Counter(LENGTHS[name](source) for source, _ in examples)
        assert set(counts) == set(task.lengths(split))
        assert min(counts.values()) > 0.6 * 2000 / len(counts)
    assert task.lengths("train") == range(1, 20)


def test_short_inputs_are_for_training_only() -> None:
    """There are 512 words of 9 bits: their tenth would be no fair sample."""
    assert Parity(1, 40).lengths("train") == range(1, 41)
    assert Parity(1, 40).lengths("valid") == Parity(1, 40).lengths("test") == range(10, 41)
    short = {source for source, _ in islice(Parity(1, 12).examples("train"), 2000)}
    assert {"0", "1", "0 0", "0 1", "1 0", "1 1"} <= short


@pytest.mark.parametrize("name", ["parity", "dyck"])
@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_even(name: str, split: str) -> None:
    counts = Counter(label for _, label in islice(TASKS[name]().examples(split), 1000))
    assert len(counts) == 2
    assert min(counts.values()) > 430


def test_brackets_cannot_be_told_by_counting() -> None:
    """Many unbalanced words have as many of each bracket as a balanced one."""
    words = [w for w, label in islice(Dyck().examples("train"), 2000) if label == "unbalanced"]
    counts = [Counter(word.split()) for word in words]
    equal = sum(count["("] == count[")"] and count["["] == count["]"] for count in counts)
    assert 0.3 < equal / len(words) < 0.8


def test_shapes_of_balanced_words_are_equally_likely() -> None:
    examples = islice(Dyck(3, 9).examples("train"), 10_000)
    words = [word for word, label in examples if label == "balanced" and word.count(" ") == 5]
    shapes = Counter(word.replace("[", "(").replace("]", ")") for word in words)
    assert len(shapes) == 5  # Catalan's number of 3
    assert max(shapes.values()) < 2 * min(shapes.values())


# --- files and commands ---


def test_classes_are_read_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "parity.tsv"
    with path.open("w") as out:
        write_examples(out, Parity().examples("train"), 20)
    examples = [(example.text, example.label) for example in labelled.labelled_texts(path)]
    assert examples == list(islice(Parity().examples("train"), 20))


def test_a_language_model_reads_input_and_target_as_one_text() -> None:
    out = io.StringIO()
    write_examples(out, Copying().examples("valid"), 5, f" {SEPARATOR} ")
    for line, (source, target) in zip(
        out.getvalue().splitlines(), Copying().examples("valid"), strict=False
    ):
        assert line == f"{source} = {target}"


@pytest.mark.parametrize("name", TASKS)
def test_the_command_writes_the_stream(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--min-length", "8", "--max-length", "12"]
    flags = ["--split", "longer", "--lines", "3", "--seed", "5"]
    command([name, *lengths, *flags], standalone_mode=False)
    lines = [line.partition("\t")[::2] for line in capsys.readouterr().out.splitlines()]
    assert lines == list(islice(TASKS[name](8, 12).examples("longer", 5), 3))


# --- bad input ---


def test_what_cannot_be_generated_is_refused() -> None:
    with pytest.raises(DataError, match="no lengths from 5 to 4"):
        Copying(5, 4)
    with pytest.raises(DataError, match="no lengths from 0"):
        Copying(0, 4)
    with pytest.raises(DataError, match="too few inputs"):
        Parity(1, 3)
    with pytest.raises(DataError, match="length of 50 or less"):
        AssociativeRecall(1, 51)
    with pytest.raises(SettingError, match="did you mean 'train'"):
        next(Copying().examples("trian"))
    with pytest.raises(SettingError, match="did you mean 'valid'"):
        next(ListOps().examples("valdi"))
