"""An encoder of images (ViT, DeiT, MAE): classes, vectors, and masked patches filled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard import spec as kinds
from regard.builder import build
from regard.core.finite_outputs import require_finite
from regard.core.frontends.patch_embedding import Patches, VisiblePatches
from regard.core.heads.pixel_decoder import PixelDecoder, PixelShuffleHead
from regard.core.side import ImageFrontEnd
from regard.data.clips import ClipProcessor
from regard.data.corruption import masking_noise
from regard.data.image import FILE, ImageProcessor, Picture, open_image, read_image_processor
from regard.models.base import Model
from regard.models.labels import Scores
from regard.models.saving import config_json
from regard.models.tasks import one_or_many, one_or_stacked
from regard.system.errors import ModelError, SettingError
from regard.wirings.encoder import Encoder

if TYPE_CHECKING:
    from regard.look import MediaInput

_BATCH_SIZE = 32  # images


class Reconstruction(NamedTuple):
    """The pixels of an image's masked patches [M, P] as predicted, and as the loss has them."""

    predicted: NDArray[np.float32]
    targets: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SegmentedPixels:
    """The class of each pixel of an image, by its number in `labels`."""

    mask: NDArray[np.uint8]  # [height, width]
    labels: tuple[str, ...]

    @property
    def shares(self) -> dict[str, float]:
        """The share of the pixels of each class that occurs, the largest first."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.labels)) / self.mask.size
        order = (-counts).argsort(kind="stable")
        return {self.labels[i]: float(counts[i]) for i in order if counts[i]}

    def png(self) -> bytes:
        """A PNG file whose bytes are the classes."""
        from PIL import Image  # there: an image has been read

        file = BytesIO()
        Image.fromarray(self.mask).save(file, "PNG")
        return file.getvalue()


def position_logits(core: Any, pixels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of positions as maps [B, classes, rows, columns], and auxiliary losses."""
    hidden, auxiliary = core(pixels)
    scores = core.classes(hidden, None, pixels)  # [B, positions, classes]
    return core.input.as_maps(scores, pixels), auxiliary


