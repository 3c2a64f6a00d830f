"""Examples with labels, read whole: texts with a class, words with tags, questions with answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from regard.data.text_files import FORMATS, lines
from regard.errors import DataError

Example = TypeVar("Example")


@dataclass(frozen=True)
class Classed:
    """A text, perhaps with a second one, and the name of its class."""

    text: str
    text2: str | None
    label: str

    @property
    def whole(self) -> str | tuple[str, str]:
        return self.text if self.text2 is None else (self.text, self.text2)


@dataclass(frozen=True)
class Words:
    """The words of a sentence, and the tag of each."""

    tokens: list[str]
    tags: list[str]


@dataclass(frozen=True)
class Question:
    """A question on a context; the answer is `text`, which begins at its character `answer_start`. Without an answer both
    are empty: "" and 0."""

    question: str
    context: str
    answer_start: int
    text: str


def classed(path: str | Path) -> list[Classed]:
    """Lines of text, tab, label (or two texts, then the label), or JSON Lines with `text`, perhaps `text2`, and `label`. A
    first line whose last column is called "label" is a heading."""
    if _json(path):
        return _some(path, (_classed(record, place) for place, record in _records(path)))
    return _some(path, _columns(path))


def _columns(path: str | Path) -> Iterator[Classed]:
    for number, line in enumerate(lines(path), 1):
        cells = line.split("\t")
        if number == 1 and cells[-1].strip().lower() == "label":
            continue
        if len(cells) not in (2, 3):
            raise DataError(
                f"{path}, line {number} has {len(cells)} columns",
                "write: text, a tab, label; or two texts and a label",
            )
        text, label = cells[0], cells[-1].strip()
        if not label:
            raise DataError(f"{path}, line {number} has no label", "write: text, a tab, label")
        yield Classed(text, cells[1] if len(cells) == 3 else None, label)


def _classed(record: dict[str, Any], place: str) -> Classed:
    label = record.get("label")
    if not isinstance(label, (str, int)) or isinstance(label, bool) or label == "":
        raise DataError(
            f"{place}: 'label' is missing or no name", f"the line has: {', '.join(record)}"
        )
    second = _string(record, "text2", place) if record.get("text2") is not None else None
    return Classed(_string(record, "text", place), second, str(label))


def tagged(path: str | Path) -> list[Words]:
    """A word and its tag (the first and the last column) a line, with blank lines between sentences, or JSON Lines with
    `tokens` and `tags`."""
    if _json(path):
        return _some(path, (_tagged(record, place) for place, record in _records(path)))
    return _some(path, _sentences(path))


def _sentences(path: str | Path) -> Iterator[Words]:
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(lines(path), 1):
        cells = line.split()
        if not cells or cells[0] == "-DOCSTART-":
            if words:
                yield Words(words, tags)
            words, tags = [], []
        elif len(cells) < 2:
            raise DataError(
                f"{path}, line {number} has no tag: {line!r}", "write: word, a tab, tag"
            )
        else:
            words.append(cells[0])
            tags.append(cells[-1])
    if words:
        yield Words(words, tags)


def _tagged(record: dict[str, Any], place: str) -> Words:
    found = []
    for key in ("tokens", "tags"):
        value = record.get(key)
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(item, (str, int)) for item in value)
        ):
            raise DataError(
                f"{place}: {key!r} is missing or no list of words",
                f"the line has: {', '.join(record)}",
            )
        found.append([str(item) for item in value])
    if len(found[0]) != len(found[1]):
        raise DataError(
            f"{place} has {len(found[0])} tokens and {len(found[1])} tags",
            "give one tag for each token",
        )
    return Words(*found)


def questions(path: str | Path) -> list[Question]:
    """JSON Lines with `question`, `context`, `answer_start` and `text`, or with SQuAD's `answers` of these two."""
    return _some(path, (_question(record, place) for place, record in _records(path)))


def _question(record: dict[str, Any], place: str) -> Question:
    said = record
    if isinstance(said.get("answers"), dict):
        texts, starts = (
            said["answers"].get("text") or [""],
            said["answers"].get("answer_start") or [0],
        )
        said = {**said, "text": texts[0], "answer_start": starts[0]}
    question, context, text = (_string(said, key, place) for key in ("question", "context", "text"))
    start = said.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise DataError(
            f"{place}: 'answer_start' is missing or no number", f"the line has: {', '.join(record)}"
        )
    if not text:
        return Question(question, context, 0, "")
    if start < 0 or context[start : start + len(text)] != text:
        held = context[max(0, start) : max(0, start) + len(text)]
        raise DataError(
            f"{place}: the answer {text!r} is not at character {start}, where {held!r} stands",
            "count characters from 0, not bytes",
        )
    return Question(question, context, start, text)


def write(examples: Iterable[Classed | Words | Question]) -> str:
    """As JSON Lines, to be read by these functions again."""
    return "".join(json.dumps(asdict(example), ensure_ascii=False) + "\n" for example in examples)


def _json(path: str | Path) -> bool:
    name = Path(path)
    name = name.with_suffix("") if name.suffix == ".gz" else name
    return FORMATS.get(name.suffix.lower()) == "jsonl"


def _records(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines(path), 1):
        place = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place} is not JSON: {error}", "write one object a line") from None
        if not isinstance(record, dict):
            raise DataError(f"{place} is JSON, but not an object", "write one object a line")
        yield place, record


def _string(record: dict[str, Any], key: str, place: str) -> str:
    if not isinstance(record.get(key), str):
        raise DataError(
            f"{place}: {key!r} is missing or no text",
            f"the line has: {', '.join(record) or 'nothing'}",
        )
    return str(record[key])


def _some(path: str | Path, found: Iterable[Example]) -> list[Example]:
    examples = list(found)
    if not examples:
        raise DataError(
            f"nothing to read: {path} is empty", "check the path, or how the file was made"
        )
    return examples
