"""Labelled examples: texts, pairs, words with tags, questions; images and recordings.

Texts are read as a stream, which may be larger than memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from regard.data import published
from regard.data.audio import SUFFIXES, Samples
from regard.data.file_access import expand, split_of_file
from regard.data.image import Picture
from regard.data.text_files import (
    RECORD_FORMATS,
    class_names,
    format_of_suffix,
    lines,
    nothing_to_read,
    pairs,
    records,
    text_of,
)
from regard.system.errors import DataError

Example = TypeVar("Example")
Row = tuple[str, dict[str, Any]]  # where it stands, and its columns by name


# --- kinds of examples ---


@dataclass(frozen=True)
class TextOrPair:
    """A text, perhaps with a second one."""

    text: str
    text2: str | None

    @property
    def whole(self) -> str | tuple[str, str]:
        """As a tokenizer takes it."""
        if self.text2 is None:
            return self.text
        return self.text, self.text2


@dataclass(frozen=True)
class LabelledText(TextOrPair):
    """A labelled text, perhaps with a second one, and the name of its class."""

    label: str


@dataclass(frozen=True)
class RatedText(TextOrPair):
    """A text, perhaps with a second one, and a number: a rating, or how similar the two are."""

    score: float


@dataclass(frozen=True)
class TextPair:
    """Two texts that belong together: a question and its answer, a sentence and its paraphrase."""

    text: str
    text2: str


@dataclass(frozen=True)
class TaggedWords:
    """The words of a sentence, each with its tag (part of speech, named entity); "" is none."""

    tokens: list[str]
    tags: list[str]


@dataclass(frozen=True)
class Question:
    """A question on a context, as in SQuAD.

    The answer is `text`, which begins at character `answer_start` of the context. Without an
    answer they are "" and 0.
    """

    question: str
    context: str
    answer_start: int
    text: str


# --- texts with a class ---


def labelled_texts(path: str | Path) -> Iterator[LabelledText]:
    """Texts with a class: TSV or JSON Lines.

    TSV: text, tab, label, or two texts and the label; a first line whose last column is "label" is
    a header. JSON Lines: `text`, perhaps `text2`, and `label`.
    """
    return _examples(path, _labelled_text, _labelled_rows)


def _labelled_rows(path: str | Path) -> Iterator[Row]:
    for number, line in enumerate(lines(path), 1):
        cells = line.split("\t")
        label = cells[-1].strip()
        if number == 1 and label.lower() == "label":
            continue  # the header
        where = f"{path}, line {number}"
        if len(cells) not in (2, 3):
            raise DataError(
                f"{where} has {len(cells)} columns",
                "write: text, a tab, label; or two texts and a label",
            )
        text2 = cells[1] if len(cells) == 3 else None
        yield where, {"text": cells[0], "text2": text2, "label": label}


def _labelled_text(record: dict[str, Any], where: str) -> LabelledText:
    label = record.get("label")
    # Class numbers are names too; bool is an int in Python, but no class.
    if not isinstance(label, (str, int)) or isinstance(label, bool) or label == "":
        raise DataError(
            f"{where}: 'label' is missing or no name", f"the line has: {', '.join(record)}"
        )
    return LabelledText(text_of(record, "text", where), _second_text(record, where), str(label))


def _second_text(record: dict[str, Any], where: str) -> str | None:
    return None if record.get("text2") is None else text_of(record, "text2", where)


# --- texts with a number, pairs of texts ---


def rated_texts(path: str | Path) -> Iterator[RatedText]:
    """Texts with a number: TSV or JSON Lines, as `labelled_texts` reads them.

    In JSON Lines the number is `score` or `label`.
    """
    return _examples(path, _rated_text, _labelled_rows)


def _rated_text(record: dict[str, Any], where: str) -> RatedText:
    value = record.get("score", record.get("label"))
    try:
        score = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{where}: {value!r} is not a number", "write numbers as labels")
    return RatedText(text_of(record, "text", where), _second_text(record, where), score)


def text_pairs(path: str | Path) -> Iterator[TextPair]:
    """Pairs of texts: TSV with two columns, or JSON Lines with `text` and `text2`.

    The names of `regard.data.text_files`, `source` and `target`, are understood too.
    """
    return _examples(
        path,
        _text_pair,
        lambda path: ((str(path), {"text": one, "text2": two}) for one, two in pairs(path)),
    )


def _text_pair(record: dict[str, Any], where: str) -> TextPair:
    keys = ("source", "target") if "source" in record else ("text", "text2")
    return TextPair(*(text_of(record, key, where) for key in keys))


# --- words with tags ---


def tagged_words(path: str | Path) -> Iterator[TaggedWords]:
    """Sentences with a tag for each word: CoNLL's columns or JSON Lines.

    Columns: a line for each word, the word first and its tag last, and blank lines between
    sentences. JSON Lines: `tokens` and `tags`.
    """
    return _examples(path, _tagged_sentence, _tagged_rows)


def _tagged_rows(path: str | Path) -> Iterator[Row]:
    words: list[str] = []
    tags: list[str] = []
    # A blank line at the end closes the last sentence.
    for number, line in enumerate(chain(lines(path), [""]), 1):
        where = f"{path}, line {number}"
        cells = line.split()
        if not cells or cells[0] == "-DOCSTART-":  # CoNLL-2003's line between documents
            if words:
                yield where, {"tokens": words, "tags": tags}
            words = []
            tags = []
        elif len(cells) < 2:
            raise DataError(f"{where} has no tag: {line!r}", "write: word, a tab, tag")
        elif "\t" in line and " " in line.partition("\t")[0].strip():
            # A text and its label: all but its first word would be skipped as other columns.
            raise DataError(
                f"{where} begins with several words, and one has a tag",
                "write one word and its tag a line; texts with a label are for `classify`",
            )
        else:
            words.append(cells[0])
            tags.append(cells[-1])


def _tagged_sentence(record: dict[str, Any], where: str) -> TaggedWords:
    tokens = _strings(record, "tokens", where)
    tags = _strings(record, "tags", where)
    if len(tokens) != len(tags):
        raise DataError(
            f"{where} has {len(tokens)} tokens and {len(tags)} tags",
            "give one tag for each token",
        )
    return TaggedWords(tokens, tags)


def _strings(record: dict[str, Any], key: str, where: str) -> list[str]:
    """A list of words, or of tags, which may be numbers."""
    values = record.get(key)
    if (
        not isinstance(values, list)
        or not values
        or not all(isinstance(value, (str, int)) for value in values)
    ):
        raise DataError(
            f"{where}: {key!r} is missing or no list of words",
            f"the line has: {', '.join(record)}",
        )
    return [str(value) for value in values]


# --- questions with answers ---


def questions(path: str | Path) -> Iterator[Question]:
    """JSON Lines with `question`, `context`, and the answer's `answer_start` and `text`.

    The latter two may be in a list of `answers`, as SQuAD has them; the first one counts.
    """
    return _examples(path, _question)


def _question(record: dict[str, Any], where: str) -> Question:
    fields = record
    answers = record.get("answers")
    # Hugging Face's SQuAD: {"text": ["…"], "answer_start": [0]}.
    if isinstance(answers, dict):
        # Unanswerable questions have empty lists.
        texts = answers.get("text") or [""]
        starts = answers.get("answer_start") or [0]
        fields = {**record, "text": texts[0], "answer_start": starts[0]}
    asked = text_of(fields, "question", where)
    context = text_of(fields, "context", where)
    text = text_of(fields, "text", where)
    start = fields.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise DataError(
            f"{where}: 'answer_start' is missing or no number", f"the line has: {', '.join(record)}"
        )
    if not text:
        return Question(asked, context, 0, "")
    if start < 0 or context[start : start + len(text)] != text:
        there = context[max(0, start) : max(0, start) + len(text)]
        raise DataError(
            f"{where}: the answer {text!r} is not at character {start}, where {there!r} stands",
            "count characters from 0, not bytes",
        )
    return Question(asked, context, start, text)


# --- JSON Lines ---


def example_lines(
    examples: Iterable[LabelledText | RatedText | TextPair | TaggedWords | Question],
) -> Iterator[str]:
    """The examples as JSON Lines, which the functions of this file read."""
    for example in examples:
        yield json.dumps(asdict(example), ensure_ascii=False) + "\n"


def _records(path: str | Path) -> Iterator[Row]:
    """The objects of JSON Lines or a table, and where each stands.

    A saved dataset has numbers of classes, and their names apart.
    """
    names = class_names(expand(path)[0], "label")
    for where, record in records(path):
        label = record.get("label")
        if names is not None and isinstance(label, int) and 0 <= label < len(names):
            record = {**record, "label": names[label]}
        yield where, record


def _examples(
    path: str | Path,
    of_record: Callable[[dict[str, Any], str], Example],
    read_columns: Callable[[str | Path], Iterator[Row]] = _records,
) -> Iterator[Example]:
    """The examples of a file, of which there must be one: of its records, or of its columns."""
    read = _records if format_of_suffix(path) in RECORD_FORMATS else read_columns
    is_empty = True
    for where, record in read(path):
        is_empty = False
        yield of_record(record, where)
    if is_empty:
        raise nothing_to_read(str(path))


# --- images and recordings with a text each: folders of classes, and tables of files ---


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


@dataclass(frozen=True)
class LabelledImage:
    """An image and a text: the name of its class, or its caption."""

    image: Picture
    text: str


@dataclass(frozen=True)
class Recording:
    """A recording with a text: a WAV or FLAC file, or samples at 16 kHz between -1 and 1.

    The text is its transcript, or the name of its class.
    """

    audio: Path | Samples
    text: str


# --- folders of images, tables of captions ---


def read_image_folders(folder: str | Path) -> list[LabelledImage]:
    """The images of a folder: each of its subfolders is a class, by its name."""
    files = _files_below(folder, "*/*", IMAGE_SUFFIXES, "images in subfolders, one for each class")
    return [LabelledImage(path, path.parent.name) for path in files]


def read_images(folder: str | Path) -> list[LabelledImage]:
    """All images of a folder and its subfolders, without labels that anything is learnt from."""
    files = _files_below(folder, "**/*", IMAGE_SUFFIXES, "images")
    return [LabelledImage(path, path.parent.name) for path in files]


def read_captions(table: str | Path) -> list[LabelledImage]:
    """Images with captions: TSV of image file and caption, or JSON Lines of `image` and `text`.

    File names are relative to the table; the `names.json` of emoji is read too. In place of a
    table, a folder with a subfolder for each class: captions are generated from their names.
    """
    if Path(table).is_dir():
        classes = read_image_folders(table)
        return [LabelledImage(one.image, class_caption(one.text)) for one in classes]
    if Path(split_of_file(table)[0]).name == published.EMOJI:
        return [LabelledImage(path, name) for path, name in published.emoji(str(table))]
    return [LabelledImage(path, caption) for path, caption in _named_files(table, "image")]


def class_caption(name: str) -> str:
    """The caption of a class: "a photo of a cat."; Radford et al. 2021, Section 3.1.4."""
    return f"a photo of a {name.replace('_', ' ')}."


# --- recordings ---


def read_transcripts(table: str | Path) -> list[Recording]:
    """A table of recordings and transcripts: TSV (file, tab, text) or JSON Lines (`audio`, `text`).

    Files are relative to the table.
    """
    return [Recording(path, text) for path, text in _named_files(table, "audio")]


def read_spoken_texts(table: str | Path) -> list[Recording]:
    """A table of what was said by whom: file, tab, text and, behind another tab, the speaker.

    The text of a recording is "TEXT<TAB>SPEAKER"; without speakers there is no tab.
    """
    rows = []
    for line in lines(table):
        name, _, spoken = line.rstrip("\n").partition("\t")
        if name:
            rows.append(Recording(_file_beside(Path(table), name), spoken.strip()))
    if not rows:
        raise DataError(f"{table} names no files", "write a line for each: file, a tab, text")
    return rows


def read_labelled_recordings(path: str | Path) -> list[Recording]:
    """Recordings with classes: a folder with a subfolder for each, or a table of files and labels.

    The table is as that of transcripts.
    """
    if not Path(path).is_dir():
        return read_transcripts(path)
    files = _files_below(path, "*/*", SUFFIXES, "WAV files in subfolders, one for each class")
    return [Recording(file, file.parent.name) for file in files]


def read_unlabelled_recordings(path: str | Path) -> list[Recording]:
    """Recordings without labels: all WAV files below a folder, or those that a table names.

    The text of each is the name of its file. A table may have one column.
    """
    path = Path(path)
    if path.is_dir():
        files = _files_below(path, "**/*", SUFFIXES, "WAV files")
        return [Recording(file, str(file.relative_to(path))) for file in files]
    if format_of_suffix(path) in RECORD_FORMATS:
        return read_transcripts(path)
    files = [_file_beside(path, line.partition("\t")[0]) for line in lines(path)]
    return [Recording(file, file.name) for file in files]


# --- files ---


def _files_below(
    folder: str | Path, pattern: str, suffixes: Sequence[str], what: str
) -> list[Path]:
    """The files of a folder that match a pattern and have one of these suffixes."""
    # Sorted: the order of a listing is that of the file system.
    files = [path for path in sorted(Path(folder).glob(pattern)) if path.suffix.lower() in suffixes]
    if not files:
        raise DataError(f"{folder} holds no {what}", f"give a folder of {', '.join(suffixes)}")
    return files


def _named_files(table: str | Path, key: str) -> list[tuple[Path, str]]:
    """The files and texts of a table: TSV (file, tab, text), or records with `key` and `text`."""
    rows: Iterable[tuple[str, str]] = pairs(table, format="tsv")
    if format_of_suffix(table) in RECORD_FORMATS:
        rows = (
            (text_of(record, key, where), text_of(record, "text", where))
            for where, record in records(table)
        )
    files = [(_file_beside(Path(table), name), text) for name, text in rows]
    if not files:
        raise DataError(f"{table} names no files", "write a line for each: file, a tab, text")
    return files


def _file_beside(table: Path, name: str) -> Path:
    """A file that a table names, relative to the table."""
    path = table.parent / name
    if not path.is_file():
        raise DataError(
            f"{table} names {name}, which does not exist", f"put it into {table.parent}"
        )
    return path