def enlarged(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps [B, classes, rows, columns] in the size of an image, bilinearly."""
    return functional.interpolate(maps.float(), tuple(size), mode="bilinear")


def _classes(maps: Tensor, size: Sequence[int]) -> NDArray[np.uint8]:
    """The likeliest class of each pixel of one image of that size: [H, W]"""
    best: NDArray[np.uint8] = enlarged(maps, size)[0].argmax(dim=0).to(torch.uint8).cpu().numpy()
    return best


class ImageReader(Model):
    """A model that reads images; base class of an encoder of them and of a dual encoder."""

    medium = "image"
    spec: Any

    @cached_property
    def image_processor(self) -> ImageProcessor:
        """How an image becomes pixel values: resizing, cropping, normalization."""
        if self.folder is None:
            raise ModelError(
                "this model has no image processor",
                "load it from a folder with a preprocessor_config.json",
            )
        processor = read_image_processor(self.folder)
        frames = self.front_end.frames
        return processor if frames is None else ClipProcessor.of(processor, frames)

    @property
    def front_end(self) -> Any:
        """What reads its images."""
        fronts = self.model.front_ends().values()
        return next(one for one in fronts if isinstance(one, ImageFrontEnd))

    @torch.no_grad()
    def with_image_size(self, size: int) -> Self:
        """The same model for images of another side: learned positions are interpolated."""
        if self.front_end.frames is not None:
            raise SettingError("positions of clips are not interpolated", "remove `image_size`")
        other = copy(self)
        other.spec = self.spec.with_image_size(size)
        other.model = build(other.spec).eval()
        weights = dict(self.model.named_parameters())
        for name, parameter in other.model.named_parameters():
            if parameter.shape == weights[name].shape:
                parameter.copy_(weights[name])
            elif parameter.requires_grad:  # the positions: sinusoids are computed anew
                grid = (other.front_end.side,) * 2
                parameter.copy_(self.front_end.positions(grid))
        other.config = config_json(other.spec, self.config)
        other.image_processor = self.image_processor.for_side(size)
        other.changed_files = {FILE: other.image_processor.to_config()}
        return other

    def read_medium(self, data: bytes) -> MediaInput:
        return self._read(data)

    def read_file(self, path: Path) -> MediaInput:
        # The frames of a clip may be in a folder.
        is_clip = self.front_end.frames is not None and path.is_dir()
        return self._read(path) if is_clip else super().read_file(path)

    def _read(self, data: bytes | Path) -> MediaInput:
        from regard.look import MediaInput
        from regard.look.backdrop import ClipBackdrop, ImageBackdrop

        pixel_values = self.image_processor(data)  # [C, H, W], or [frames, C, H, W]
        inputs = pixel_values[None].to(self.device, self.dtype)
        front = self.front_end
        on = (front.patch, len(front.extras))
        backdrop: ImageBackdrop
        if front.frames is None:
            picture = self.image_processor.to_image(pixel_values)
            backdrop = ImageBackdrop(picture, *on)
        else:
            # One frame for each time, without the pixels that fill no patch.
            side = front.side * front.patch
            shown = pixel_values[front.shown_frames, :, :side, :side]
            strip = self.image_processor.to_image(shown)
            backdrop = ClipBackdrop(strip, *on, len(shown), front.by_frame)
            # On a page, positions stand row by row in a square.
            picture = self.image_processor.to_image(front.mosaic(pixel_values)[None])
        return MediaInput(inputs, picture=picture, backdrop=backdrop)

    @torch.inference_mode()
    def map_images(self, images: Sequence[Picture], function: Callable[[Tensor], Tensor]) -> Tensor:
        """Applies a function of pixel values [B, C, H, W] to all images, batch by batch.

        The results come back on the CPU, in float32, [N, …].
        """
        self.model.eval()
        results = []
        # torch.cat refuses an empty list; the other dimensions are those of any image.
        shown = images or [np.zeros((8, 8, 3), np.uint8)]
        for start in range(0, len(shown), _BATCH_SIZE):
            batch = self.image_processor.batch(shown[start : start + _BATCH_SIZE])  # [B, C, H, W]
            outputs = function(batch.to(self.device, self.dtype)).float().cpu()
            # NaN compares false with everything: a ranking of NaN would look like an answer.
            results.append(require_finite(outputs, self.model))
        return torch.cat(results)[: len(images)]


class ImageEncoder(ImageReader):
    """Encodes images: files (PNG, JPEG), Pillow images or arrays of bytes, one or a list.

    Made by `regard.load(folder)`.
    """

    model: Encoder
    spec: kinds.Encoder | kinds.ConvolutionalEncoder

    @property
    def evaluations(self) -> tuple[str, ...]:
        data = "images" if self.front_end.frames is None else "clips"
        of_labels = "segment" if self.spec.task == "segment" else data
        heads = {of_labels: self.spec.labels, f"masked_{data}": self.spec.pixels}
        return tuple(name for name, head in heads.items() if head is not None)

    @property
    def tasks(self) -> list[str]:
        """The head has one class for an image, or for each pixel."""
        other = "classify" if self.spec.task == "segment" else "segment"
        return [task for task in super().tasks if task != other]

    @one_or_many
    def classify(self, images: list[Picture]) -> list[Scores]:
        """Label → probability, likeliest first."""
        self.require_labels()  # before images are read

        logits = self.map_images(images, lambda pixels: self.model.classes(self.model(pixels)[0]))
        return self.scores(logits)

    @one_or_many
    def segment(self, images: list[Picture]) -> list[SegmentedPixels]:
        """The class of each pixel of an image, in the size in which it came."""
        names = tuple(self.require_labels())
        if self.spec.task != "segment":
            raise ModelError(
                "this model has one class for an image, and none for its pixels",
                "train it: regard finetune segment FOLDER DATA",
            )
        # One by one: they may differ in size.
        masks = [self._mask(open_image(image)) for image in images]
        return [SegmentedPixels(mask, names) for mask in masks]

    def with_answer(self, backdrop: Any, logits: Tensor) -> Any:
        """The image with the outlines of its classes, where pixels have one."""
        if self.spec.task != "segment":
            return super().with_answer(backdrop, logits)
        from regard.look.backdrop import MaskBackdrop

        pixels = self.of_positions(logits, backdrop.picture.shape[:2])
        parts = (backdrop.picture, backdrop.patch, backdrop.extras, pixels.mask, pixels.labels)
        return MaskBackdrop(*parts, answer=self.short_answer(logits))

    def of_positions(self, logits: Tensor, size: Sequence[int]) -> SegmentedPixels:
        """The classes of pixels, by the output of the head [1, positions, classes]."""
        channels = self.front_end.spec.channels
        maps = self.front_end.as_maps(logits, logits.new_empty(1, channels, *size))
        return SegmentedPixels(_classes(maps, size), tuple(self.require_labels()))

    def short_answer(self, logits: Tensor) -> str:
        """The classes that occur and their shares: "background 81 %, circle 12 %"."""
        if self.spec.task != "segment":
            return super().short_answer(logits)
        side = self.front_end.spec.size
        shares = self.of_positions(logits, (side, side)).shares
        return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())

    def _mask(self, image: Any) -> NDArray[np.uint8]:
        maps = self.map_images([image], lambda pixels: position_logits(self.model, pixels)[0])
        return _classes(maps, (image.height, image.width))

    @one_or_stacked
    def embed(self, images: list[Picture]) -> Tensor:
        """The vector of an image, [D], or [N, D] for a list.

        The projected vector of a CLIP tower, the pooled one of SigLIP, otherwise the hidden state
        of the class token.
        """
        return self.map_images(images, self._vectors)  # [N, D]

    def reconstruct(self, images: list[Picture], seed: int = 0) -> list[Reconstruction]:
        """Masked patches of images, filled in by a decoder of pixels (MAE, SimMIM).

        Which patches of an image are masked follows from the seed and its place in the list.
        """
        decoder = self.model.part(PixelDecoder) or self.model.part(PixelShuffleHead)
        if decoder is None:
            raise ModelError(
                "this model does not reconstruct pixels",
                "use a masked autoencoder, such as ViT-MAE",
            )
        front = self.model.input
        assert isinstance(front, Patches), "such a decoder reads images"
        noise = masking_noise(seed, 0, np.arange(len(images)), front.spec.maskable)
        orders = front.random_masking(noise)
        results = []
        for start in range(0, len(images), _BATCH_SIZE):
            rows = slice(start, start + _BATCH_SIZE)
            order = VisiblePatches(*(one[rows].to(self.device) for one in orders))

            def both(pixel_values: Tensor, order: VisiblePatches = order) -> Tensor:
                predicted = self.model.reconstruct(pixel_values, order)
                return torch.stack([predicted, decoder.targets(front.unfold(pixel_values))], dim=1)

            for i, pair in enumerate(self.map_images(images[rows], both)):  # [2, N, P]
                predicted, targets = pair[:, orders.masked[start + i]].numpy()
                results.append(Reconstruction(predicted, targets))
        return results

    def _vectors(self, pixel_values: Tensor) -> Tensor:
        # A pooler with an activation (ViT's) was trained for a task; its vector is no image vector.
        pool = self.spec.pool
        if pool is not None and pool.activation is None:
            return self.front_end.of_inputs(self.model.vector(pixel_values))
        hidden, _ = self.model(pixel_values)  # [B, T, D]
        # The class token stands first; where there is none, the mean of the patches.
        vectors = hidden[:, 0] if len(self.front_end.extras) else hidden.mean(dim=1)
        return self.front_end.of_inputs(vectors)
