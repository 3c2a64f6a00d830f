"""Image classification (ViT, Dosovitskiy et al. 2021; DeiT, Touvron et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.builder import build
from regard.data.batching import Rows
from regard.data.labelled_images import read_image_folders
from regard.encoder import Encoder
from regard.families import folder as folders
from regard.metrics.classification import RankingScore, ranking_score
from regard.models import ImageEncoder, Model
from regard.models.labels import label_config
from regard.models.saving import config_json
from regard.training import model_spec
from regard.training.data.stored_images import StoredImages, stored_images
from regard.training.objectives.head_objective import class_names, copy_weights, label_id
from regard.training.objectives.image_objective import PREVIOUS, ImageData, ImageObjective
from regard.training.objectives.label_smoothed_cross_entropy import cross_entropy
from regard.training.setup import Setup


@dataclass(frozen=True)
class ClassifiedImages(ImageData):
    """Images with the names of their classes, sorted."""

    labels: list[str]


class ImageClassification(ImageObjective):
    """The class of an image, from its class token; of DeiT, from the mean of both heads."""

    name = "images"
    processor_kind = "vit"
    default_flip = 0.5
    model_classes = (ImageEncoder,)
    base_advice = "give an encoder of images, such as ViT"
    spec_classes = (spec.Encoder,)
    input_names = ("pixel_values",)
    describes_head = True
    head_fields = "labels=ClassifierHead(CLASSES), and pool=Pool()"
    trained_model: ImageEncoder
    data: ClassifiedImages

    def __init__(self, model: ImageEncoder, data: ClassifiedImages, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self._label_ids = {name: i for i, name in enumerate(model.labels)}
        for images in data.sets.values():
            self._labels(images)  # only for its errors, which are to come early

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> ClassifiedImages:
        processor = cls.image_processor(setup, base)
        sets = stored_images(setup, processor, read_image_folders)
        return ClassifiedImages(sets, processor, class_names(sets["train"].texts))

    @classmethod
    def image_tower(cls, description: Any) -> spec.Encoder:
        tower: spec.Encoder = description
        return tower

    @classmethod
    def has_head(cls, description: spec.Encoder) -> bool:
        return description.task == "classify"

    @classmethod
    def describe(cls, setup: Setup, data: ClassifiedImages) -> spec.Model:
        count = len(data.labels)
        description = model_spec.describe(setup.recipe, count)
        assert isinstance(description, spec.Encoder), "checked before"
        return _with_classes(cls.image_tower(description), count)

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: ClassifiedImages, setup: Setup
    ) -> ImageEncoder:
        model_spec.check_classes(description, data.labels)
        config = folders.describe(description, model_type=setup.recipe.model_name)
        return ImageEncoder(model, description, config | label_config(data.labels))

    @classmethod
    def adapt(cls, base: Model, data: ClassifiedImages, setup: Setup) -> ImageEncoder:
        """The same stack with the classes of the data: its own head if they are the same."""
        assert isinstance(base, ImageEncoder), "checked before"
        if base.spec.labels is not None and set(base.labels) == set(data.labels):
            return base
        description = _with_classes(base.spec, len(data.labels))
        torch.manual_seed(setup.recipe.train.seed)  # for the new head
        model = build(description)
        copy_weights(base, model)
        config = config_json(description, base.config) | label_config(data.labels)
        encoder = ImageEncoder(model, description, config)
        encoder.folder = base.folder
        encoder.say = base.say
        return encoder

    # --- training ---------------------------------------------------------------------------------

    @property
    def model(self) -> Encoder:
        return self.trained_model.model

    def _labels(self, images: StoredImages) -> list[int]:
        return [label_id(text, self._label_ids) for text in images.texts]

    def targets(self, images: StoredImages, rows: Rows, epoch: int) -> dict[str, Tensor]:
        labels = [self._label_ids[images.texts[row]] for row in rows]
        return {"labels": torch.tensor(labels)}  # [B]

    def logits(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits of the classes [B, count], and auxiliary losses."""
        hidden, auxiliary = self.model(self.pixel_values(tensors))  # [B, T, D]
        return self.model.classes(hidden), auxiliary

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits, auxiliary = self.logits(tensors)
        labels = tensors["labels"]
        smoothing = self.settings.label_smoothing
        loss, nll = cross_entropy(logits, labels, smoothing)
        if "mixup" in tensors:
            weight = tensors["mixup"].mean()  # CutMix: the share of the pixels that are its own
            # Where ranks share the batch, the label before the first row is not among these.
            others = tensors.get(PREVIOUS + "labels", labels.roll(1, dims=0))
            other_loss, other_nll = cross_entropy(logits, others, smoothing)
            loss = weight * loss + (1 - weight) * other_loss
            nll = weight * nll + (1 - weight) * other_nll
        return self.with_auxiliary(loss, auxiliary, len(labels)), nll

    # --- evaluation -------------------------------------------------------------------------------

    def score(self, images: StoredImages, autocast: AbstractContextManager[Any]) -> RankingScore:
        rankings: list[list[int]] = [[] for _ in images.texts]
        for batch in self.evaluation_batches(images):
            with torch.inference_mode(), autocast:
                logits, _ = self.logits(batch.tensors)
            best = logits.argsort(dim=-1, descending=True, stable=True)[:, :5].tolist()
            for row, ranking in zip(batch.rows, best, strict=True):
                rankings[row] = ranking
        return ranking_score(rankings, self._labels(images))


def _without_masks(description: spec.Encoder) -> spec.Encoder:
    """The encoder of masked image modelling, which sees all patches from now on.

    That of a masked autoencoder becomes a plain ViT, whose positions are trained with the rest (He
    et al. 2022, Appendix A.1).
    """
    patches = replace(description.patches, masked_share=0.0, mask_token=False, mask_unit=1)
    if isinstance(description.pixels, spec.PixelDecoder):
        dropout = description.stack.block.dropout
        patches = replace(patches, position="learned", dropout=dropout)
    return replace(description, input=patches, pixels=None)


def _with_classes(description: spec.Encoder, count: int) -> spec.Encoder:
    """An encoder of images with so many classes, by a head as it has one, or by a new one."""
    if description.pixels is not None or description.patches.mask_token:
        description = _without_masks(description)
    if description.labels is not None:
        return replace(description, labels=replace(description.labels, count=count))
    if description.pool is not None and description.pool.which == "mean":  # Swin
        return replace(description, labels=spec.ClassifierHead(count))
    if not description.patches.extras:  # SigLIP has no class token
        labels = spec.ClassifierHead(count, pool="mean")
        return replace(description, head=None, labels=labels)
    # The class token as ViT's classifier reads it; CLIP's has a norm before it.
    norm = None if description.pool is None else description.pool.norm
    pool = spec.Pool("first", None, norm=norm)
    return replace(description, head=None, pool=pool, labels=spec.ClassifierHead(count))
