"""What the examples of each task are, where they are given as a list: its own type, or tuples."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.audio import Recording
from regard.data.graphs import GraphData
from regard.data.labelled import LabelledText, Question, RatedText, TaggedWords, TextPair
from regard.data.labelled_images import LabelledImage
from regard.data.series import Series
from regard.errors import DataError


@dataclass(frozen=True)
class ExampleKind:
    """A kind of examples: `take` gives the example that a value stands for, or None if none."""

    description: str  # of one example, for error messages
    take: Callable[[Any], Any]

    def examples(self, values: Sequence[Any]) -> list[Any]:
        """The examples that values stand for; `DataError` names the first that is none."""
        examples = []
        for number, value in enumerate(values):
            example = self.take(value)
            if example is None:
                raise DataError(
                    f"example {number} is {shortened(value)}",
                    f"pass each example as {self.description}",
                )
            examples.append(example)
        return examples


def shortened(value: object) -> str:
    """A value for an error message, in a line."""
    return " ".join(reprlib.repr(value).split())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _text_or_ids(value: Any) -> Any:
    match value:
        case str():
            return value
        # bool is a kind of int in Python, and no token.
        case [*ids] if all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
            return ids
        case _:
            return None


def _source_and_reference(value: Any) -> tuple[str, str] | None:
    match value:
        case (str() as source, str() as reference):
            return source, reference
        case _:
            return None


def _labelled_text(value: Any) -> LabelledText | None:
    match value:
        case LabelledText(text=str(), text2=str() | None, label=str()):
            return value
        case (str() as text, str() as label):
            return LabelledText(text, None, label)
        case (str() as text, str() as text2, str() as label):
            return LabelledText(text, text2, label)
        case _:
            return None


def _rated_text(value: Any) -> RatedText | None:
    match value:
        case RatedText(text=str(), text2=str() | None, score=score):
            rated = value
        case (str() as text, score):
            rated = RatedText(text, None, score)
        case (str() as text, str() as text2, score):
            rated = RatedText(text, text2, score)
        case _:
            return None
    is_number = isinstance(score, int | float | np.number) and math.isfinite(score)
    return rated if is_number else None


def _text_pair(value: Any) -> TextPair | None:
    match value:
        case TextPair(text=str(), text2=str()):
            return value
        case (str() as text, str() as text2):
            return TextPair(text, text2)
        case _:
            return None


def _tagged_words(value: Any) -> TaggedWords | None:
    match value:
        case TaggedWords(tokens=[*words], tags=[*tags]) | ([*words], [*tags]):
            are_texts = all(isinstance(one, str) for one in (*words, *tags))
            if are_texts and words and len(words) == len(tags):
                return TaggedWords(words, tags)
    return None


def _question(value: Any) -> Question | None:
    match value:
        case Question(question=str(), context=str(), answer_start=int(), text=str()):
            return value
        case _:
            return None


def _labelled_image(value: Any) -> LabelledImage | None:
    match value:
        case LabelledImage(image=image, text=str() as text) | (image, str() as text):
            # Whether it is an image is checked when it is opened.
            return LabelledImage(image, text)
        case _:
            return None


def _recording(value: Any) -> Recording | None:
    match value:
        case Recording(audio=audio, text=str() as text) | (audio, str() as text):
            pass
        case _:
            return None
    match audio:
        case str():
            return Recording(Path(audio), text)
        case Path() | np.ndarray():
            return Recording(audio, text)
        case _:
            return None


def _series(value: Any) -> Series | None:
    match value:
        case Series(values=np.ndarray(ndim=2) as values) if np.issubdtype(values.dtype, np.number):
            return value
        case _:
            return None


def _graphs(value: Any) -> GraphData | None:
    return value if isinstance(value, GraphData) else None


TEXT = ExampleKind("a text", _text)
TEXT_OR_IDS = ExampleKind("a text, or a list of token ids", _text_or_ids)
SOURCE_AND_REFERENCE = ExampleKind(
    'a pair of texts: ("source", "reference")', _source_and_reference
)
LABELLED_TEXT = ExampleKind('a text with its label: ("text", "label")', _labelled_text)
STORY = ExampleKind('a story and its answer: ("Story. Question?", "answer")', _labelled_text)
RATED_TEXT = ExampleKind('a text with its number: ("text", 0.5)', _rated_text)
TEXT_PAIR = ExampleKind('a pair of texts: ("text", "text")', _text_pair)
TAGGED_WORDS = ExampleKind(
    'words with as many tags: (["Ada", "sleeps"], ["B-PER", "O"])', _tagged_words
)
QUESTION = ExampleKind(
    "a regard.data.labelled.Question(question, context, answer_start, text)", _question
)
LABELLED_IMAGE = ExampleKind('an image with its class: ("cat.png", "cat")', _labelled_image)
CAPTIONED_IMAGE = ExampleKind('an image with a text: ("cat.png", "a cat")', _labelled_image)
RECORDING = ExampleKind('a recording with its text: ("speech.wav", "text")', _recording)
SERIES = ExampleKind("a regard.data.series.Series(values, columns), values [T, C]", _series)
GRAPHS = ExampleKind("a regard.data.graphs.GraphData, or the path of its folder", _graphs)
