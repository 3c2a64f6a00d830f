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
from regard.training.data.generated_examples import generated_labelled_texts
from regard.training.data.plain_text import SPECIAL_TOKENS
from regard.training.recipe.sections import TokenSettings
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


class StoredExamples(Iterable[Any]):
    """Examples in a file, read anew by each iteration: they may be larger than memory."""

    def __init__(self, path: Path, read: Reader) -> None:
        self.path = path
        self.read = read

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read(str(self.path)))


@dataclass(frozen=True)
class LabelledSplits:
    """Labelled examples: those to train on as a stream, the others as lists."""

    train: Iterable[Any]
    others: Sets  # valid, test, …


def labelled_splits(
    setup: Setup, read: Reader, generate: Generator | None = None
) -> LabelledSplits:
    """The examples by split, stored in the run folder on the first call.

    `read` reads a file of them; `generate` yields examples where the recipe names no file.
    """
    folder = setup.run_folder.data
    if not (folder / "train.jsonl").exists():
        splits = dict(setup.splits(lambda _: _example_splits(setup, read, generate)))
        if "valid" not in splits:
            splits |= held_out_stream(splits["train"])
        folder.mkdir(parents=True, exist_ok=True)
        # Written last: the presence of the training set says that all are there.
        for name in sorted(splits, key=lambda name: name == "train"):
            disk.write_lines(folder / f"{name}.jsonl", labelled.example_lines(splits[name]()))
    stored = {path.stem: StoredExamples(path, read) for path in sorted(folder.glob("*.jsonl"))}
    train = stored.pop("train")
    return LabelledSplits(train, {name: list(examples) for name, examples in stored.items()})


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


def with_held_out(sets: Sets) -> Sets:
    """Where there is no validation set, some training examples validate: a tenth, up to a limit."""
    examples = sets["train"]
    if "valid" in sets or len(examples) < MIN_TO_HOLD_OUT:
        return sets
    splits = held_out_stream(partial(iter, examples))
    return {**sets, **{name: list(split()) for name, split in splits.items()}}


def held_out_stream(train: Split) -> dict[str, Split]:
    """The same of a split that may be larger than memory: `train` and, perhaps, `valid`."""
    count = sum(1 for _ in train())
    if count < MIN_TO_HOLD_OUT:
        return {"train": train}
    return one_in(max(HOLD_OUT_EVERY, count // MAX_HELD_OUT), train)


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
    path = setup.run_folder.folder / "tokenizer.json"
    if not path.exists():
        tokens = setup.recipe.tokens
        kind = tokens.tokenizer if "tokenizer" in tokens.model_fields_set else default
        disk.write_file(path, _tokenizer_json(kind, tokens, texts, template))
    return open_encoder_tokenizer(setup.run_folder.folder)


def _tokenizer_json(
    kind: str,
    tokens: TokenSettings,
    texts: Callable[[], Iterable[str]],
    template: SpecialTokenTemplate | None,
) -> str:
    if kind == "words" and template is None:
        # All words, unless their number is named.
        is_limited = "vocabulary" in tokens.model_fields_set
        return word_level_json(texts(), size=tokens.vocabulary if is_limited else None)
    if kind.endswith(".json"):
        return disk.read_text(Path(kind), SettingError)
    template = template or SPECIAL_TOKENS["masked"]
    tokenizer = train_lossless_tokenizer(texts(), kind, tokens.vocabulary, template)
    return tokenizer.to_json()
