"""Sources of images: augmented pixels, with classes, with captions, or alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec
from regard.data.batching import Batch, Rows
from regard.data.image import ImageProcessor, new_image_processor
from regard.data.labelled import (
    LabelledImage,
    read_captions,
    read_image_folders,
    read_images,
)
from regard.data.padding import pad_rows
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import SpecialTokenTemplate
from regard.data.training_coverage import InputStatistics, row_statistics
from regard.models import DualEncoderModel, ImageEncoder, Model
from regard.system import disk
from regard.system.errors import DataError, SettingError
from regard.training import model_spec
from regard.training.data.image_augmentation import Augmentation, crop_and_flip, trivial_augment
from regard.training.data.labelled_text import (
    class_names,
    encoder_tokenizer,
    label_id,
    sets_of_files,
)
from regard.training.data.source import ModelInputs, Position, Source, text_model_files
from regard.training.run_folder import RunFolder
from regard.training.setup import Setup

Reader = Callable[[str], list[LabelledImage]]  # of a folder or a table


@dataclass(frozen=True)
class StoredImages:
    """The images of a split, all of one size, and the text of each: its class or its caption."""

    pixels: NDArray[np.uint8]  # [N, height, width, 3], memory-mapped
    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)


def stored_images(setup: Setup, processor: ImageProcessor, read: Reader) -> dict[str, StoredImages]:
    """The images by split, resized and stored in the run folder on the first call."""
    folder = setup.run_folder.data
    if not (folder / "train.json").exists():
        for name, examples in sets_of_files(setup, read):
            _write(folder, name, examples, processor)
    return {path.stem: _open(folder, path.stem) for path in sorted(folder.glob("*.json"))}


def stored_examples(run_folder: RunFolder, split: str) -> list[LabelledImage] | None:
    """The examples of a split as a run has stored them; None for a run without images."""
    if not (run_folder.data / f"{split}.npy").is_file():
        return None
    images = _open(run_folder.data, split)
    return [
        LabelledImage(pixels, text)
        for pixels, text in zip(images.pixels, images.texts, strict=True)
    ]


def _write(
    folder: Path, name: str, examples: Sequence[LabelledImage], processor: ImageProcessor
) -> None:
    if not examples:
        raise DataError(f"there are no images for {name!r}", "give some, or leave that split out")
    shape = processor.resized(examples[0].image).shape  # (height, width, 3)
    path = folder / f"{name}.npy"
    with disk.disk_errors(str(path)), disk.atomic_file(path) as temporary:
        # Row by row: all of them may be more than fits into memory.
        array = np.lib.format.open_memmap(
            temporary, mode="w+", dtype=np.uint8, shape=(len(examples), *shape)
        )
        for row, example in enumerate(examples):
            pixels = processor.resized(example.image)
            if pixels.shape != shape:
                raise DataError(
                    f"the pictures come out in different sizes: {shape[:2]}, {pixels.shape[:2]}",
                    "crop them to one size",
                )
            array[row] = pixels
        array.flush()
    disk.write_json(folder / f"{name}.json", [example.text for example in examples])


def _open(folder: Path, name: str) -> StoredImages:
    texts = disk.read_json(folder / f"{name}.json", DataError)
    try:
        # Memory-mapped: ImageNet at 224² would take 190 GB of memory.
        pixels = np.load(folder / f"{name}.npy", mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / name}.npy cannot be read: {error}", "start a new run") from None
    if len(pixels) != len(texts):
        raise DataError(
            f"{folder} has {len(pixels)} images of {name!r}, but {len(texts)} texts",
            "start a new run",
        )
    return StoredImages(pixels, texts)


# Before the names of tensors that hold, for each row of a batch, the row before it.
PREVIOUS = "previous_"
# The end token is not the third: a config.json with eos_token_id 2 means the highest id of a row.
_CLIP_TOKENS = SpecialTokenTemplate(
    ("<pad>", "<|startoftext|>", "<unk>", "<|endoftext|>"), "<|startoftext|> $A <|endoftext|>"
)


@dataclass(frozen=True)
class ImageData:
    """Images by split, and the preprocessing that they were stored with.

    The names of their classes, sorted, if they have some; the tokenizer of their captions.
    """

    sets: dict[str, StoredImages]
    processor: ImageProcessor
    labels: Sequence[str] = ()
    tokenizer: Tokenizer | None = None


class Images(Source):
    """Batches of images in random order, augmented.

    Pixels go to the device as bytes, and become values there.
    """

    unit = "images"
    model_class: ClassVar[Callable[..., Model]] = ImageEncoder
    processor_kind: ClassVar[str] = "vit"  # whose defaults a new model's preprocessing has
    default_flip: ClassVar[float] = 0.5  # share of the images that is mirrored
    read: ClassVar[staticmethod[..., Any]] = staticmethod(read_images)
    data: ImageData

    def __init__(self, model: Model, data: ImageData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.splits = data.sets
        self.images = data.sets["train"]
        side = self.images.pixels.shape[1]
        settings = self.settings
        # 4 pixels at CIFAR's 32 (He et al. 2016, Section 4.2), in proportion for larger images.
        padding = side // 8 if settings.crop_padding is None else settings.crop_padding
        self.augmentation = Augmentation(
            rows=len(self.images),
            padding=padding,
            flip=self.default_flip if settings.flip is None else settings.flip,
            mixup=settings.mixup,
            cutmix=settings.cutmix,
            seed=settings.seed,
        )
        # The value of each byte in each channel, [3, 256]: as exact as the processor itself.
        every_byte = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
        self._values = data.processor.normalized(every_byte)[:, 0].to(setup.device)
        self._channels = torch.arange(3, device=setup.device)[:, None, None]

    # --- preparing a run --------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> ImageData:
        processor = cls.image_processor(setup) if base is None else base.image_processor
        return ImageData(stored_images(setup, processor, cls.read), processor)

    @classmethod
    def image_processor(cls, setup: Setup) -> ImageProcessor:
        """The preprocessing of a new model, of its image size."""
        description = model_spec.read(setup.run_folder, setup.parts.kinds)
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
    def image_tower(cls, description: Any) -> spec.Encoder:
        """The part of a model that reads images."""
        tower: spec.Encoder = description
        return tower

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        processor = cls.image_processor(setup).to_config()
        return {"config.json": model.config, "preprocessor_config.json": processor}

    # --- batches ----------------------------------------------------------------------------------

    @property
    def positions(self) -> int:
        """What an image counts in a batch: patches, and whatever else is read with it."""
        return self.image_tower(self.model.spec).patches.positions

    def lengths(self, split: str) -> NDArray[Any]:
        return np.full((len(self.splits[split]), 1), self.positions)

    def targets(self, images: StoredImages, rows: Rows) -> dict[str, Tensor]:
        """The tensors of a batch next to its pixels."""
        return {}

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        images = self.splits[split]
        tensors = {"pixels": torch.from_numpy(images.pixels[rows])}  # [B, H, W, 3]
        tensors |= self.targets(images, rows)
        if split == "train":
            tensors |= self._augmentation_tensors(rows, position[0])
        if "mixup" in tensors and self.setup.ranks.data_size > 1:
            tensors = _divisible(tensors)
        return Batch(tensors, len(rows), rows)

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
            height, width = self.images.pixels.shape[1:3]
            weights = self.augmentation.blend_weights(int(rows[0]), epoch, (height, width))
            tensors["mixup"] = torch.from_numpy(np.asarray(weights))  # [] or [H, W]
        return tensors

    def model_inputs(self, tensors: Mapping[str, Tensor]) -> ModelInputs:
        return ModelInputs(self.pixel_values(tensors))

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

    def example(self, row: int) -> dict[str, Any]:
        return {"text": self.images.texts[row]}


def _divisible(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a blended batch that ranks can cut: each row with what is before it."""
    rows = len(tensors["pixels"])
    by_row = {name: tensor for name, tensor in tensors.items() if name != "mixup"}
    previous = {PREVIOUS + name: tensor.roll(1, dims=0) for name, tensor in by_row.items()}
    weight = tensors["mixup"]
    if weight.ndim:  # CutMix, [H, W]
        weight = weight.expand(rows, 1, *weight.shape)
    return {**by_row, **previous, "mixup": weight}


