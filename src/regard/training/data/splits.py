"""Splits of training examples: mixtures and samples of corpora, examples of generated tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.data.corpus import Mixture
from regard.data.file_access import expand, split_location
from regard.data.generated.algorithmic_tasks import SEPARATOR, GeneratedTask
from regard.data.labelled import LabelledText
from regard.system.errors import SettingError
from regard.training.recipe.schema import Recipe
from regard.training.setup import Say, Setup, Split

_NAMED_FILES = 5  # of a folder, the others are counted


@dataclass(frozen=True)
class CorporaSplit:
    """A split of several corpora, by name. Called as any split, it yields one after the other."""

    corpora: Mapping[str, Split]

    def __call__(self) -> Iterator[Any]:
        return chain.from_iterable(corpus() for corpus in self.corpora.values())


def split_of(corpora: Mapping[str, Split]) -> Split:
    """The split of one corpus or of several."""
    if len(corpora) == 1:
        return next(iter(corpora.values()))
    return CorporaSplit(corpora)


def corpora_of(split: Split) -> dict[str, Split]:
    """The corpora of a split; one without a name where it is not of several."""
    return dict(split.corpora) if isinstance(split, CorporaSplit) else {"": split}


def held_out_of_each(
    corpora: Mapping[str, Split], hold_out: Callable[[str, Split], Mapping[str, Split]]
) -> dict[str, Split]:
    """`train` and `valid` of corpora, each of which has its part in the validation set."""
    parts = {name: hold_out(name, corpus) for name, corpus in corpora.items()}
    splits = {}
    for split in ("train", "valid"):
        named = {name: part[split] for name, part in parts.items() if split in part}
        if named:
            splits[split] = split_of(named)
    return splits


def say_files(location: str, say: Say) -> None:
    """Says which files are read where a folder or a glob was named."""
    for path in split_location(location):
        files = expand(path)
        if files == [path]:
            continue
        names = ", ".join(Path(file).name for file in files[:_NAMED_FILES])
        unnamed = len(files) - _NAMED_FILES
        more = f" and {unnamed:,} more" if unnamed > 0 else ""
        say(f"data: {path} is read as {names}{more}")


def evenly_spaced(split: Split, most: int | None) -> Split:
    """At most so many examples of a split, from all over it."""
    if most is None:
        return split
    every = -(-sum(1 for _ in split()) // most)
    return lambda: islice(split(), 0, None, max(1, every))


def mixture(recipe: Recipe) -> Mixture | None:
    """How the recipe mixes its corpora; None: they follow one another, as one corpus."""
    temperature = recipe.data.mixture_temperature
    weights = recipe.mixture_weights
    if weights is None and temperature is None:
        return None
    return Mixture(weights, temperature)


# --- examples of a generated task -----------------------------------------------------------------


# Unless the recipe has test_lines.
VALIDATION_EXAMPLES = 500
TEST_EXAMPLES = 1000
LINE_END = "\n"  # where a language model ends its answer


def generated_pairs(setup: Setup) -> dict[str, Split]:
    """Input and target sequences, by split."""
    return _splits(setup, lambda source, target: (source, target))


def generated_lines(setup: Setup) -> dict[str, Split]:
    """Lines of text for language models, by split: input, separator, target."""
    if _has_texts(setup):
        return _splits(setup, lambda text, _: f"{text}{LINE_END}")
    # The space in front makes the first token of a line the same as elsewhere.
    return _splits(setup, lambda source, target: f"{_prompt(source)} {target}{LINE_END}")


def _has_texts(setup: Setup) -> bool:
    """Whether the examples of the generated task are texts, without targets."""
    task = setup.recipe.generated_task
    return task is not None and task.kind == "texts"


def generated_prompts(setup: Setup) -> dict[str, Split]:
    """Prompts and targets of the splits that a language model is tested on."""
    if _has_texts(setup):
        return {}
    splits = _splits(setup, lambda source, target: (_prompt(source), target))
    return {name: split for name, split in splits.items() if name not in ("train", "valid")}


def _prompt(source: str) -> str:
    return f" {source} {SEPARATOR}"


def generated_labelled_texts(setup: Setup) -> dict[str, Split]:
    """Texts with their class, by split."""
    context = setup.recipe.data.context

    def labelled(text: str, label: str) -> LabelledText:
        tokens = 1 + len(text.split())  # the start token and the words
        # A text that is cut off has another answer.
        if tokens > context:
            raise SettingError(
                f"a generated text has {tokens} tokens, and the context is {context}",
                "raise context, or generate shorter texts",
            )
        return LabelledText(text, None, label)

    return _splits(setup, labelled)


def _splits(setup: Setup, form: Callable[[str, str], Any]) -> dict[str, Split]:
    recipe = setup.recipe
    task = recipe.generated_task
    assert task is not None, "asked for where the recipe names a task"
    test = recipe.data.test_lines or TEST_EXAMPLES
    # "longer" holds lengths beyond those of training: it measures extrapolation.
    counts = {
        "train": recipe.data.builtin_lines,
        "valid": recipe.data.test_lines or VALIDATION_EXAMPLES,
        "test": test,
        "longer": test,
    }
    return {name: partial(_examples, task, name, count, form) for name, count in counts.items()}


def _examples(
    task: GeneratedTask, split: str, count: int, form: Callable[[str, str], Any]
) -> Iterator[Any]:
    for source, target in islice(task.examples(split), count):
        yield form(source, target)
