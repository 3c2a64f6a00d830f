"""Image data sets: folders of classes, and tables of images with captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.data import text_files
from regard.data.image import Picture
from regard.system.errors import DataError

# What is generated for the images of a class; Radford et al. 2021, Section 3.1.4.
CAPTION = "a photo of a {}."
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


@dataclass(frozen=True)
class LabelledImage:
    """An image and a text: the name of its class, or its caption."""

    image: Picture
    text: str


def read_image_folders(folder: str | Path) -> list[LabelledImage]:
    """The images of a folder: each of its subfolders is a class, by its name."""
    folder = Path(folder)
    examples = [
        LabelledImage(path, path.parent.name)
        # Sorted: the order of a listing is that of the file system.
        for path in sorted(folder.glob("*/*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not examples:
        raise DataError(
            f"{folder} holds no images in subfolders",
            "give a folder with one subfolder of images for each class",
        )
    return examples


def read_images(folder: str | Path) -> list[LabelledImage]:
    """All images of a folder and its subfolders, without labels that anything is learnt from."""
    folder = Path(folder)
    examples = [
        LabelledImage(path, path.parent.name)
        # Sorted: the order of a listing is that of the file system.
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not examples:
        raise DataError(f"{folder} holds no images", "give a folder of PNG or JPEG files")
    return examples


def read_captions(table: str | Path) -> list[LabelledImage]:
    """Images with captions: TSV of image file and caption, or JSON Lines of `image` and `text`.

    File names are relative to the table. In place of a table, a folder with a subfolder for each
    class: captions are generated from their names.
    """
    table = Path(table)
    if table.is_dir():
        return [
            LabelledImage(example.image, CAPTION.format(example.text.replace("_", " ")))
            for example in read_image_folders(table)
        ]
    if text_files.format_of_suffix(table) == "jsonl":
        rows = _json_rows(table)
    else:
        rows = list(text_files.pairs(table, format="tsv"))
    examples = []
    for name, caption in rows:
        path = table.parent / name
        if not path.is_file():
            raise DataError(
                f"{table} names {name}, which does not exist", f"put it into {table.parent}"
            )
        examples.append(LabelledImage(path, caption))
    if not examples:
        raise DataError(f"{table} names no images", "write: image file, a tab, caption")
    return examples


def _json_rows(table: Path) -> list[tuple[str, str]]:
    rows = []
    for number, line in enumerate(text_files.lines(table), 1):
        where = f"{table}, line {number}"
        record = text_files.json_record(line, where)
        image = record.get("image")
        caption = record.get("text")
        if not isinstance(image, str) or not isinstance(caption, str):
            raise DataError(
                f"{where} has no `image` and `text`", f"the line has: {', '.join(record)}"
            )
        rows.append((image, caption))
    return rows
