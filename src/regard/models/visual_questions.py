"""A model that answers questions about images, or judges sentences: ViLT."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.image import Picture
from regard.models.base import TokenizerModel
from regard.models.image_encoder import ImageReader
from regard.models.labels import Scores
from regard.system.errors import DataError
from regard.wirings.encoder import Encoder

if TYPE_CHECKING:
    from regard.look.inspectable import Reading

_BATCH_SIZE = 32  # images


class VisualQuestionModel(ImageReader, TokenizerModel):
    """Answers questions about images by one of its classes; made by `regard.load(folder)`."""

    medium = None  # type: ignore[assignment]  # an image alone is half of what it reads
    evaluations = ("vqa",)
    model: Encoder
    spec: kinds.Encoder

    @property
    def front_end(self) -> Any:
        front: Any = self.model.front_ends()["encoder"]
        return front.image

    def answer(
        self, questions: str | Sequence[str], images: Picture | Sequence[Picture]
    ) -> Scores | list[Scores]:
        """Answer → probability, likeliest first, for a question about an image; or for each of a
        list of questions, about the image in its place."""
        if isinstance(questions, str):
            [one] = self.answers([questions], [images])  # type: ignore[list-item]
            return one
        return self.answers(questions, list(images))  # type: ignore[arg-type]

    @torch.inference_mode()
    def answers(self, questions: Sequence[str], images: Sequence[Picture]) -> list[Scores]:
        """The answer to each question, about the image in its place."""
        self.require_labels()
        if len(questions) != len(images):
            raise DataError(
                f"there are {len(questions)} questions about {len(images)} images",
                "pass as many images as questions",
            )
        self.model.eval()
        scores: list[Scores] = []
        for start in range(0, len(questions), _BATCH_SIZE):
            rows = slice(start, start + _BATCH_SIZE)
            texts = self.tokens([*questions[rows]])
            pixels = self.image_processor.batch([*images[rows]]).to(self.device, self.dtype)
            mask = texts["attention_mask"].bool()
            hidden, _ = self.model(texts["input_ids"], mask, pixels=pixels)
            logits = self.model.classes(hidden).float().cpu()
            scores += self.scores(require_finite(logits, self.model))
        return scores

    def read_text(self, text: str) -> Reading:
        """A question about an image: the file, a tab, the question."""
        from regard.look.backdrop import ImageBackdrop
        from regard.look.inspectable import Reading

        name, tab, question = text.partition("\t")
        if not tab or not os.path.isfile(name):
            raise DataError(
                "this model reads an image and a question about it",
                "write the file of the image, a tab, and the question",
            )
        ids = self.tokenizer.input_ids(question)
        words = tuple(self.tokenizer.tokens(ids))
        pixels = self.image_processor(Path(name))
        front = self.front_end
        # The words stand before the image, as its class token does.
        extras = len(words) + len(front.extras)
        backdrop = ImageBackdrop(self.image_processor.to_image(pixels), front.patch, extras)
        names = (*words, "image", *(f"patch {i}" for i in range(front.side**2)))
        shown = {"pixel_values": pixels[None].to(self.device, self.dtype)}
        return Reading(torch.tensor([ids]), names, shown, backdrop)
