"""Images and recordings with a text each: stored once in the run folder, memory-mapped since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import Rows
from regard.data.image import ImageProcessor
from regard.data.labelled import LabelledImage, Recording
from regard.models import Model
from regard.system import disk
from regard.system.errors import DataError
from regard.training.data.labelled_text import class_names, label_id, sets_of_files
from regard.training.data.source import Source
from regard.training.run_folder import RunFolder
from regard.training.setup import Setup

_VALUES = "values"
_ABOUT = "items.json"


@dataclass(frozen=True)
class StoredItems:
    """The images of a split, all of one size, or its recordings; and the text of each."""

    values: NDArray[Any]  # of one item after the other: [N, height, width, 3], or samples
    offsets: NDArray[np.int64]  # where each begins, and the last one ends
    texts: list[str]  # classes, captions or transcripts

    @classmethod
    def open(cls, folder: Path) -> StoredItems:
        """A split that `write_items` stored; its sizes are checked."""
        about = disk.read_json(folder / _ABOUT, DataError)
        offsets = np.array(about["offsets"])
        try:
            values = np.memmap(folder / _VALUES, about["type"], "r").reshape(-1, *about["shape"])
        except (OSError, ValueError):
            values = np.zeros(0)
        # Two files that belong together: an interrupted copy may have one of them only.
        if offsets[-1] != len(values):
            raise DataError(f"the examples stored in {folder} are damaged", "start a new run")
        # A plain array is faster to slice than np.memmap itself.
        return cls(np.asarray(values), offsets, about["texts"])

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> NDArray[Any]:
        """The values of an item."""
        # A copy: torch cannot wrap memory that must not be written to.
        return self.values[self.offsets[row] : self.offsets[row + 1]].copy()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of values of each item: the samples of recordings."""
        return np.diff(self.offsets)  # [N]


def write_items(folder: Path, items: Iterable[tuple[NDArray[Any], str]]) -> None:
    """Stores items and their texts, completely or not at all."""
    offsets = [0]
    texts = []
    shapes = set()
    with disk.atomic_folder(folder) as partial_folder:
        # One by one: all of them may be more than fits into memory.
        with open(partial_folder / _VALUES, "wb") as file:
            for values, text in items:
                file.write(values.tobytes())
                offsets.append(offsets[-1] + len(values))
                texts.append(text)
                shapes.add(values.shape[1:])
        if not texts:
            raise DataError(f"{folder.name!r} has no examples", "give some, or leave it out")
        if len(shapes) > 1:
            sizes = sorted(shape[:2] for shape in shapes)
            raise DataError(f"the pictures come out in different sizes: {sizes}", "crop them")
        about = {"type": values.dtype.str, "shape": shapes.pop(), "offsets": offsets}
        disk.write_json(partial_folder / _ABOUT, {**about, "texts": texts})


def stored_examples(run_folder: RunFolder, split: str) -> list[LabelledImage | Recording]:
    """The examples of a split as a run has stored them; none of a run without images or sound."""
    if not (run_folder.data / split / _ABOUT).is_file():
        return []
    items = StoredItems.open(run_folder.data / split)
    if items.values.ndim == 1:
        return [Recording(items[row], text) for row, text in enumerate(items.texts)]
    # Behind the colours may be a mask.
    return [LabelledImage(items[row][0, ..., :3], text) for row, text in enumerate(items.texts)]


@dataclass(frozen=True)
class ItemData:
    """Images or recordings by split, what turns their texts into labels, and the preprocessing."""

    sets: dict[str, StoredItems]
    vocabulary: Any = None  # the names of classes, sorted, or a tokenizer
    processor: ImageProcessor | None = None  # of images


class ItemSource(Source):
    """Batches of images or recordings."""

    read: ClassVar[staticmethod[..., Any]]  # the examples of a table or a folder
    data: ItemData

    def __init__(self, model: Any, data: ItemData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.splits = data.sets

    @classmethod
    def stored(
        cls, setup: Setup, item: Callable[[Any], tuple[NDArray[Any], str]]
    ) -> dict[str, StoredItems]:
        """The items by split, stored in the run folder on the first call."""
        folder = setup.run_folder.data
        if not (folder / "train").is_dir():
            for name, examples in sets_of_files(setup, cls.read):
                write_items(folder / name, map(item, examples))
        # A killed process may have left the temporary folder of a split.
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        return {name: StoredItems.open(folder / name) for name in names}

    @classmethod
    def vocabulary(cls, setup: Setup, base: Any, texts: list[str]) -> Any:
        """What turns the texts of items into labels."""
        return None

    def targets(self, split: str, rows: Rows) -> dict[str, Tensor]:
        """The labels of some items, as tensors."""
        return {}

    def shown(self, split: str, row: int) -> NDArray[Any]:
        """An item as the methods of models take it."""
        values: NDArray[Any] = self.splits[split][row]
        return values

    def example(self, row: int) -> dict[str, Any]:
        return {"text": self.splits["train"].texts[row]}


class LabelledItems(ItemSource):
    """Images or recordings of one class each."""

    def __init__(self, model: Model, data: ItemData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        # Of all splits before the first step: a label that is not known is refused.
        self.class_ids = {
            name: [label_id(self.class_of(text), self.label_ids) for text in items.texts]
            for name, items in data.sets.items()
        }

    @classmethod
    def class_of(cls, text: str) -> str:
        """The class that the text of an item names: all of it."""
        return text

    @classmethod
    def vocabulary(cls, setup: Setup, base: Any, texts: list[str]) -> Any:
        return class_names(map(cls.class_of, texts))

    @classmethod
    def class_names(cls, data: ItemData) -> Sequence[str]:
        names: list[str] = data.vocabulary
        return names

    def targets(self, split: str, rows: Rows) -> dict[str, Tensor]:
        return {"labels": torch.tensor([self.class_ids[split][row] for row in rows])}  # [B]
