"""Image data sets: folders of classes, and tables of images with captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.data.image import Picture
from regard.data.media_files import files_below, named_files
from regard.system.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


@dataclass(frozen=True)
class LabelledImage:
    """An image and a text: the name of its class, or its caption."""

    image: Picture
    text: str


def read_image_folders(folder: str | Path) -> list[LabelledImage]:
    """The images of a folder: each of its subfolders is a class, by its name."""
    files = files_below(folder, "*/*", IMAGE_SUFFIXES)
    if not files:
        raise DataError(
            f"{folder} holds no images in subfolders",
            "give a folder with one subfolder of images for each class",
        )
    return [LabelledImage(path, path.parent.name) for path in files]


def read_images(folder: str | Path) -> list[LabelledImage]:
    """All images of a folder and its subfolders, without labels that anything is learnt from."""
    files = files_below(folder, "**/*", IMAGE_SUFFIXES)
    if not files:
        raise DataError(f"{folder} holds no images", "give a folder of PNG or JPEG files")
    return [LabelledImage(path, path.parent.name) for path in files]


def read_captions(table: str | Path) -> list[LabelledImage]:
    """Images with captions: TSV of image file and caption, or JSON Lines of `image` and `text`.

    File names are relative to the table. In place of a table, a folder with a subfolder for each
    class: captions are generated from their names.
    """
    table = Path(table)
    if table.is_dir():
        return [
            LabelledImage(example.image, class_caption(example.text))
            for example in read_image_folders(table)
        ]
    return [LabelledImage(path, caption) for path, caption in named_files(table, "image")]


def class_caption(name: str) -> str:
    """The caption of a class: "a photo of a cat."; Radford et al. 2021, Section 3.1.4."""
    return f"a photo of a {name.replace('_', ' ')}."
