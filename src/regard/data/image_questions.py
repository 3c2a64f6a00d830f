"""Images with a question or a sentence about them, and its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.image import Picture
from regard.data.text_files import RECORD_FORMATS, format_of_suffix, lines, records, text_of
from regard.system.errors import DataError

_NLVR_ORDERS = 6  # the boxes of an image, in each of their orders


@dataclass(frozen=True)
class ImageQuestion:
    """An image, what is asked or said of it, and the answer."""

    image: Picture
    question: str
    answer: str


def read_image_questions(table: str | Path) -> list[ImageQuestion]:
    """A table of image file, tab, question, tab, answer; JSON Lines of `image`, `question` and
    `answer`; or NLVR's JSON (Suhr et al. 2017), whose images lie beside it.

    Files are relative to the table.
    """
    table = Path(table)
    examples = []
    for where, name, question, answer in _rows(table):
        path = table.parent / name
        if path.is_file():
            examples.append(ImageQuestion(path, question, answer))
        elif table.suffix != ".json":  # of NLVR, some folders of images may be left out
            raise DataError(f"{where} names {name}, which does not exist", "put it there")
    if not examples:
        raise DataError(
            f"{table} asks about no images", "write a line for each: file, a tab, question, answer"
        )
    return examples


def _rows(table: Path) -> Iterator[tuple[str, str, str, str]]:
    """Where each row stands, its image, question and answer."""
    if table.suffix == ".json":
        for number, line in enumerate(lines(table), 1):
            yield from _nlvr(table.stem, json.loads(line), f"{table}, line {number}")
    elif format_of_suffix(table) in RECORD_FORMATS:
        for where, row in records(table):
            question = text_of(row, "question", where)
            yield where, text_of(row, "image", where), question, text_of(row, "answer", where)
    else:
        for number, line in enumerate(lines(table), 1):
            cells = line.split("\t")
            where = f"{table}, line {number}"
            if len(cells) != 3:
                raise DataError(
                    f"{where} has {len(cells)} columns", "write: image file, tab, question, answer"
                )
            yield where, cells[0], cells[1], cells[2].strip()


def _nlvr(split: str, row: dict[str, Any], where: str) -> Iterator[tuple[str, str, str, str]]:
    keys = ("directory", "identifier", "sentence", "label")
    folder, identifier, sentence, label = (text_of(row, key, where) for key in keys)
    for order in range(_NLVR_ORDERS):
        yield where, f"images/{folder}/{split}-{identifier}-{order}.png", sentence, label
