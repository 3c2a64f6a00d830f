"""Masked image modelling: the pixels of hidden patches from visible ones.

An encoder reads the visible patches alone (MAE, He et al. 2022), or mask tokens in the place of the
others (SimMIM, Xie et al. 2022).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from regard import spec
from regard.core.frontends.patch_embedding import Patches, VisiblePatches
from regard.core.heads.pixel_decoder import PixelShuffleHead
from regard.data.batching import Batch, Rows
from regard.data.corruption import masking_noise
from regard.evaluation.scores import Score
from regard.models import Model
from regard.system.errors import ModelError
from regard.training import model_spec
from regard.training.data.clip_sources import Clips
from regard.training.data.image_sources import Images
from regard.training.data.source import Position
from regard.training.data.stored_items import ItemData
from regard.training.objectives.losses import LossSums, LossTerms, Tensors
from regard.training.objectives.objective import ScoredObjective
from regard.training.setup import Setup


class MaskedImages(ScoredObjective):
    """The pixels of masked patches, by the error of the model's decoder; labels are not read.

    Which patches of an image are hidden follows from (seed, epoch, row).
    """

    name = "masked_images"
    unit = "images"
    source_class = Images
    source: Images
    base_tasks = ("embed",)
    base_advice = "give a model with a decoder of pixels, such as ViT-MAE"
    spec_classes = (spec.Encoder,)
    input_names = ("pixel_values",)
    describes_head = True
    head = "pixels"
    head_fields = "heads=(PixelDecoder(WIDTH, STACK),)"

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        return model_spec.describe_masked_images(setup.recipe)

    @classmethod
    def adapt(cls, base: Any, data: ItemData, setup: Setup) -> Model:
        """The same autoencoder, with another share of masked patches if one is asked for."""
        if base.spec.pixels is None:
            raise ModelError(
                "this model has no decoder that reconstructs pixels",
                "give one that has: ViT-MAE, SimMIM; a new one begins with --model",
            )
        description = model_spec.with_hidden_patches(base.spec, setup.recipe.train.mask_ratio)
        if description == base.spec:
            return base  # type: ignore[no-any-return]
        return cls.rebuilt(base, description, data, setup)

    # --- training ---------------------------------------------------------------------------------

    @property
    def patches(self) -> Patches:
        """The front end, which knows how many patches it hides."""
        front = self.model.input
        assert isinstance(front, Patches), "it reads images"
        return front

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        """With the `VisiblePatches` of a batch, sorted here: a step on the device sorts nothing."""
        batch = super().collate(split, rows, position)
        noise = masking_noise(self.settings.seed, position[0], rows, self.patches.spec.maskable)
        order = self.patches.random_masking(noise)._asdict()
        return replace(batch, tensors=batch.tensors | order)

    def loss(self, tensors: Tensors) -> LossSums:
        """There is no −log p of pixels: the loss, a mean of each image, stands for both."""
        order = VisiblePatches(tensors["visible"], tensors["restore"], tensors["masked"])
        pixels = self.source.pixel_values(tensors)  # [B, 3, H, W]
        return self.total(reconstruction_loss(self.model, pixels, order))

    # --- evaluation -------------------------------------------------------------------------------

    def measures(self) -> dict[str, Any]:
        return {}  # the score is the loss: one pass for both

    def score(self, split: str) -> Score:
        loss, count = self.nll(split)
        if isinstance(self.model.pixels, PixelShuffleHead):
            return Score(mae=loss / count, examples=count)
        return Score(mse=loss / count, examples=count)


class MaskedClips(MaskedImages):
    """The pixels of masked tubelets, hidden at all times alike (VideoMAE)."""

    name = "masked_clips"
    unit = "clips"
    source_class = Clips
    input_names = ("clips",)
    base_advice = "give a model with a decoder of pixels, such as VideoMAE"


def reconstruction_loss(model: Any, pixels: Tensor, order: VisiblePatches) -> LossTerms:
    """The error of hidden patches, a mean of each image, summed over images [B, 3, H, W]."""
    predicted = model.reconstruct(pixels, order)
    errors = model.pixels.error(predicted, model.input.unfold(pixels), order.masked)  # [B, N]
    # Every image has equally many masked patches.
    loss = errors.sum() / order.masked[0].sum()
    return LossTerms(loss, loss.detach(), {}, len(pixels))
