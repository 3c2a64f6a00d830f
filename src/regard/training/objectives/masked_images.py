"""Masked image modelling: the pixels of hidden patches from visible ones.

An encoder reads the visible patches alone (MAE, He et al. 2022), or mask tokens in the place of the
others (SimMIM, Xie et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from regard import spec
from regard.builder import build
from regard.core.patch_embedding import Patches, VisiblePatches
from regard.core.pixel_decoder import PixelShuffleHead
from regard.data.batching import Rows
from regard.data.image_masking import masking_noise
from regard.data.labelled_images import read_images
from regard.encoder import Encoder
from regard.errors import ModelError
from regard.families import folder as folders
from regard.metrics.reconstruction import AbsoluteReconstructionScore, ReconstructionScore
from regard.models import ImageEncoder, Model
from regard.models.saving import config_json
from regard.training import model_spec
from regard.training.data.stored_images import StoredImages, stored_images
from regard.training.objectives.image_objective import ImageData, ImageObjective
from regard.training.setup import Setup


class MaskedImages(ImageObjective):
    """The pixels of masked patches, by the error of the model's decoder; labels are not read.

    Which patches of an image are hidden follows from (seed, epoch, row).
    """

    name = "masked_images"
    processor_kind = "vit"
    default_flip = 0.5
    model_classes = (ImageEncoder,)
    base_advice = "give a model with a decoder of pixels, such as ViT-MAE"
    spec_classes = (spec.Encoder,)
    input_names = ("pixel_values",)
    describes_head = True
    head_fields = "pixels=PixelDecoder(WIDTH, STACK)"
    trained_model: ImageEncoder

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> ImageData:
        processor = cls.image_processor(setup, base)
        return ImageData(stored_images(setup, processor, read_images), processor)

    @classmethod
    def image_tower(cls, description: Any) -> spec.Encoder:
        tower: spec.Encoder = description
        return tower

    @classmethod
    def has_head(cls, description: spec.Encoder) -> bool:
        return description.pixels is not None

    @classmethod
    def describe(cls, setup: Setup, data: ImageData) -> spec.Model:
        return model_spec.describe_masked_images(setup.recipe)

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: ImageData, setup: Setup
    ) -> ImageEncoder:
        config = folders.describe(description, model_type=setup.recipe.model_name)
        return ImageEncoder(model, description, config)

    @classmethod
    def adapt(cls, base: Model, data: ImageData, setup: Setup) -> ImageEncoder:
        """The same autoencoder, with another share of masked patches if one is asked for."""
        assert isinstance(base, ImageEncoder), "checked before"
        if base.spec.pixels is None:
            raise ModelError(
                "this model has no decoder that reconstructs pixels",
                "give one that has: ViT-MAE, SimMIM; a new one begins with --model",
            )
        description = model_spec.with_hidden_patches(base.spec, setup.recipe.train.mask_ratio)
        if description == base.spec:
            return base
        model = build(description)
        model.load_state_dict(base.model.state_dict())
        encoder = ImageEncoder(model, description, config_json(description, base.config))
        encoder.folder = base.folder
        encoder.say = base.say
        return encoder

    # --- training ---------------------------------------------------------------------------------

    @property
    def model(self) -> Encoder:
        return self.trained_model.model

    @property
    def patches(self) -> Patches:
        """The front end, which knows how many patches it hides."""
        front = self.model.input
        assert isinstance(front, Patches), "it reads images"
        return front

    def targets(self, images: StoredImages, rows: Rows, epoch: int) -> dict[str, Tensor]:
        """The `VisiblePatches` of a batch, sorted here: a step on the device sorts nothing."""
        noise = masking_noise(self.settings.seed, epoch, rows, self.patches.maskable)
        return self.patches.random_masking(noise)._asdict()

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """There is no −log p of pixels: the loss, a mean of each image, stands for both."""
        decoder = self.model.pixels
        assert decoder is not None, "checked when the model was described"
        order = VisiblePatches(tensors["visible"], tensors["restore"], tensors["masked"])
        pixels = self.pixel_values(tensors)  # [B, 3, H, W]
        predicted = self.model.reconstruct(pixels, order)
        errors = decoder.error(predicted, self.patches.unfold(pixels), order.masked)  # [B, N]
        # Every image has equally many masked patches.
        loss = errors.sum() / order.masked[0].sum()
        return loss, loss.detach()

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if self.validation_images is None:
            return None
        # The score is the loss: one pass for both.
        return {"loss": self.mean_loss(self.validation_images, autocast)}

    def score(
        self, images: StoredImages, autocast: AbstractContextManager[Any]
    ) -> ReconstructionScore | AbsoluteReconstructionScore:
        error = self.mean_loss(images, autocast)
        if isinstance(self.model.pixels, PixelShuffleHead):
            return AbsoluteReconstructionScore(error, len(images))
        return ReconstructionScore(error, len(images))
