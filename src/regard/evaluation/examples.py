"""The kinds of examples: what a file of them holds, and what they are where given as a list."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from regard.data import labelled, text_files
from regard.data.boxes import BoxedImage, as_boxes, read_boxes
from regard.data.clips import read_clips
from regard.data.graphs import GraphData, read_graphs
from regard.data.image_questions import ImageQuestion, read_image_questions
from regard.data.labelled import (
    LabelledImage,
    LabelledText,
    Question,
    RatedText,
    Recording,
    TaggedWords,
    TextPair,
)
from regard.data.masks import SegmentedImage, read_masks
from regard.data.series import Series, read_series
from regard.data.trajectories import Trajectory, read_trajectories
from regard.system.errors import DataError, SettingError

# A file, two files of parallel text, or a folder; standard input is "-".
DataPath: TypeAlias = str | tuple[str, str]


@dataclass(frozen=True)
class ExampleKind:
    """A kind of examples: `take` gives the example that a value stands for, or None if none."""

    file: str  # what a file of them holds, for error messages
    description: str  # of one example
    read_file: Callable[[str], Iterable[Any]]
    take: Callable[[Any], Any]

    def read(self, path: DataPath) -> list[Any]:
        """The examples of a file; parallel text may be in two."""
        if isinstance(path, str):
            return list(self.read_file(path))
        if self is not SOURCE_AND_REFERENCE:
            raise SettingError("only tasks with parallel text read two files", "pass one file")
        return list(text_files.pairs(*path))

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


def _of(kind: Any, *types: Any) -> Callable[[Any], Any]:
    """Takes examples of a dataclass, and tuples of its fields: the second text may be left out."""
    names = [field.name for field in fields(kind)]

    def take(value: Any) -> Any:
        values = value
        if isinstance(value, kind):
            values = [getattr(value, name) for name in names]
        if not isinstance(values, list | tuple):
            return None
        if len(values) == len(names) - 1 and "text2" in names:
            values = (values[0], None, *values[1:])
        if len(values) != len(names) or not all(map(isinstance, values, types)):
            return None
        if any(isinstance(one, float | np.floating) and not math.isfinite(one) for one in values):
            return None
        return kind(*values)

    return take


def _instance(kind: type) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, kind) else None


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


def _tagged_words(value: Any) -> TaggedWords | None:
    match value:
        case TaggedWords(tokens=[*words], tags=[*tags]) | ([*words], [*tags]):
            if (
                words
                and len(words) == len(tags)
                and all(isinstance(one, str) for one in [*words, *tags])
            ):
                return TaggedWords(words, tags)
    return None


def _recording(value: Any) -> Recording | None:
    recording = _of(Recording, str | Path | np.ndarray, str)
    match recording(value):
        case Recording(audio=str() as file, text=text):
            return Recording(Path(file), text)
        case one:
            return one


def _series(value: Any) -> Series | None:
    match value:
        case Series(values=np.ndarray(ndim=2) as values) if np.issubdtype(values.dtype, np.number):
            return value
        case _:
            return None


def _boxed_image(value: Any) -> BoxedImage | None:
    match value:
        case BoxedImage():
            return value
        case (image, objects) if (boxes := as_boxes(objects)) is not None:
            return BoxedImage(image, boxes)
        case _:
            return None


def _segmented_image(value: Any) -> SegmentedImage | None:
    match value:
        case SegmentedImage():
            return value
        case (image, np.ndarray() as mask, names) if mask.ndim == 2 and mask.dtype == np.uint8:
            return SegmentedImage(image, mask, tuple(names))
        case _:
            return None


def _read_pairs(path: str) -> Iterable[tuple[str, str]]:
    # Standard input has no name to tell the format by.
    return text_files.pairs(path, format="tsv" if path == "-" else None)


def _read_text(path: str) -> list[str]:
    """A text in blocks of complete lines, line ends too."""
    blocks = list(text_files.text(path))
    if not blocks:
        raise DataError(f"{path} is empty", "pass a file that contains text")
    return blocks


_LABELLED_TEXT = _of(LabelledText, str, str | None, str)
# Whether it is an image is checked when it is opened.
_LABELLED_IMAGE = _of(LabelledImage, object, str)

TEXT = ExampleKind("plain text", "a text", _read_text, _instance(str))
TEXT_OR_IDS = ExampleKind("plain text", "a text, or a list of token ids", _read_text, _text_or_ids)
SOURCE_AND_REFERENCE = ExampleKind(
    "pairs of texts (.tsv, .jsonl, or two files)",
    'a pair of texts: ("source", "reference")',
    _read_pairs,
    _source_and_reference,
)
LABELLED_TEXT = ExampleKind(
    "texts with labels (.tsv or .jsonl)",
    'a text with its label: ("text", "label")',
    labelled.labelled_texts,
    _LABELLED_TEXT,
)
STORY = ExampleKind(
    "stories that end with a question, and its answer (.tsv or .jsonl)",
    'a story and its answer: ("Story. Question?", "answer")',
    labelled.labelled_texts,
    _LABELLED_TEXT,
)
RATED_TEXT = ExampleKind(
    "texts with a number (.tsv or .jsonl)",
    'a text with its number: ("text", 0.5)',
    labelled.rated_texts,
    _of(RatedText, str, str | None, int | float | np.number),
)
TEXT_PAIR = ExampleKind(
    "pairs of texts that belong together (.tsv or .jsonl)",
    'a pair of texts: ("text", "text")',
    labelled.text_pairs,
    _of(TextPair, str, str),
)
TAGGED_WORDS = ExampleKind(
    "words with tags (CoNLL's columns or .jsonl)",
    'words with as many tags: (["Ada", "sleeps"], ["B-PER", "O"])',
    labelled.tagged_words,
    _tagged_words,
)
QUESTION = ExampleKind(
    "questions with contexts and answers (.jsonl)",
    "a regard.data.labelled.Question(question, context, answer_start, text)",
    labelled.questions,
    _instance(Question),
)
LABELLED_IMAGE = ExampleKind(
    "a folder of images with one subfolder for each class",
    'an image with its class: ("cat.png", "cat")',
    labelled.read_image_folders,
    _LABELLED_IMAGE,
)
IMAGE = ExampleKind(
    "a folder of images",
    'an image with a text: ("cat.png", "a cat")',
    labelled.read_images,
    _LABELLED_IMAGE,
)
LABELLED_CLIP = ExampleKind(
    "a folder of clips (folders of frames, GIFs or video files) with one subfolder for each class",
    'a clip with its class: ("clip.gif", "left")',
    read_clips,
    _LABELLED_IMAGE,
)
CLIP = replace(LABELLED_CLIP, description='a clip with a text: ("clip.gif", "left")')
BOXED_IMAGE = ExampleKind(
    "images with boxes: COCO's annotations.json, or a folder of Pascal VOC's XML",
    'an image with classes and corners: ("cells.png", [("cell", (0, 0, 30, 20))])',
    read_boxes,
    _boxed_image,
)
SEGMENTED_IMAGE = ExampleKind(
    "images with masks: a folder with images and masks (PNG), or NLVR's JSON",
    'an image, a mask and the names of its classes: ("cells.png", mask, ["none", "cell"])',
    read_masks,
    _segmented_image,
)
CAPTIONED_IMAGE = ExampleKind(
    "images with captions: file, a tab, caption (.tsv or .jsonl); or a folder with one "
    "subfolder for each class",
    'an image with a text: ("cat.png", "a cat")',
    labelled.read_captions,
    _LABELLED_IMAGE,
)
IMAGE_QUESTION = ExampleKind(
    "a table of image file, tab, question, tab, answer (.tsv or .jsonl), or NLVR's .json",
    "a regard.data.image_questions.ImageQuestion(image, question, answer)",
    read_image_questions,
    _instance(ImageQuestion),
)
TRANSCRIPT = ExampleKind(
    "a table of recordings with transcripts: file, a tab, text (or .jsonl)",
    'a recording with its text: ("speech.wav", "text")',
    labelled.read_transcripts,
    _recording,
)
SPOKEN_TEXT = ExampleKind(
    "a table of recordings and how they came about: file, a tab, text, and a tab and the speaker",
    'a recording with its text: ("speech.wav", "text") or ("speech.wav", "text\\tspeaker")',
    labelled.read_spoken_texts,
    _recording,
)
LABELLED_RECORDING = ExampleKind(
    "recordings with classes: a table of file, a tab, class, or a folder with one "
    "subfolder for each class",
    'a recording with its text: ("speech.wav", "text")',
    labelled.read_labelled_recordings,
    _recording,
)
SERIES = ExampleKind(
    "a time series (.csv with a header); FILE.csv:START:END are some of its rows",
    "a regard.data.series.Series(values, columns), values [T, C]",
    lambda path: [read_series(path)],
    _series,
)
TRAJECTORIES = ExampleKind(
    "episodes (.npz with obs, acts, rews and indices); FILE:NUMBER is one of them",
    "a regard.data.trajectories.Trajectory(states, actions, rewards)",
    read_trajectories,
    _instance(Trajectory),
)
GRAPHS = ExampleKind(
    "a folder of tables (nodes.tsv, edges.tsv), or an .npz file",
    "a regard.data.graphs.GraphData, or the path of its folder",
    lambda path: [read_graphs(path)],
    _instance(GraphData),
)
NO_DATA = ExampleKind("nothing", "nothing", lambda _: [], lambda _: None)
PLAIN_TEXTS = (TEXT, TEXT_OR_IDS)
LABELLED_TEXTS = (LABELLED_TEXT, RATED_TEXT, TAGGED_WORDS)
