"""A detector of objects in images (DETR): their classes, scores and boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core import boxes
from regard.core.finite_outputs import require_finite
from regard.data.image import Picture, open_image, pad_images
from regard.models.image_encoder import ImageReader
from regard.models.tasks import one_or_many
from regard.system.arguments import whole_number
from regard.system.errors import SettingError

if TYPE_CHECKING:
    from regard.look.backdrop import Backdrop

_BATCH_SIZE = 8  # images


@dataclass(frozen=True)
class Detection:
    """An object in an image: its class, how likely it is, and its corners in pixels."""

    label: str
    score: float
    box: tuple[float, float, float, float]  # left, top, right, bottom


class ObjectDetector(ImageReader):
    """Detects objects in images: files (PNG, JPEG), Pillow images or arrays of bytes.

    Made by `regard.load(folder)`.
    """

    model: Any
    spec: kinds.EncoderDecoder
    evaluations = ("detect",)

    @one_or_many
    def detect(
        self, images: list[Picture], threshold: float = 0.5, most: int | None = None
    ) -> list[list[Detection]]:
        """The objects of each image whose score is above the threshold, the likeliest first.

        Each query has the likeliest of its classes; "no object" is none of them. Boxes are in the
        pixels of the image as it came.
        """
        if not 0 <= threshold <= 1:
            raise SettingError(f"a score cannot be above {threshold}", "set a threshold in [0, 1]")
        limit = whole_number("most", most, least=1) if most is not None else None
        names = self.require_labels()
        opened = [open_image(image) for image in images]
        results = []
        for image, logits, shares in zip(opened, *self._answers(opened), strict=True):
            objects = detections(logits, shares, names, image.size)
            results.append([one for one in objects if one.score > threshold][:limit])
        return results

    @torch.inference_mode()
    def _answers(self, images: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
        """Logits [N, classes + 1] and boxes [N, 4] of each image, in float32 on the CPU."""
        self.model.eval()
        logits: list[Tensor] = []
        shares: list[Tensor] = []
        for batch, mask in self._batches(images):
            memory = self.model.encode(batch, mask)
            of_batch = self.model.get_submodule("labels")(self.model.decode(None, memory))
            for one, rows in zip(of_batch, (logits, shares), strict=True):
                rows += require_finite(one.float().cpu(), self.model).unbind()
        return logits, shares

    def _batches(self, images: Sequence[Any]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Pixel values, and which of them are no padding, where images differ in size."""
        for start in range(0, len(images), _BATCH_SIZE):
            pixels = [self.image_processor(one) for one in images[start : start + _BATCH_SIZE]]
            batch, mask = pad_images(pixels)
            yield (
                batch.to(self.device, self.dtype),
                None if mask is None else mask.to(self.device),
            )

    def with_answer(self, backdrop: Any, logits: Tensor) -> Backdrop:
        """The image with the boxes of queries, by the output of the head [1, N, classes + 5]."""
        from regard.look.backdrop import DetectionBackdrop, QueryBox

        height, width, _ = backdrop.picture.shape
        each = self.of_queries(logits[0], (width, height))
        boxes = [QueryBox(f"query {i}", *vars(one).values()) for i, one in enumerate(each)]
        parts = (backdrop.picture, backdrop.patch, backdrop.extras, tuple(boxes))
        return DetectionBackdrop(*parts, answer=self.short_answer(logits))

    def of_queries(self, output: Tensor, size: tuple[float, float] = (1, 1)) -> list[Detection]:
        """What each query finds, by the output of the head [N, classes + 5]: logits, then a box."""
        logits, shares = output.float().cpu().split([output.shape[-1] - 4, 4], dim=-1)
        return query_detections(logits, shares, self.require_labels(), size)

    def short_answer(self, logits: Tensor) -> str:
        """How many objects of which class: "circle × 2, square × 1"."""
        labels = [one.label for one in self.of_queries(logits[0]) if one.score > 0.5]
        counts = {name: labels.count(name) for name in sorted(set(labels))}
        return ", ".join(f"{name} × {count}" for name, count in counts.items()) or "no object"


def detections(
    logits: Tensor, shares: Tensor, names: Sequence[str], size: tuple[float, float]
) -> list[Detection]:
    """What queries find, as `query_detections`, the likeliest first."""
    each = query_detections(logits, shares, names, size)
    return sorted(each, key=lambda one: -one.score)  # stable


def query_detections(
    logits: Tensor, shares: Tensor, names: Sequence[str], size: tuple[float, float]
) -> list[Detection]:
    """What each query finds in an image of this width and height.

    logits [N, classes + 1], of which the last says that there is no object; boxes [N, 4] by their
    centers and sides, as shares of the image.
    """
    scores, classes = logits.softmax(dim=-1)[:, :-1].max(dim=-1)
    pixels = boxes.corners(shares) * torch.tensor([*size, *size])
    rows = zip(classes.tolist(), scores.tolist(), pixels.tolist(), strict=True)
    return [Detection(names[label], score, tuple(corners)) for label, score, corners in rows]
