"""Sources of images: augmented pixels, with classes, with captions, or alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec
from regard.data.batching import Batch, Rows
from regard.data.generated.scenes import Scene, scene
from regard.data.image import ImageProcessor, new_image_processor
from regard.data.labelled import (
    read_captions,
    read_image_folders,
    read_images,
)
from regard.data.padding import pad_rows
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import SpecialTokenTemplate
from regard.data.training_coverage import InputStatistics, row_statistics
from regard.models import (
    DualEncoderModel,
    ImageEncoder,
    Model,
)
from regard.system.errors import SettingError
from regard.training import model_spec
from regard.training.data.image_augmentation import Augmentation, crop_and_flip, trivial_augment
from regard.training.data.labelled_text import encoder_tokenizer
from regard.training.data.source import ModelInputs, Position, text_model_files
from regard.training.data.stored_items import (
    ItemData,
    ItemSource,
    LabelledItems,
    StoredItems,
    write_items,
)
from regard.training.setup import Setup

_COLOURS = 3
# Before the names of tensors that hold, for each row of a batch, the row before it.
PREVIOUS = "previous_"
_GENERATED = {"valid": 400, "test": 1000}  # examples, unless a recipe says how many
# The end token is not the third: a config.json with eos_token_id 2 means the highest id of a row.
CLIP_TOKENS = SpecialTokenTemplate(
    ("<pad>", "<|startoftext|>", "<unk>", "<|endoftext|>"), "<|startoftext|> $A <|endoftext|>"
)


class Images(ItemSource):
    """Batches of images in random order, augmented.

    Pixels go to the device as bytes, and become values there.
    """

    unit = "images"
    model_class: ClassVar[Callable[..., Model]] = ImageEncoder
    processor_kind: ClassVar[str] = "vit"  # whose defaults a new model's preprocessing has
    default_flip: ClassVar[float] = 0.5  # share of the images that is mirrored
    # 4 pixels at CIFAR's 32 (He et al. 2016, Section 4.2), in proportion for larger images.
    default_padding: ClassVar[float] = 1 / 8
    read: ClassVar[staticmethod[..., Any]] = staticmethod(read_images)

    def __init__(self, model: Model, data: ItemData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        *_, height, width, _ = data.sets["train"].values.shape
        self.size = [height, width]
        settings = self.settings
        padding = settings.crop_padding
        if padding is None:
            padding = int(self.default_padding * self.size[0])
        self.augmentation = Augmentation(
            rows=len(data.sets["train"]),
            padding=padding,
            flip=self.default_flip if settings.flip is None else settings.flip,
            mixup=settings.mixup,
            cutmix=settings.cutmix,
            zoom=settings.zoom,
            seed=settings.seed,
        )
        # The value of each byte in each channel, [3, 256]: as exact as the processor itself.
        every_byte = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
        assert data.processor is not None, "prepared with the images"
        self._values = data.processor.normalized(every_byte)[:, 0].to(setup.device)
        self._channels = torch.arange(3, device=setup.device)[:, None, None]

    # --- preparing a run --------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> ItemData:
        processor = cls.image_processor(setup) if base is None else base.image_processor

        sets = cls.stored(setup, partial(cls.item, processor))
        return ItemData(sets, cls.vocabulary(setup, base, sets["train"].texts), processor)

    @classmethod
    def stored(
        cls, setup: Setup, item: Callable[[Any], tuple[NDArray[Any], str]]
    ) -> dict[str, StoredItems]:
        folder = setup.run_folder.data
        if not setup.recipe.files and not (folder / "train").is_dir():
            data = setup.recipe.data
            processor = cls.image_processor(setup)
            begin = data.builtin_lines
            for name, usual in _GENERATED.items():
                count = data.test_lines or usual
                numbers = range(begin, begin + count)
                write_items(folder / name, map(item, cls.generated(numbers, processor)))
                begin += count
            # Last: its presence says that all are there.
            numbers = range(data.builtin_lines)
            write_items(folder / "train", map(item, cls.generated(numbers, processor)))
        return super().stored(setup, item)

    @classmethod
    def generated(cls, numbers: range, processor: Any) -> Iterable[Any]:
        """The generated examples of these numbers, of a kind that has such."""
        raise NotImplementedError

    @classmethod
    def item(cls, processor: ImageProcessor, example: Any) -> tuple[NDArray[np.uint8], str]:
        """An example as it is stored: its pixels [1, height, width, 3], and its text."""
        return processor.resized(example.image)[None], example.text

    @classmethod
    def image_processor(cls, setup: Setup) -> ImageProcessor:
        """The preprocessing of a new model, of its image size."""
        front = cls.image_front_end(cls.description(setup))
        if front.channels != 3:
            raise SettingError(
                f"the model reads {front.channels} channels", "give one that reads colours (3)"
            )
        return new_image_processor(cls.processor_kind, front.size)

    @classmethod
    def description(cls, setup: Setup) -> spec.Model:
        """The spec of a new model, whose images do not depend on how many classes there will be."""
        description = model_spec.read(setup.run_folder, setup.parts.kinds)
        return description or model_spec.describe(setup.recipe, vocabulary=2)

    @classmethod
    def image_front_end(cls, description: spec.Model) -> Any:
        """The part of a model that reads images."""
        parts = description.front_ends.values()
        return next(part for part in parts if part.main_input_name == "pixel_values")

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        processor = cls.image_processor(setup).to_config()
        return {"config.json": model.config, "preprocessor_config.json": processor}

    # --- batches ----------------------------------------------------------------------------------

    @property
    def positions(self) -> int:
        """What an image counts in a batch: patches, and whatever else is read with it."""
        return self.model.spec.image_positions

    def lengths(self, split: str) -> NDArray[Any]:
        return np.full((len(self.splits[split]), 1), self.positions)

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        values = torch.from_numpy(self.splits[split].values[rows])
        tensors = {"pixels": values[..., :_COLOURS]}  # [B, H, W, 3]; what follows are masks
        tensors |= self.targets(split, rows)
        if split == "train":
            tensors |= self._augmentation_tensors(rows, position[0])
        if "mixup" in tensors and self.setup.ranks.data_size > 1:
            tensors = _divisible(tensors)
        return Batch(tensors, self.units(split, rows), rows)

    def shown(self, split: str, row: int) -> NDArray[Any]:
        return super().shown(split, row)[0]  # [H, W, 3]

    def units(self, split: str, rows: Rows) -> int:
        """What a batch counts, of which the loss is a mean."""
        return len(rows)

    def _augmentation_tensors(self, rows: Rows, epoch: int) -> dict[str, Tensor]:
        """What `pixel_values` needs to augment a batch on the device."""
        tensors: dict[str, Tensor] = {}
        if self.augmentation.padding or self.augmentation.flip or self.augmentation.zoom:
            corner, mirrored = self.augmentation.crops(rows, epoch)
            if self.augmentation.zoom:
                scale, shift = self.augmentation.zooms(rows, epoch)
                corner = corner + (shift * (1 - scale[:, None]) * np.array(self.size))
                tensors["scale"] = torch.from_numpy(scale)  # [B]
            tensors["corner"] = torch.from_numpy(corner)  # [B, 2]
            tensors["mirrored"] = torch.from_numpy(mirrored)  # [B]
        if self.settings.augment == "trivial":
            operation, magnitude = self.augmentation.operations(rows, epoch)
            tensors["operation"] = torch.from_numpy(operation)  # [B]
            tensors["magnitude"] = torch.from_numpy(magnitude)  # [B]
        if self.augmentation.mixup or self.augmentation.cutmix:
            # One blend for the batch, as the authors of mixup have it: its first row's.
            weights = self.augmentation.blend_weights(int(rows[0]), epoch, self.size)
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
        if weight.ndim == 4 and values.ndim == 5:  # of each clip of a divided batch
            weight = weight[:, None]
        return weight * values + (1 - weight) * neighbours

    def _normalized(self, tensors: Mapping[str, Tensor]) -> Tensor:
        pixels = self.augmented(tensors)
        shape = tensors["pixels"].shape[:-3]  # [B], or [B, frames]
        return self._values[self._channels, pixels.long()].unflatten(0, shape)

    def augmented(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The images of a batch as bytes, [B · frames, 3, H, W]."""
        # Clips are stored as several images, all of which are augmented alike.
        shape = tensors["pixels"].shape[:-3]  # [B], or [B, frames]
        frames = shape.numel() // shape[0]
        drawn = {
            name: tensors[name].repeat_interleave(frames, dim=0)
            for name in ("corner", "mirrored", "scale", "operation", "magnitude")
            if name in tensors
        }
        pixels = self.cropped(tensors["pixels"].flatten(0, -4), drawn)  # [B · frames, 3, H, W]
        if "operation" in drawn:
            pixels = trivial_augment(pixels, drawn["operation"], drawn["magnitude"])
        return pixels

    @staticmethod
    def cropped(pixels: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Images [B, H, W, C], stored with their channels last, as the crops of a batch [B, C, H,
        W]."""
        pixels = pixels.permute(0, 3, 1, 2).contiguous()
        if "corner" not in tensors:
            return pixels
        return crop_and_flip(pixels, tensors["corner"], tensors["mirrored"], tensors.get("scale"))


def _divisible(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a blended batch that ranks can cut: each row with what is before it."""
    rows = len(tensors["pixels"])
    by_row = {name: tensor for name, tensor in tensors.items() if name != "mixup"}
    previous = {PREVIOUS + name: tensor.roll(1, dims=0) for name, tensor in by_row.items()}
    weight = tensors["mixup"]
    if weight.ndim:  # CutMix, [H, W]
        weight = weight.expand(rows, 1, *weight.shape)
    return {**by_row, **previous, "mixup": weight}


class SceneImages(Images):
    """Images with what is in them; generated scenes where a recipe names no files."""

    @staticmethod
    @abstractmethod
    def of_scene(one: Scene) -> Any:
        """A scene as an example of its files would be."""

    @classmethod
    def generated(cls, numbers: range, processor: Any) -> Iterable[Any]:
        return (cls.of_scene(scene(0, number, processor.side)) for number in numbers)


class LabelledImages(LabelledItems, Images):
    """Images of one class each: a folder for each class."""

    read = staticmethod(read_image_folders)
    model: ImageEncoder


class CaptionedImages(Images):
    """Images with their captions: a table of both."""

    model_class = DualEncoderModel
    processor_kind = "clip"
    default_flip = 0.0  # captions tell left from right
    read = staticmethod(read_captions)
    model: DualEncoderModel

    def __init__(self, model: DualEncoderModel, data: ItemData, setup: Setup) -> None:
        self.tokenizer: Tokenizer = data.vocabulary
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
    def vocabulary(cls, setup: Setup, base: Any, texts: list[str]) -> Tokenizer:
        if base is not None:
            tokenizer: Tokenizer = base.input_tokenizer
            return tokenizer
        return encoder_tokenizer(setup, lambda: texts, default="bpe", template=CLIP_TOKENS)

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: ItemData) -> Model:
        model_spec.check_vocabulary("text tower", description.text.input, len(data.vocabulary))
        return DualEncoderModel(model, description, data.vocabulary, config)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        # A dual encoder generates nothing.
        tokenizer = text_model_files(model, setup)["tokenizer_config.json"]
        return {**super().files(model, setup), "tokenizer_config.json": tokenizer}

    @property
    def positions(self) -> int:
        # Not by the length of each: the captions of a batch are to be a random sample.
        return super().positions + self._longest

    def targets(self, split: str, rows: Rows) -> dict[str, Tensor]:
        """`tokens`, `padding_mask` [B, T], of the captions."""
        captions = [self.splits[split].texts[row] for row in rows]
        encoded = self.tokenizer.encode_with_template(captions, self.max_length)
        ids = [encoding.ids for encoding in encoded]
        pad = self.tokenizer.special_token_id("pad") or 0
        if self._pads_to_max:
            tokens, padding_mask = pad_rows(ids, pad, min_width=self._longest)
            padding_mask = torch.ones_like(padding_mask)
        else:
            tokens, padding_mask = pad_rows(
                ids, pad, pad_to_multiple_of=self.setup.pad_to_multiple_of
            )
        return {"tokens": tokens, "padding_mask": padding_mask}

    def statistics(self) -> InputStatistics:
        return row_statistics(self._rows, self.tokenizer)
