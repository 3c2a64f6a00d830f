"""An encoder of images: which class a picture is of, and what it is as a vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from regard import spec as kinds
from regard.data.image import Picture, Preparation, read
from regard.errors import ModelError
from regard.model import Encoder
from regard.models.base import Model
from regard.models.labels import Scores, label_names, scored

if TYPE_CHECKING:
    from regard.look import MediaInput

AT_ONCE = 32  # pictures


class ImageEncoder(Model):
    """Sees pictures: files (PNG, JPEG), Pillow images or arrays of bytes, one or a list; made by `regard.load(folder)`."""

    model: Encoder
    spec: kinds.Encoder

    @cached_property
    def preparation(self) -> Preparation:
        """How a picture becomes pixels."""
        return preparation(self)

    @property
    def labels(self) -> list[str]:
        """The names of its classes, in the order of their scores."""
        if self.spec.labels is None:
            raise ModelError(
                "this model has no classes", "it can: embed; fine-tune it for the rest"
            )
        return label_names(self.config, self.spec.labels.count)

    @overload
    def classify(self, image: list[Picture]) -> list[Scores]: ...
    @overload
    def classify(self, image: Picture) -> Scores: ...
    def classify(self, image: Picture | list[Picture]) -> Scores | list[Scores]:
        """The probability of each label, likeliest first."""
        names, problem = self.labels, self.config.get("problem_type")
        pictures = image if isinstance(image, list) else [image]
        scores = prepared(self, pictures, lambda pixels: self.model.classes(self.model(pixels)[0]))
        found = [scored(row, names, problem) for row in scores]
        return found if isinstance(image, list) else found[0]

    def embed(self, image: Picture | list[Picture]) -> Tensor:
        """[D] for a picture, [N, D] for a list: the projected vector of a tower, otherwise that of the class token."""
        vectors = prepared(self, image if isinstance(image, list) else [image], self._vector)
        return vectors if isinstance(image, list) else vectors[0]

    medium = "image"

    def read_medium(self, data: bytes) -> MediaInput:
        return image_input(self, data)

    def _vector(self, pixels: Tensor) -> Tensor:
        plain = self.spec.pool is not None and self.spec.pool.activation is None
        return self.model.vector(pixels) if plain else self.model(pixels)[0][:, 0]


def preparation(held: Model) -> Preparation:
    if held.folder is None:
        raise ModelError(
            "this model does not know how pictures are prepared",
            "open it from a folder that says so",
        )
    return read(held.folder)


def image_input(model: Any, data: bytes) -> MediaInput:
    """The pixels of an image file, as a model with a `preparation` reads them."""
    from regard.look import MediaInput

    pixels = model.preparation(data)
    return MediaInput(pixels[None].to(model.device), model.preparation.seen(pixels))


@torch.inference_mode()
def prepared(held: Any, pictures: Sequence[Picture], use: Callable[[Tensor], Tensor]) -> Tensor:
    """What `use` makes of the pixels of all pictures, some at a time, on the CPU."""
    held.model.eval()
    parts = [pictures[i : i + AT_ONCE] for i in range(0, len(pictures), AT_ONCE)]
    made = [use(held.preparation.batch(part).to(held.device)).float().cpu() for part in parts]
    return torch.cat(made) if made else torch.empty(0)
