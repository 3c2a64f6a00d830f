"""Examples of a generated task, in the form that an objective learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from regard.data.generated.algorithmic_tasks import SEPARATOR, GeneratedTask
from regard.data.labelled import LabelledText
from regard.system.errors import SettingError
from regard.training.setup import Setup, Split

# Unless the recipe has test_lines.
VALIDATION_EXAMPLES = 500
TEST_EXAMPLES = 1000
LINE_END = "\n"  # where a language model ends its answer


def generated_pairs(setup: Setup) -> dict[str, Split]:
    """Input and target sequences, by split."""
    return _splits(setup, lambda source, target: (source, target))


def generated_lines(setup: Setup) -> dict[str, Split]:
    """Lines of text for language models, by split: input, separator, target."""
    # The space in front makes the first token of a line the same as elsewhere.
    return _splits(setup, lambda source, target: f"{_prompt(source)} {target}{LINE_END}")


def generated_prompts(setup: Setup) -> dict[str, Split]:
    """Prompts and targets of the splits that a language model is tested on."""
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
