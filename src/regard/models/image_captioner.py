"""A model that captions images: an encoder–decoder over patches (VisionEncoderDecoder)."""

from __future__ import annotations

from typing import Unpack

from regard import spec as kinds
from regard.data.image import Picture
from regard.decode.strategy import DecodingOptions, Strategy, choose_strategy
from regard.models.image_encoder import ImageReader
from regard.models.medium_to_text import MediumToText
from regard.models.tasks import one_or_many

_IMAGES_AT_ONCE = 32


class ImageCaptioner(ImageReader, MediumToText):
    """Captions images: files (PNG, JPEG), Pillow images or arrays of bytes.

    Made by `regard.load(folder)`.
    """

    evaluations = ("caption",)
    repair_of_length = "set `max_new_tokens`: the decoder has no more positions"
    spec: kinds.EncoderDecoder

    @one_or_many
    def caption(
        self,
        images: list[Picture],
        strategy: Strategy | None = None,
        *,
        max_new_tokens: int | None = None,
        **options: Unpack[DecodingOptions],
    ) -> list[str]:
        """What is to be seen, in words.

        Decoding is greedy without a `strategy`, or keywords that stand for one (`beam=4`).
        """
        strategy = choose_strategy(strategy, options, ("max_new_tokens",))
        if not images:
            return []
        pixels = [self.image_processor(image) for image in images]  # each [C, H, W]
        width = pixels[0].shape[-1]
        prompt = (self.ids.start,)
        return self._written(pixels, prompt, strategy, _IMAGES_AT_ONCE * width, max_new_tokens)
