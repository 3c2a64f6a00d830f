"""A pair of towers: texts and images as vectors of one space."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec as kinds
from regard.data.image import Picture, Preparation
from regard.errors import DataError
from regard.model import DualEncoder
from regard.models.image_encoder import image_input, preparation, prepared
from regard.models.labels import Scores, scored
from regard.models.text_encoder import TextEncoder
from regard.models.with_tokenizer import WithText

if TYPE_CHECKING:
    from regard.look import MediaInput


class DualEncoderModel(WithText):
    """Compares texts with pictures; made by `regard.load(folder)`."""

    model: DualEncoder
    spec: kinds.DualEncoder

    @cached_property
    def reader(self) -> TextEncoder:
        """The tower of texts."""
        reader = TextEncoder(self.model.text, self.spec.text, self._text)
        reader.folder, reader.say = self.folder, self.say
        return reader

    @cached_property
    def preparation(self) -> Preparation:
        """How a picture becomes pixels."""
        return preparation(self)

    medium = "image"

    def read_medium(self, data: bytes) -> MediaInput:
        return image_input(self, data)

    def embed_text(self, text: str | Sequence[str]) -> Tensor:
        """[D] for a text, [N, D] for a list, each of length 1."""
        return functional.normalize(self.reader.embed(text), dim=-1)

    def embed_image(self, image: Picture | list[Picture]) -> Tensor:
        """[D] for a picture, [N, D] for a list, each of length 1."""
        vectors = prepared(self, image if isinstance(image, list) else [image], self.model.images)
        return vectors if isinstance(image, list) else vectors[0]

    @overload
    def classify(self, image: list[Picture], captions: Sequence[str]) -> list[Scores]: ...
    @overload
    def classify(self, image: Picture, captions: Sequence[str]) -> Scores: ...
    def classify(
        self, image: Picture | list[Picture], captions: Sequence[str]
    ) -> Scores | list[Scores]:
        """How probable each of the captions is for a picture, likeliest first: classes by description, without training."""
        names = list(captions)
        if isinstance(captions, str) or not names or len(set(names)) != len(names):
            raise DataError(
                "captions are not a list of different texts",
                'give some, as in ["a photo of a cat", …]',
            )
        images = self.embed_image(image if isinstance(image, list) else [image])
        with torch.inference_mode():
            scores = images @ self.embed_text(names).mT * self.model.scale.exp().cpu()
        found = [scored(row, names) if len(names) > 1 else {names[0]: 1.0} for row in scores]
        return found if isinstance(image, list) else found[0]