class LabelledImages(Images):
    """Images of one class each: a folder for each class."""

    read = staticmethod(read_image_folders)
    model: ImageEncoder

    def __init__(self, model: ImageEncoder, data: ImageData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        for images in data.sets.values():
            for text in images.texts:
                label_id(text, self.label_ids)  # only for its errors, which are to come early

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> ImageData:
        data = super().prepare(setup, base)
        return ImageData(data.sets, data.processor, class_names(data.sets["train"].texts))

    def targets(self, images: StoredImages, rows: Rows) -> dict[str, Tensor]:
        return {"labels": torch.tensor([self.label_ids[images.texts[row]] for row in rows])}  # [B]


class CaptionedImages(Images):
    """Images with their captions: a table of both."""

    model_class = DualEncoderModel
    processor_kind = "clip"
    default_flip = 0.0  # captions tell left from right
    read = staticmethod(read_captions)
    model: DualEncoderModel

    def __init__(self, model: DualEncoderModel, data: ImageData, setup: Setup) -> None:
        assert data.tokenizer is not None, "prepared with the captions"
        self.tokenizer = data.tokenizer
        # Longer captions are cut, as CLIP does it.
        context = setup.recipe.data.context
        self.max_length = min(context, model.spec.text.max_length or context)
        captions = sorted(set(data.sets["train"].texts))
        self._rows = [
            encoding.ids
            for encoding in self.tokenizer.encode_with_template(captions, self.max_length)
        ]
        self._longest = max(map(len, self._rows))
        pool = model.spec.text.pool
        # SigLIP reads all texts at one length, padding included.
        self._pads_to_max = pool is not None and pool.which == "final"
        if self._pads_to_max:
            self._longest = model.spec.text.max_length or self.max_length
        super().__init__(model, data, setup)

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> ImageData:
        data = super().prepare(setup, base)
        if base is not None:
            return ImageData(data.sets, data.processor, tokenizer=base.input_tokenizer)
        tokenizer = encoder_tokenizer(
            setup, lambda: data.sets["train"].texts, default="bpe", template=_CLIP_TOKENS
        )
        return ImageData(data.sets, data.processor, tokenizer=tokenizer)

    @classmethod
    def image_tower(cls, description: Any) -> spec.Encoder:
        tower: spec.Encoder = description.image
        return tower

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: ImageData) -> Model:
        assert data.tokenizer is not None, "prepared with the captions"
        model_spec.check_vocabulary("text tower", description.text.input, len(data.tokenizer))
        return super().wrap(model, description, config, data)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        # A dual encoder generates nothing.
        tokenizer = text_model_files(model, setup)["tokenizer_config.json"]
        return {**super().files(model, setup), "tokenizer_config.json": tokenizer}

    @property
    def positions(self) -> int:
        # Not by the length of each: the captions of a batch are to be a random sample.
        return super().positions + self._longest

    def targets(self, images: StoredImages, rows: Rows) -> dict[str, Tensor]:
        """`tokens`, `padding_mask` [B, T], of the captions."""
        captions = [images.texts[row] for row in rows]
        encoded = self.tokenizer.encode_with_template(captions, self.max_length)
        tokens, padding_mask = pad_rows(
            [encoding.ids for encoding in encoded],
            self.tokenizer.special_token_id("pad") or 0,
            min_width=self._longest if self._pads_to_max else 0,
            pad_to_multiple_of=1 if self._pads_to_max else self.setup.pad_to_multiple_of,
        )
        if self._pads_to_max:
            padding_mask = torch.ones_like(padding_mask)
        return {"tokens": tokens, "padding_mask": padding_mask}

    def statistics(self) -> InputStatistics:
        return row_statistics(self._rows, self.tokenizer)
