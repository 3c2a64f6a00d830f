"""Masked image modelling (MAE, He et al. 2022): the pixels of hidden patches from visible ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torch import Tensor

from regard import spec
from regard.builder import build
from regard.core.patch_embedding import Patches, VisiblePatches
from regard.data.batching import Rows
from regard.data.image_masking import masking_noise
from regard.data.labelled_images import read_images
from regard.encoder import Encoder
from regard.errors import ModelError
from regard.families import folder as folders
from regard.metrics.reconstruction import ReconstructionScore
from regard.models import ImageEncoder, Model
from regard.models.saving import config_json
from regard.training import model_spec
from regard.training.data.stored_images import StoredImages, stored_images
from regard.training.objectives.image_objective import ImageData, ImageObjective
from regard.training.setup import Setup


class MaskedImages(ImageObjective):
    """The pixels of masked patches, by their squared error; labels are not read.

    Which patches of an image are hidden follows from (seed, epoch, row).
    """

    name = "masked_images"
    processor_kind = "vit"
    default_flip = 0.5
    model_classes = (ImageEncoder,)
    base_advice = "give a masked autoencoder of images, such as ViT-MAE"
    spec_classes = (spec.Encoder,)
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
    def describe(cls, setup: Setup, data: ImageData) -> spec.Model:
        # There are no classes: the number is one that every preset takes.
        description = model_spec.describe(setup.recipe, vocabulary=2)
        model_spec.check_kind(description, cls.spec_classes, cls.name)
        return _with_masks(cls.image_tower(description), setup.recipe.train.hidden)

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
        description = _with_masks(base.spec, setup.recipe.train.hidden)
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
        count = self.patches.side**2
        noise = masking_noise(self.settings.seed, epoch, rows, count)
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
    ) -> ReconstructionScore:
        return ReconstructionScore(self.mean_loss(images, autocast), len(images))


def _with_masks(description: spec.Encoder, share: float | None) -> spec.Encoder:
    """An autoencoder that hides this share of the patches, or as many as it does already."""
    if description.pixels is None:
        raise ModelError(
            "this model has no decoder that reconstructs pixels",
            "give a masked autoencoder: --model vit-mae:tiny, or a spec with `pixels`",
        )
    patches = description.patches
    share = share or patches.masked_share
    if int((patches.size // patches.patch) ** 2 * (1 - share)) == 0:
        raise ModelError(
            f"with {share:.0%} of the patches masked, none is left to see",
            "give smaller patches (--patch), or a smaller share (--hidden)",
        )
    return replace(description, input=replace(patches, masked_share=share))
