"""Base of the objectives that learn from images: batches of augmented pixels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.data.batching import Batch, BatchSampler, Rows, batch_indices
from regard.data.image import ImageProcessor, new_image_processor
from regard.errors import SettingError
from regard.metrics.classification import RankingScore
from regard.metrics.reconstruction import AbsoluteReconstructionScore, ReconstructionScore
from regard.metrics.scores import AnyScore
from regard.models import DualEncoderModel, ImageEncoder, Model
from regard.training import model_spec
from regard.training.data.image_augmentation import Augmentation, crop_and_flip
from regard.training.data.stored_images import StoredImages
from regard.training.data.trivial_augment import trivial_augment
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup

# A validation batch has no gradients and may be this much larger than a training batch.
EVALUATION_BATCH_FACTOR = 4
# Before the names of tensors that hold, for each row of a batch, the row before it.
PREVIOUS = "previous_"


@dataclass(frozen=True)
class ImageData:
    """Images by split, and the preprocessing that they were stored with."""

    sets: dict[str, StoredImages]
    processor: ImageProcessor


class ImageObjective(Objective):
    """Batches of images in random order, augmented; a subclass says what is learnt from them.

    Pixels go to the device as bytes, and become values there.
    """

    unit = "images"
    processor_kind: ClassVar[str]  # whose defaults a new model's preprocessing has
    default_flip: ClassVar[float]  # share of the images that is mirrored
    data: ImageData

    def __init__(self, model: Model, data: ImageData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.train_images = data.sets["train"]
        self.validation_images = data.sets.get("valid")
        side = self.train_images.pixels.shape[1]
        padding = self.settings.crop_padding
        if padding is None:
            # 4 pixels at CIFAR's 32 (He et al. 2016, Section 4.2), in proportion for larger images.
            padding = side // 8
        flip = self.settings.flip
        if flip is None:
            flip = self.default_flip
        self.augmentation = Augmentation(
            len(self.train_images),
            padding=padding,
            flip=flip,
            mixup=self.settings.mixup,
            cutmix=self.settings.cutmix,
            seed=self.settings.seed,
        )
        # The value of each byte in each channel, [3, 256]: as exact as the processor itself.
        every_byte = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
        self._values = data.processor.normalized(every_byte)[:, 0].to(setup.device)
        self._channels = torch.arange(3, device=setup.device)[:, None, None]
        validation = 0 if self.validation_images is None else len(self.validation_images)
        count = len(self.train_images)
        setup.say(f"data: {count:,} images to train on, {validation:,} to validate")

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def image_processor(cls, setup: Setup, base: Model | None) -> ImageProcessor:
        """The preprocessing of the model to fine-tune, or of a new one of its image size."""
        if isinstance(base, ImageEncoder | DualEncoderModel):
            return base.image_processor
        description = model_spec.read(setup.run_folder, setup.kinds)
        if description is None:
            # The sizes of images do not depend on how many classes or tokens there will be.
            description = model_spec.describe(setup.recipe, vocabulary=2)
        patches = cls.image_tower(description).patches
        if patches.channels != 3:
            raise SettingError(
                f"the model reads {patches.channels} channels", "give one that reads colours (3)"
            )
        return new_image_processor(cls.processor_kind, patches.size)

    @classmethod
    @abstractmethod
    def image_tower(cls, description: Any) -> spec.Encoder:
        """The part of a model that reads images."""

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        processor = cls.image_processor(setup, None)
        return {"config.json": model.config, "preprocessor_config.json": processor.to_config()}

    # --- what a subclass defines ------------------------------------------------------------------

    @property
    def positions(self) -> int:
        """What an image counts in a batch: patches, and whatever else is read with it."""
        return self.image_tower(self.trained_model.spec).patches.positions

    @abstractmethod
    def targets(self, images: StoredImages, rows: Rows, epoch: int) -> dict[str, Tensor]:
        """The tensors of a batch next to `pixels`; evaluation is epoch 0."""

    @abstractmethod
    def score(
        self, images: StoredImages, autocast: AbstractContextManager[Any]
    ) -> RankingScore | ReconstructionScore | AbsoluteReconstructionScore:
        """How good the predictions are: rankings from 0 to 100, or errors."""

    # --- batches ----------------------------------------------------------------------------------

    def _sampler(self) -> BatchSampler:
        lengths = np.full((len(self.train_images), 1), self.positions)
        return BatchSampler(lengths, self.settings.batch_tokens, seed=self.settings.seed)

    def batches_per_epoch(self) -> int:
        return len(self._sampler().batches(0))

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, rows in self._sampler().iterate(epoch, index):
            tensors = {"pixels": torch.from_numpy(self.train_images.pixels[rows])}  # [B, H, W, 3]
            tensors |= self.targets(self.train_images, rows, now)
            tensors |= self._augmentation_tensors(rows, now)
            if "mixup" in tensors and self.setup.ranks.data_size > 1:
                tensors = _divisible(tensors)
            yield (now, i + 1), Batch(tensors, len(rows), rows)

    def _augmentation_tensors(self, rows: Rows, epoch: int) -> dict[str, Tensor]:
        """What `pixel_values` needs to augment a batch on the device."""
        tensors: dict[str, Tensor] = {}
        if self.augmentation.padding or self.augmentation.flip:
            corner, mirrored = self.augmentation.crops(rows, epoch)
            tensors["corner"] = torch.from_numpy(corner)  # [B, 2]
            tensors["mirrored"] = torch.from_numpy(mirrored)  # [B]
        if self.settings.augment == "trivial":
            operation, magnitude = self.augmentation.operations(rows, epoch)
            tensors["operation"] = torch.from_numpy(operation)  # [B]
            tensors["magnitude"] = torch.from_numpy(magnitude)  # [B]
        if self.augmentation.mixup or self.augmentation.cutmix:
            # One blend for the batch, as the authors of mixup have it: its first row's.
            height, width = self.train_images.pixels.shape[1:3]
            weights = self.augmentation.blend_weights(int(rows[0]), epoch, (height, width))
            tensors["mixup"] = torch.from_numpy(np.asarray(weights))  # [] or [H, W]
        return tensors

    def evaluation_batches(self, images: StoredImages) -> Iterator[Batch]:
        """Once over the images in their order, on the device, with the model in eval mode."""
        self.model.eval()
        lengths = np.full((len(images), 1), self.positions)
        budget = EVALUATION_BATCH_FACTOR * self.settings.batch_tokens
        for rows in batch_indices(lengths, budget, seed=0, epoch=0, shuffle=False):
            pixels = torch.from_numpy(images.pixels[rows])  # [B, H, W, 3]
            tensors = {"pixels": pixels, **self.targets(images, rows, epoch=0)}
            yield Batch(tensors, len(rows), rows).to(self.trained_model.device)

    def pixel_values(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Normalized pixels [B, 3, H, W]; mixup and CutMix blend each image with its neighbour."""
        values = self._normalized(tensors)
        if "mixup" not in tensors:
            return values
        neighbours = values.roll(1, dims=0)
        if PREVIOUS + "pixels" in tensors:
            # The first row's is on another rank.
            before = {
                name.removeprefix(PREVIOUS): tensor[:1]
                for name, tensor in tensors.items()
                if name.startswith(PREVIOUS)
            }
            neighbours = torch.cat([self._normalized(before), values[:-1]])
        weight = tensors["mixup"]
        return weight * values + (1 - weight) * neighbours

    def _normalized(self, tensors: Mapping[str, Tensor]) -> Tensor:
        # Images are stored with their channels last.
        pixels = tensors["pixels"].permute(0, 3, 1, 2).contiguous()  # [B, 3, H, W]
        if "corner" in tensors:
            pixels = crop_and_flip(pixels, tensors["corner"], tensors["mirrored"])
        if "operation" in tensors:
            pixels = trivial_augment(pixels, tensors["operation"], tensors["magnitude"])
        return self._values[self._channels, pixels.long()]

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [{"row": row, "text": self.train_images.texts[row]} for row in rows]

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        images = self.validation_images
        if images is None:
            return None
        loss = self.mean_loss(images, autocast)
        return {"loss": loss, **vars(self.score(images, autocast))}

    def mean_loss(self, images: StoredImages, autocast: AbstractContextManager[Any]) -> float:
        """The loss of an image, on average, without what regularizes it."""
        total = torch.zeros((), dtype=torch.float64)
        for batch in self.evaluation_batches(images):
            with torch.inference_mode(), autocast:
                _, nll = self.loss(batch.tensors)
            total += nll.double().cpu()
        return total.item() / len(images)

    def scores(self) -> dict[str, AnyScore]:
        results: dict[str, AnyScore] = {}
        for name, images in self.data.sets.items():
            if name == "train":
                continue
            score = self.score(images, torch.no_grad())
            results[name] = score
            self.setup.say(f"{name}: {_numbers(score)}  ({score.examples:,} images)")
        return results


def _divisible(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a blended batch that ranks can cut: each row with what is before it."""
    rows = len(tensors["pixels"])
    by_row = {name: tensor for name, tensor in tensors.items() if name != "mixup"}
    previous = {PREVIOUS + name: tensor.roll(1, dims=0) for name, tensor in by_row.items()}
    weight = tensors["mixup"]
    if weight.ndim:  # CutMix, [H, W]
        weight = weight.expand(rows, 1, *weight.shape)
    return {**by_row, **previous, "mixup": weight}


def _numbers(score: RankingScore | ReconstructionScore | AbsoluteReconstructionScore) -> str:
    if isinstance(score, ReconstructionScore):
        return f"mse {score.mse:.4f}"
    if isinstance(score, AbsoluteReconstructionScore):
        return f"mae {score.mae:.4f}"
    return f"accuracy {score.accuracy:.2f}  top-5 {score.top_5:.2f}  f1 {score.f1:.2f}"
