"""A dual encoder (CLIP): texts and images as vectors of one space."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec as kinds
from regard.data.image import Picture
from regard.data.text.tokenizer import Text
from regard.models.base import TokenizerModel
from regard.models.image_encoder import ImageReader
from regard.models.inputs.token_batches import different_texts
from regard.models.labels import Scores, label_scores
from regard.models.tasks import one_or_many, one_or_stacked
from regard.models.text_encoder import TextEncoder
from regard.wirings.dual_encoder import DualEncoder


class DualEncoderModel(ImageReader, TokenizerModel):
    """Compares texts with images (CLIP); made by `regard.load(folder)`."""

    model: DualEncoder
    spec: kinds.DualEncoder
    evaluations = ("image_text", "images", "contrastive")

    @cached_property
    def text_encoder(self) -> TextEncoder:
        """The text tower as a model of its own."""
        encoder = TextEncoder(self.model.text, self.spec.text, self._tokenizer)
        # Its tokenizer is opened from the same folder, on first use.
        encoder.folder = self.folder
        encoder.coverage = self.coverage
        encoder.say = self.say
        return encoder

    def text_tensors(
        self, texts: Text | Sequence[Text], max_length: int | None, truncation: bool
    ) -> dict[str, Tensor]:
        return self.text_encoder.text_tensors(texts, max_length, truncation)

    def embed_text(self, text: str | Sequence[str]) -> Tensor:
        """The unit vector of a text, [D], or [N, D] for a list."""
        return functional.normalize(self.text_encoder.embed(text), dim=-1)

    @one_or_stacked
    def embed_image(self, images: list[Picture]) -> Tensor:
        """The unit vector of an image, [D], or [N, D] for a list."""
        # [N, D]; `images` of the core model normalizes them already.
        return self.map_images(images, self.model.images)

    @one_or_many
    def classify(self, images: list[Picture], captions: Sequence[str]) -> list[Scores]:
        """Zero-shot classification: caption → probability for an image, likeliest first."""
        names = different_texts("captions", captions)
        if not images:
            return []
        vectors = self.embed_image(images)  # [N, D]
        with torch.inference_mode():
            texts = self.embed_text(names).to(self.device, self.dtype)  # [captions, D]
            vectors = vectors.to(self.device, self.dtype)
            logits = self.model.logits(texts, vectors).mT.float().cpu()  # [N, captions]
        if self.model.bias is None and len(names) == 1:
            # A softmax over one caption, where `label_scores` would apply a sigmoid.
            return [{names[0]: 1.0} for _ in logits]
        # With a bias, each caption is judged by itself: probabilities need not add up to 1.
        problem_type = None if self.model.bias is None else "multi_label_classification"
        return [label_scores(row, names, problem_type) for row in logits]
