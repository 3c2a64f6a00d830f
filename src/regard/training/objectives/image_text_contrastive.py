"""Contrastive language–image pre-training (CLIP, Radford et al. 2021): images and their captions.

The loss is symmetric InfoNCE with a learned temperature: which of the batch's captions belongs to
an image, and which of its images to a caption. A model with a bias (SigLIP, Zhai et al. 2023)
judges each pair of the batch by itself: a sigmoid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.evaluation.scores import Score, scored
from regard.training import model_spec
from regard.training.data.image_sources import CaptionedImages, ImageData
from regard.training.objectives.contrastive_loss import info_nce, sigmoid_loss
from regard.training.objectives.objective import ScoredObjective
from regard.training.parallel.ranks import ONE_RANK, Ranks
from regard.training.setup import Setup

# Section 2.5 of the paper: cosines are multiplied by at most 100. The scale is a logarithm.
MAX_SCALE = math.log(100)


class ImageTextContrastive(ScoredObjective):
    """The caption of an image is to be nearer than any other caption of the batch."""

    name = "image_text"
    unit = "images"
    source_class = CaptionedImages
    source: CaptionedImages
    base_tasks = ("embed_image",)
    base_advice = "give a dual encoder, such as CLIP"
    spec_classes = (spec.DualEncoder,)

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def describe(cls, setup: Setup, data: ImageData) -> spec.Model:
        assert data.tokenizer is not None, "prepared with the captions"
        description: Any = model_spec.describe(setup.recipe, len(data.tokenizer))
        text = description.text
        assert text.pool is not None, "both towers of a dual encoder have one"
        pool = text.pool
        if isinstance(pool.which, spec.EndToken):
            # The vector of a text is that of its end token, whose id the tokenizer decides.
            end_token = spec.EndToken(data.tokenizer.required_token_id("eos"))
            pool = replace(pool, which=end_token)
        tokens = replace(text.tokens, vocabulary=len(data.tokenizer))
        text = replace(text, input=tokens, pool=pool)
        return replace(description, text=text)

    # --- training ---------------------------------------------------------------------------------

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss = image_text_loss(
            self.model, tensors, self.source.pixel_values(tensors), self.setup.ranks
        )
        return loss, loss.detach()

    # --- evaluation -------------------------------------------------------------------------------

    def score(self, split: str, autocast: AbstractContextManager[Any]) -> Score:
        """Retrieval of captions: the different ones of the split, ranked for each image."""

        def vectors(tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
            texts = self.model.texts(tensors["tokens"], tensors["padding_mask"])
            images = self.model.images(self.source.pixel_values(tensors))
            return list(zip(texts.float(), images.float(), strict=True))

        expected: list[str] = self.source.splits[split].texts
        captions = sorted(set(expected))
        rows = self.predictions(split, autocast, vectors)
        candidates = torch.stack([rows[expected.index(text)][0] for text in captions])  # [C, D]
        queries = torch.stack([image for _, image in rows])  # [images, D]
        ranked = (queries @ candidates.mT).argsort(dim=-1, descending=True, stable=True)
        rankings = [[captions[i] for i in row] for row in ranked[:, :5].tolist()]
        return scored("image_text", rankings, expected, "ranking")


def image_text_loss(
    model: Any, tensors: Mapping[str, Tensor], pixels: Tensor, ranks: Ranks = ONE_RANK
) -> Tensor:
    """The mean of both directions; with a bias, the sum over all pairs."""
    # The batch is the set of negatives: its size changes the task, not only the noise.
    texts = model.texts(tensors["tokens"], tensors["padding_mask"]).float()  # [B, D], unit vectors
    images = model.images(pixels).float()  # [B, D]
    if model.bias is not None:
        logits = model.logits(texts, ranks.gather(images))  # [B, images of all ranks]
        return sigmoid_loss(logits, ranks.first_row)
    if model.training:
        # The parameter itself, as in the paper: a clamp in the loss would stop its gradient.
        with torch.no_grad():
            model.scale.clamp_(max=MAX_SCALE)
    to_text = model.logits(ranks.gather(texts), images).mT  # [B, texts of all ranks]
    to_image = to_text.mT
    if ranks.shares_batch:
        to_image = model.logits(texts, ranks.gather(images))
    return info_nce(to_text, to_image, ranks.first_row)
