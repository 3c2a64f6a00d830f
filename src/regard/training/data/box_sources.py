"""A source of images with the boxes of objects; generated scenes where a recipe names no files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.core import boxes
from regard.data.batching import Batch, Rows
from regard.data.boxes import Box, BoxedImage, boxes_of_text, boxes_to_text, read_boxes
from regard.data.generated.scenes import Scene
from regard.data.image import open_image
from regard.data.padding import IGNORED
from regard.models.object_detector import ObjectDetector
from regard.training.data.image_sources import SceneImages
from regard.training.data.labelled_text import class_names, label_id
from regard.training.data.source import Position
from regard.training.data.stored_items import ItemData
from regard.training.setup import Setup

_LEAST_VISIBLE = 0.25  # of an object that a crop cuts off


class BoxedImages(SceneImages):
    """Images with boxes, which move with the pixels that are cropped, mirrored and zoomed."""

    model_class = ObjectDetector
    read = staticmethod(read_boxes)
    model: ObjectDetector

    def __init__(self, model: ObjectDetector, data: ItemData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        # Of all splits before the first step: a label that is not known is refused.
        self._labels: dict[str, list[list[int]]] = {}
        self._corners: dict[str, list[NDArray[np.float32]]] = {}
        for split, items in data.sets.items():
            rows = [boxes_of_text(text) for text in items.texts]
            self._labels[split] = [
                [label_id(one.label, self.label_ids) for one in row] for row in rows
            ]
            self._corners[split] = [
                np.array([one.corners for one in row], np.float32).reshape(-1, 4) for row in rows
            ]

    # --- preparing a run --------------------------------------------------------------------------

    @staticmethod
    def of_scene(one: Scene) -> BoxedImage:
        return BoxedImage(one.image, tuple(Box(item.shape, item.box) for item in one.items))

    @classmethod
    def item(cls, processor: Any, example: BoxedImage) -> tuple[NDArray[np.uint8], str]:
        image = open_image(example.image)
        # The picture is squeezed into a square, so that shares of its sides stay what they are.
        return processor.resized(image)[None], boxes_to_text(example.boxes, *image.size)

    @classmethod
    def vocabulary(cls, setup: Setup, base: Any, texts: list[str]) -> list[str]:
        return class_names(one.label for text in texts for one in boxes_of_text(text))

    @classmethod
    def class_names(cls, data: ItemData) -> Sequence[str]:
        names: list[str] = data.vocabulary
        return names

    # --- batches ----------------------------------------------------------------------------------

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        """With `labels` [B, M] of the objects, IGNORED where an image has fewer, and their boxes
        [B, M, 4] by center and sides, as shares of the image."""
        batch = super().collate(split, rows, position)
        most = max(1, *(len(self._labels[split][row]) for row in rows))
        labels = torch.full((len(rows), most), IGNORED)
        corners = torch.zeros(len(rows), most, 4)
        for i, row in enumerate(rows):
            count = len(self._labels[split][row])
            labels[i, :count] = torch.tensor(self._labels[split][row], dtype=torch.long)
            corners[i, :count] = torch.from_numpy(self._corners[split][row])
        tensors = dict(batch.tensors)
        if "corner" in tensors:
            corners, visible = crop_boxes(corners, tensors, self.size)
            labels[~visible] = IGNORED
        tensors |= {"labels": labels, "boxes": boxes.centers(corners)}
        return Batch(tensors, batch.tokens, batch.rows)

    def example(self, row: int) -> dict[str, Any]:
        labels = [one.label for one in boxes_of_text(self.splits["train"].texts[row])]
        return {"text": ", ".join(f"{name} × {labels.count(name)}" for name in sorted(set(labels)))}


def crop_boxes(corners: Tensor, crop: dict[str, Tensor], size: list[int]) -> tuple[Tensor, Tensor]:
    """Boxes [B, M, 4] in crops of images of this height and width, and whether enough of them is
    visible [B, M]."""
    sides = torch.tensor([size[1], size[0]])
    begin = crop["corner"].flip(1) / sides  # [B, 2], as (x, y)
    scale = crop["scale"][:, None] if "scale" in crop else torch.ones(len(corners), 1)
    corners = (corners - begin.repeat(1, 2)[:, None]) / scale[..., None]
    left, top, right, bottom = corners.unbind(-1)
    mirrored = crop["mirrored"][:, None]
    left, right = torch.where(mirrored, 1 - right, left), torch.where(mirrored, 1 - left, right)
    corners = torch.stack([left, top, right, bottom], dim=-1)
    inside = corners.clamp(0, 1)
    return inside, boxes.area(inside) >= _LEAST_VISIBLE * boxes.area(corners).clamp_min(1e-9)
