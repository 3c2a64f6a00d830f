"""Contrastive language–image pre-training (CLIP, Radford et al. 2021): images and their captions.

The loss is symmetric InfoNCE with a learned temperature: which of the batch's captions belongs to
an image, and which of its images to a caption. A model with a bias (SigLIP, Zhai et al. 2023)
judges each pair of the batch by itself: a sigmoid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.data.batching import Rows
from regard.data.labelled_images import read_captions
from regard.data.padding import pad_rows
from regard.data.training_coverage import InputStatistics, row_statistics
from regard.dual_encoder import DualEncoder
from regard.families import folder as folders
from regard.metrics.classification import RankingScore, ranking_score
from regard.models import DualEncoderModel, Model
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_training import SpecialTokenTemplate
from regard.training import model_spec
from regard.training.data.labelled_text import encoder_tokenizer
from regard.training.data.stored_images import StoredImages, stored_images
from regard.training.objectives.contrastive_loss import info_nce, sigmoid_loss
from regard.training.objectives.image_objective import ImageData, ImageObjective
from regard.training.objectives.text_model_files import text_model_files
from regard.training.setup import Setup

# Section 2.5 of the paper: cosines are multiplied by at most 100. The scale is a logarithm.
MAX_SCALE = math.log(100)
# The end token is not the third: a config.json with eos_token_id 2 means the highest id of a row.
_SPECIAL_TOKENS = SpecialTokenTemplate(
    ("<pad>", "<|startoftext|>", "<unk>", "<|endoftext|>"), "<|startoftext|> $A <|endoftext|>"
)


@dataclass(frozen=True)
class CaptionedImages(ImageData):
    """Images with captions, and the tokenizer of these."""

    tokenizer: Tokenizer


class ImageTextContrastive(ImageObjective):
    """The caption of an image is to be nearer than any other caption of the batch."""

    name = "image_text"
    processor_kind = "clip"
    default_flip = 0.0  # captions tell left from right
    model_classes = (DualEncoderModel,)
    base_advice = "give a dual encoder, such as CLIP"
    spec_classes = (spec.DualEncoder,)
    trained_model: DualEncoderModel
    data: CaptionedImages

    def __init__(self, model: DualEncoderModel, data: CaptionedImages, setup: Setup) -> None:
        self.max_length = _max_length(model, setup)
        self._pad_id = data.tokenizer.special_token_id("pad") or 0
        captions = sorted(set(data.sets["train"].texts))
        encoded = data.tokenizer.encode_with_template(captions, self.max_length)
        rows = (encoding.ids for encoding in encoded)
        self._caption_statistics = row_statistics(rows, len(data.tokenizer))
        self._longest = max(len(encoding.ids) for encoding in encoded)
        pool = model.spec.text.pool
        # SigLIP reads all texts at one length, padding included.
        self._pads_to_max = pool is not None and pool.which == "final"
        if self._pads_to_max:
            self._longest = model.spec.text.max_length or self.max_length
        super().__init__(model, data, setup)

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> CaptionedImages:
        processor = cls.image_processor(setup, base)
        sets = stored_images(setup, processor, read_captions)
        if base is not None:
            return CaptionedImages(sets, processor, base.input_tokenizer)
        tokenizer = encoder_tokenizer(
            setup, lambda: sets["train"].texts, default="bpe", template=_SPECIAL_TOKENS
        )
        return CaptionedImages(sets, processor, tokenizer)

    @classmethod
    def image_tower(cls, description: Any) -> spec.Encoder:
        tower: spec.Encoder = description.image
        return tower

    @classmethod
    def describe(cls, setup: Setup, data: CaptionedImages) -> spec.Model:
        description = model_spec.describe(setup.recipe, len(data.tokenizer))
        assert isinstance(description, spec.DualEncoder), "checked before"
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

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: CaptionedImages, setup: Setup
    ) -> DualEncoderModel:
        model_spec.check_vocabulary("text tower", description.text.input, len(data.tokenizer))
        config = folders.describe(description, model_type=setup.recipe.model_name)
        return DualEncoderModel(model, description, data.tokenizer, config)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        text_files = text_model_files(model, setup)
        # A dual encoder generates nothing.
        return {
            **super().files(model, setup),
            "tokenizer_config.json": text_files["tokenizer_config.json"],
        }

    # --- training ---------------------------------------------------------------------------------

    def input_statistics(self) -> InputStatistics:
        return self._caption_statistics

    @property
    def model(self) -> DualEncoder:
        return self.trained_model.model

    @property
    def positions(self) -> int:
        # Not by the length of each: the captions of a batch are to be a random sample.
        return super().positions + self._longest

    def targets(self, images: StoredImages, rows: Rows, epoch: int) -> dict[str, Tensor]:
        """`tokens`, `padding_mask` [B, T], of the captions."""
        captions = [images.texts[row] for row in rows]
        encoded = self.data.tokenizer.encode_with_template(captions, self.max_length)
        min_width = 0
        multiple = self.pad_to_multiple_of
        if self._pads_to_max:
            min_width = self._longest
            multiple = 1
        tokens, padding_mask = pad_rows(
            [encoding.ids for encoding in encoded],
            self._pad_id,
            min_width=min_width,
            pad_to_multiple_of=multiple,
        )
        if self._pads_to_max:
            padding_mask = torch.ones_like(padding_mask)
        return {"tokens": tokens, "padding_mask": padding_mask}

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The mean of both directions; with a bias, the sum over all pairs."""
        # The batch is the set of negatives: its size changes the task, not only the noise.
        texts = self.model.texts(tensors["tokens"], tensors["padding_mask"])  # [B, D], unit vectors
        images = self.model.images(self.pixel_values(tensors))  # [B, D]
        texts = texts.float()
        images = images.float()
        ranks = self.setup.ranks
        if self.model.bias is not None:
            logits = self.model.logits(texts, ranks.gather(images))  # [B, images of all ranks]
            loss = sigmoid_loss(logits, ranks.first_row)
            return loss, loss.detach()
        if self.model.training:
            # The parameter itself, as in the paper: a clamp in the loss would stop its gradient.
            with torch.no_grad():
                self.model.scale.clamp_(max=MAX_SCALE)
        to_text = self.model.logits(ranks.gather(texts), images).mT  # [B, texts of all ranks]
        to_image = to_text.mT
        if ranks.shares_batch:
            to_image = self.model.logits(texts, ranks.gather(images))
        loss = info_nce(to_text, to_image, ranks.first_row)
        return loss, loss.detach()

    # --- evaluation -------------------------------------------------------------------------------

    def score(self, images: StoredImages, autocast: AbstractContextManager[Any]) -> RankingScore:
        """Retrieval of captions: the different ones of the split, ranked for each image."""
        captions = sorted(set(images.texts))
        first = {text: images.texts.index(text) for text in captions}
        texts: dict[int, Tensor] = {}
        vectors: dict[int, Tensor] = {}
        for batch in self.evaluation_batches(images):
            with torch.inference_mode(), autocast:
                text_rows = self.model.texts(batch.tensors["tokens"], batch.tensors["padding_mask"])
                image_rows = self.model.images(self.pixel_values(batch.tensors))
            for i, row in enumerate(batch.rows.tolist()):
                texts[row] = text_rows[i].float()
                vectors[row] = image_rows[i].float()
        candidates = torch.stack([texts[first[text]] for text in captions])  # [captions, D]
        queries = torch.stack([vectors[row] for row in range(len(images))])  # [images, D]
        ranked = (queries @ candidates.mT).argsort(dim=-1, descending=True, stable=True)
        rankings = [[captions[i] for i in row] for row in ranked[:, :5].tolist()]
        return ranking_score(rankings, images.texts)


def _max_length(model: DualEncoderModel, setup: Setup) -> int:
    """Tokens that a caption may have; longer ones are cut, as CLIP does it."""
    context = setup.recipe.data.context
    return min(context, model.spec.text.max_length or context)
