"""A source of images with masks, which move with the pixels; generated scenes without files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import Rows
from regard.data.generated.scenes import BACKGROUND, SHAPES, Scene
from regard.data.image import ImageProcessor
from regard.data.masks import Mask, SegmentedImage, read_masks
from regard.data.padding import IGNORED
from regard.models import ImageEncoder
from regard.system.errors import DataError
from regard.training.data.image_sources import SceneImages
from regard.training.data.stored_items import ItemData
from regard.training.setup import Setup

_NEAREST = 0  # Pillow's number of it: between two classes there is none


class SegmentedImages(SceneImages):
    """Images with the class of each pixel. A fourth channel holds it, plus 1: 0 is none, as what a
    crop has outside of its image."""

    model: ImageEncoder
    read = staticmethod(read_masks)

    # --- preparing a run --------------------------------------------------------------------------

    @staticmethod
    def of_scene(one: Scene) -> SegmentedImage:
        return SegmentedImage(one.image, one.mask, (BACKGROUND, *SHAPES))

    @classmethod
    def item(cls, processor: Any, example: SegmentedImage) -> tuple[NDArray[np.uint8], str]:
        pixels = processor.resized(example.image)
        mask = resized_mask(processor, example.mask) + np.uint8(1)  # 255 becomes 0
        return np.concatenate([pixels, mask[..., None]], axis=-1)[None], json.dumps(example.names)

    @classmethod
    def vocabulary(cls, setup: Setup, base: Any, texts: list[str]) -> list[str]:
        """The names of the classes, in the order of their numbers."""
        several = sorted(set(texts))
        if len(several) > 1:
            raise DataError("the files name different classes", "give all the same classes.txt")
        names: list[str] = json.loads(several[0])
        return names

    @classmethod
    def class_names(cls, data: ItemData) -> Sequence[str]:
        names: list[str] = data.vocabulary
        return names

    # --- batches ----------------------------------------------------------------------------------

    def targets(self, split: str, rows: Rows) -> dict[str, Tensor]:
        """`labels` [B, H, W]: the classes of pixels before they are cropped, IGNORED where there is
        none."""
        classes = torch.from_numpy(self.splits[split].values[rows][..., -1]).long() - 1
        return {"labels": classes.masked_fill(classes < 0, IGNORED)}

    def pixel_classes(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The classes of the pixels of a batch as its crops show them: [B, H, W]"""
        # Outside of an image a crop is 0, which is to say that there is no class.
        shifted = (tensors["labels"] + 1).clamp_min(0)
        classes = self.cropped(shifted[..., None], tensors)[:, 0] - 1
        return classes.masked_fill(classes < 0, IGNORED)

    def example(self, row: int) -> dict[str, Any]:
        mask = self.splits["train"].values[row][..., -1]
        names = self.class_names(self.data)
        return {"text": ", ".join(names[one - 1] for one in np.unique(mask) if one)}


def resized_mask(processor: ImageProcessor, mask: Mask) -> Mask:
    """A mask as the processor resizes and crops its image."""
    resized: Mask = replace(processor, resample=_NEAREST).resized(mask)[..., 0]
    return resized
