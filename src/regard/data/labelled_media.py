"""Images and recordings with a text each: folders of classes, and tables of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.audio import SUFFIXES, Samples
from regard.data.image import Picture
from regard.data.text_files import RECORD_FORMATS, format_of_suffix, lines, pairs, records, text_of
from regard.system.errors import DataError

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

    File names are relative to the table. In place of a table, a folder with a subfolder for each
    class: captions are generated from their names.
    """
    if Path(table).is_dir():
        classes = read_image_folders(table)
        return [LabelledImage(one.image, class_caption(one.text)) for one in classes]
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
