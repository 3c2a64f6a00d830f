"""The images of a run: decoded once, into memory-mapped arrays of bytes in the run folder.

The position of a run is then a row number, and a step costs no decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.image import ImageProcessor
from regard.data.labelled_images import LabelledImage
from regard.system import disk
from regard.system.errors import DataError, SettingError
from regard.training.data.labelled_text import as_splits, with_held_out
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder
from regard.training.setup import Setup, Split

Reader = Callable[[str], list[LabelledImage]]  # of a folder or a table


@dataclass(frozen=True)
class StoredImages:
    """The images of a split, all of one size, and the text of each: its class or its caption."""

    pixels: NDArray[np.uint8]  # [N, height, width, 3], memory-mapped
    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)


def stored_images(setup: Setup, processor: ImageProcessor, read: Reader) -> dict[str, StoredImages]:
    """The images by split, resized and stored in the run folder on the first call."""
    folder = setup.run_folder.data
    if not (folder / "train.json").exists():
        splits = setup.splits(lambda _: _splits(setup.recipe, read))
        sets = with_held_out({name: list(split()) for name, split in splits.items()})
        folder.mkdir(parents=True, exist_ok=True)
        # Written last: the presence of the training set says that all are there.
        for name in sorted(sets, key=lambda name: name == "train"):
            _write(folder, name, sets[name], processor)
    return {path.stem: _open(folder, path.stem) for path in sorted(folder.glob("*.json"))}


def stored_examples(run_folder: RunFolder, split: str) -> list[LabelledImage] | None:
    """The examples of a split as a run has stored them; None for a run without images."""
    if not (run_folder.data / f"{split}.npy").is_file():
        return None
    images = _open(run_folder.data, split)
    return [
        LabelledImage(pixels, text)
        for pixels, text in zip(images.pixels, images.texts, strict=True)
    ]


def _splits(recipe: Recipe, read: Reader) -> Mapping[str, Split]:
    """The examples that a recipe names, by split."""
    tune = recipe.tune
    data = recipe.data
    if tune.files:
        if tune.prefixes:
            raise SettingError(f"{recipe.task} has no prefixes", "leave --prefix out")
        sets = {"train": [example for file in tune.files for example in read(file)]}
        others = {"valid": tune.valid, "test": tune.test}
    else:
        assert data.images is not None, "the recipe has checked that"
        sets = {"train": read(data.images)}
        others = {"valid": data.valid_images, "test": data.test_images}
    for name, path in others.items():
        if path is not None:
            sets[name] = read(path)
    return as_splits(sets)


def _write(
    folder: Path, name: str, examples: Sequence[LabelledImage], processor: ImageProcessor
) -> None:
    if not examples:
        raise DataError(f"there are no images for {name!r}", "give some, or leave that split out")
    shape = processor.resized(examples[0].image).shape  # (height, width, 3)
    path = folder / f"{name}.npy"
    with disk.disk_errors(str(path)), disk.atomic_file(path) as temporary:
        # Row by row: all of them may be more than fits into memory.
        array = np.lib.format.open_memmap(
            temporary, mode="w+", dtype=np.uint8, shape=(len(examples), *shape)
        )
        for row, example in enumerate(examples):
            pixels = processor.resized(example.image)
            if pixels.shape != shape:
                raise DataError(
                    f"the pictures come out in different sizes: {shape[:2]}, {pixels.shape[:2]}",
                    "crop them to one size",
                )
            array[row] = pixels
        array.flush()
    disk.write_json(folder / f"{name}.json", [example.text for example in examples])


def _open(folder: Path, name: str) -> StoredImages:
    texts = disk.read_json(folder / f"{name}.json", DataError)
    try:
        # Memory-mapped: ImageNet at 224² would take 190 GB of memory.
        pixels = np.load(folder / f"{name}.npy", mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / name}.npy cannot be read: {error}", "start a new run") from None
    if len(pixels) != len(texts):
        raise DataError(
            f"{folder} has {len(pixels)} images of {name!r}, but {len(texts)} texts",
            "start a new run",
        )
    return StoredImages(pixels, texts)
