"""Labelled examples: from the files a recipe names, or a generator, to files in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data import labelled
from regard.data.labelled import LabelledText
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.data.text.tokenizer_training import (
    SpecialTokenTemplate,
    train_lossless_tokenizer,
    word_level_json,
)
from regard.system import disk
from regard.system.errors import DataError, SettingError
from regard.training.data.plain_text import SPECIAL_TOKENS
from regard.training.data.splits import generated_labelled_texts
from regard.training.setup import Setup, Split

Sets = dict[str, list[Any]]  # train, valid, test, … → examples
Reader = Callable[[str], Iterable[Any]]  # of a file; read anew with each call
Generator = Callable[[str], Iterator[tuple[str, str | int]]]  # of a split: texts and labels

# Without validation data, every tenth of 100 or more examples validates, but not more than 1,000.
HOLD_OUT_EVERY = 10
MAX_HELD_OUT = 1000
MIN_TO_HOLD_OUT = 100
GENERATED_VALIDATION = 2000  # examples
GENERATED_TEST = 10_000


@dataclass(frozen=True)
class StoredExamples(Iterable[Any]):
    """Examples in a file, read anew by each iteration: they may be larger than memory."""

    path: Path
    read: Reader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read(str(self.path)))


def labelled_splits(
    setup: Setup, read: Reader, generate: Generator | None = None
) -> tuple[Iterable[Any], Sets]:
    """The examples to train on, and those of the other splits; stored on the first call.

    `read` reads a file of them; `generate` yields examples where the recipe names no file.
    """
    folder = setup.run_folder.data
    if not (folder / "train.jsonl").exists():
        splits = with_held_out(setup.splits(lambda _: _example_splits(setup, read, generate)))
        for name, split in in_order_of_writing(splits, folder):
            disk.write_lines(folder / f"{name}.jsonl", labelled.example_lines(split()))
    stored = {path.stem: StoredExamples(path, read) for path in sorted(folder.glob("*.jsonl"))}
    train = stored.pop("train")
    return train, {name: list(examples) for name, examples in stored.items()}


def in_order_of_writing(splits: Mapping[str, Split], folder: Path) -> list[tuple[str, Split]]:
    """The training set last: its presence in the folder says that all are there."""
    folder.mkdir(parents=True, exist_ok=True)
    return sorted(splits.items(), key=lambda split: split[0] == "train")


def sets_of_files(setup: Setup, read: Reader) -> list[tuple[str, list[Any]]]:
    """All examples that a recipe names, some of them held out to validate; to be written."""
    splits = with_held_out(setup.splits(partial(splits_of_files, read)))
    in_order = in_order_of_writing(splits, setup.run_folder.data)
    return [(name, list(split())) for name, split in in_order]


def _example_splits(setup: Setup, read: Reader, generate: Generator | None) -> dict[str, Split]:
    """The examples that a recipe names, by split."""
    recipe = setup.recipe
    if recipe.generated_task is not None:
        return generated_labelled_texts(setup)
    if recipe.files:
        return splits_of_files(read, setup)
    assert generate is not None, "the recipe has checked that"

    def generated(split: str, count: int) -> Iterator[LabelledText]:
        for text, label in islice(generate(split), count):
            yield LabelledText(text, None, str(label))

    data = recipe.data
    return {
        "train": partial(generated, "train", data.builtin_lines),
        "valid": partial(generated, "valid", data.test_lines or GENERATED_VALIDATION),
        "test": partial(generated, "test", data.test_lines or GENERATED_TEST),
    }


def splits_of_files(read: Reader, setup: Setup) -> dict[str, Split]:
    """The examples of the files that a recipe names, by split."""

    def examples(files: Sequence[str]) -> Iterator[Any]:
        for file in files:
            yield from read(file)

    splits: dict[str, Split] = {}
    for name, files in setup.recipe.files.items():
        # Standard input can be read once.
        splits[name] = (
            partial(iter, [*examples(files)]) if "-" in files else partial(examples, files)
        )
    return splits


def with_held_out(splits: Mapping[str, Split]) -> dict[str, Split]:
    """Where there is no validation set, some training examples validate: a tenth, up to a limit."""
    if "valid" in splits:
        return dict(splits)
    count = sum(1 for _ in splits["train"]())
    if count < MIN_TO_HOLD_OUT:
        return dict(splits)
    every = max(HOLD_OUT_EVERY, count // MAX_HELD_OUT)
    return {**splits, **one_in(every, splits["train"])}


def one_in(every: int, train: Split, most: int = MAX_HELD_OUT) -> dict[str, Split]:
    """One in so many validates, not the last ones nor the first: files are often sorted by class.

    Behind the most that are held out, all train.
    """

    def part(validates: bool) -> Iterator[Any]:
        for number, example in enumerate(train(), 1):
            if validates and number > every * most:
                return
            if (number % every == 0 and number <= every * most) == validates:
                yield example

    return {"train": partial(part, False), "valid": partial(part, True)}


def class_names(labels: Iterable[str]) -> list[str]:
    """The classes of the training data, sorted."""
    names = sorted(set(labels))
    if len(names) < 2:
        raise DataError(
            f"there is only one label: {', '.join(names)}", "give examples of two labels or more"
        )
    return names


def label_id(label: str, ids: Mapping[str, int]) -> int:
    """The id of a label, which must be one of the training data."""
    if label not in ids:
        raise DataError(
            f"the label {label!r} is not in the training data",
            f"correct it, or train with it; known: {', '.join(ids)}",
        )
    return ids[label]


def encoder_tokenizer(
    setup: Setup,
    texts: Callable[[], Iterable[str]],
    *,
    default: str = "words",
    template: SpecialTokenTemplate | None = None,
) -> Tokenizer:
    """The tokenizer of a new text encoder, learnt on the first call.

    `default` is its kind, unless the recipe names one; `template` its special tokens, unless they
    are those of BERT.
    """
    tokens = setup.recipe.tokens

    def learn(kind: str) -> str:
        if kind == "words" and template is None:
            # All words, unless their number is named.
            is_limited = "vocabulary" in tokens.model_fields_set
            return word_level_json(texts(), size=tokens.vocabulary if is_limited else None)
        special_tokens = template or SPECIAL_TOKENS["masked"]
        return train_lossless_tokenizer(texts(), kind, tokens.vocabulary, special_tokens).to_json()

    return stored_tokenizer(setup, default, learn)


def stored_tokenizer(setup: Setup, default: str, learn: Callable[[str], str]) -> Tokenizer:
    """The tokenizer that a recipe names: a file, or a kind whose tokenizer.json `learn` makes.

    It is stored in the run folder on the first call.
    """
    path = setup.run_folder.folder / "tokenizer.json"
    if not path.exists():
        tokens = setup.recipe.tokens
        kind = tokens.tokenizer if "tokenizer" in tokens.model_fields_set else default
        is_file = kind.endswith(".json")
        content = disk.read_text(Path(kind), SettingError) if is_file else learn(kind)
        disk.write_file(path, content)
    return open_encoder_tokenizer(setup.run_folder.folder)
