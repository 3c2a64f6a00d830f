"""Image preprocessing: resize, center crop, rescale, normalize, as preprocessor_config.json says.

Pillow is imported when the first image comes (`pip install 'regard[image]'`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from regard.system import disk
from regard.system.errors import DataError, ModelError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

Picture: TypeAlias = "str | Path | bytes | NDArray[np.uint8] | Image"
_LARGEST_LEVEL = 2**16 - 1  # of grey in 16 bits
MOST = 1 << 26  # pixels of an image; more would be a decompression bomb
FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class ImageProcessor:
    """Image processor: the steps from an image to pixel values; each is left out if None.

    1. resize to `size`: (height, width), or the shorter edge, which keeps the aspect ratio and
       gives way where the longer edge would be more than `longest` (DETR);
    2. center crop to `crop` (height, width), with black where the image is smaller;
    3. rescale by `factor`;
    4. normalize: subtract `mean`, divide by `std`.

    `resample` counts Pillow's filters: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box,
    5 Hamming.
    """

    size: tuple[int, int] | int | None
    resample: int = 2  # bilinear
    crop: tuple[int, int] | None = None
    factor: float | None = 1 / 255
    mean: tuple[float, ...] | None = (0.5, 0.5, 0.5)
    std: tuple[float, ...] | None = (0.5, 0.5, 0.5)
    longest: int | None = None

    @property
    def side(self) -> int:
        """The side of what comes out, or the longer one."""
        size = self.crop or self.size
        return size if isinstance(size, int) else max(size or (0,))

    def __call__(self, picture: Picture) -> Tensor:
        """Pixel values [3, height, width].

        Of a PNG or JPEG file or its contents, a Pillow image, or an array of bytes [height, width]
        or [height, width, 3 or 4].
        """
        return self.normalized(torch.from_numpy(self.resized(picture)).permute(2, 0, 1))

    def resized(self, picture: Picture) -> NDArray[np.uint8]:
        """The first two steps alone: bytes [height, width, 3]."""
        image = _to_rgb(open_image(picture))
        if self.size is not None:
            width, height = image.size  # Pillow's order; ours is height first
            if isinstance(self.size, tuple):
                height, width = self.size
            else:
                shorter: float = self.size
                if self.longest is not None:
                    shorter = min(shorter, self.longest * min(image.size) / max(image.size))
                # Truncated, as transformers does it, not rounded.
                longer = int(shorter * max(image.size) / min(image.size))
                is_upright = width <= height
                width = round(shorter) if is_upright else longer
                height = longer if is_upright else round(shorter)
            image = image.resize((width, height), resample=self.resample)
        if self.crop is not None:
            width, height = image.size
            crop_height, crop_width = self.crop
            left = (width - crop_width) // 2
            top = (height - crop_height) // 2
            image = image.crop((left, top, left + crop_width, top + crop_height))
        return np.array(image)

    def normalized(self, pixels: Tensor) -> Tensor:
        """The last two steps alone: bytes [3, height, width] → pixel values of the same shape."""
        if self.factor is None:
            x = pixels.float()
        else:
            # transformers multiplies in float64, on which the last bit of the result depends.
            x = (pixels.double() * self.factor).float()
        if self.mean is not None and self.std is not None:
            x = (x - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]
        return x.contiguous()

    def for_side(self, side: int) -> ImageProcessor:
        """The same steps for squares of another side; a crop leaves the same share."""
        if self.crop is None:
            return replace(self, size=(side, side))
        share = side / self.crop[0]
        size = self.size
        if isinstance(size, tuple):
            size = round(share * size[0]), round(share * size[1])
        elif size is not None:
            size = round(share * size)
        return replace(self, size=size, crop=(side, side))

    def to_config(self) -> dict[str, Any]:
        """The preprocessor_config.json of these steps, which transformers reads too."""
        # With every step written out, the class only says which edge one number would mean.
        kind = "CLIPImageProcessor" if isinstance(self.size, int) else "ViTImageProcessor"
        size: dict[str, int] = {}
        if isinstance(self.size, int):
            size = {"shortest_edge": self.size}
            if self.longest is not None:
                kind = "DetrImageProcessor"
                size["longest_edge"] = self.longest
        elif self.size is not None:
            size = {"height": self.size[0], "width": self.size[1]}
        config: dict[str, Any] = {
            "image_processor_type": kind,
            "do_resize": self.size is not None,
            "size": size,
            "resample": self.resample,
            "do_center_crop": self.crop is not None,
            "do_rescale": self.factor is not None,
            "do_normalize": self.mean is not None,
        }
        if self.crop is not None:
            config["crop_size"] = {"height": self.crop[0], "width": self.crop[1]}
        if self.factor is not None:
            config["rescale_factor"] = self.factor
        if self.mean is not None and self.std is not None:
            config |= {"image_mean": list(self.mean), "image_std": list(self.std)}
        return config

    def to_image(self, pixels: Tensor) -> NDArray[np.uint8]:
        """The inverse, from pixel values [3, height, width] to an image [height, width, 3]."""
        x = pixels
        if self.mean is not None and self.std is not None:
            x = x * torch.tensor(self.std)[:, None, None] + torch.tensor(self.mean)[:, None, None]
        if self.factor is not None:
            x = x / self.factor
        return x.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()

    def batch(self, pictures: Sequence[Picture]) -> Tensor:
        """Pixel values [B, 3, height, width] of images that come out in one size."""
        pixels = [self(picture) for picture in pictures]
        shapes = sorted({tuple(x.shape[1:]) for x in pixels})
        if len(shapes) != 1:
            raise DataError(
                f"the pictures come out in different sizes: {shapes}", "crop them to one size"
            )
        return torch.stack(pixels)


def pad_images(images: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Pixel values [3, height, width] as one tensor, with zeros at the right and below; which
    pixels are no padding, [B, H, W] bool, or None where all are."""
    sizes = {image.shape[1:] for image in images}
    if len(sizes) == 1:
        return torch.stack([*images]), None
    height, width = (max(side) for side in zip(*sizes, strict=True))
    batch = torch.zeros(len(images), len(images[0]), height, width)
    mask = torch.zeros(len(images), height, width, dtype=torch.bool)
    for row, image in enumerate(images):
        _, high, wide = image.shape
        batch[row, :, :high, :wide] = image
        mask[row, :high, :wide] = True
    return batch, mask


def require_pillow() -> None:
    """Raises `DataError` where Pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise DataError(
            "pictures need Pillow, which is not installed", "pip install 'regard[image]'"
        ) from None


def open_image(picture: Any) -> Image:
    """A Pillow image of whatever stands for one, upright."""
    require_pillow()
    from PIL import Image, ImageOps

    if isinstance(picture, Image.Image):
        return picture
    if isinstance(picture, str | Path | bytes):
        file = BytesIO(picture) if isinstance(picture, bytes) else picture
        name = "the picture" if isinstance(picture, bytes) else str(picture)
        try:
            with Image.open(file, formats=("PNG", "JPEG")) as image:
                if image.width * image.height > MOST:  # the header says so before decoding
                    raise DataError(
                        f"{name} has {image.width} × {image.height} pixels", "make it smaller"
                    )
                return ImageOps.exif_transpose(image)  # upright, however the camera was held
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            # What Pillow says of contents names an object in memory, which helps nobody.
            reason = "" if isinstance(picture, bytes) else f": {error}"
            raise DataError(
                f"{name} cannot be read{reason}", "give a PNG or JPEG file that opens elsewhere"
            ) from None
    array = np.asarray(picture)
    has_image_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not has_image_shape or not array.size:
        raise DataError(
            f"an array of {array.dtype} numbers with the shape {array.shape} is not a picture",
            "give bytes [height, width] or [height, width, 3]",
        )
    return Image.fromarray(array)


def _to_rgb(image: Image) -> Image:
    """Three channels of bytes; a transparent image gets a white background."""
    from PIL import Image

    if image.mode.startswith("I"):
        levels = np.asarray(image)
        # Pillow reads such files as 16 or as 32 bits (mode "I"), depending on its version.
        if levels.min() < 0 or levels.max() > _LARGEST_LEVEL:
            raise DataError(
                "a picture of more than 16 bits does not say what is white", "use 16 bits"
            )
        # Pillow's own conversion would make all above 255 white; 65535 = 257 · 255.
        image = Image.fromarray(np.round(levels / 257).astype(np.uint8))
    if image.mode == "F":
        raise DataError(
            "a picture of floating-point numbers does not say which of them is white",
            "convert it to bytes",
        )

    # An image without an alpha channel may still name a transparent colour in `info`.
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


# --- preprocessor_config.json ---

_HALF = [0.5, 0.5, 0.5]
# What transformers assumes for keys that a file leaves out.
_COMMON: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_center_crop": False,
    "crop_size": {},
    "resample": 2,
    "image_mean": _HALF,
    "image_std": _HALF,
    "size": {"height": 224, "width": 224},
}
_SQUARE = {"height": 224, "width": 224}
_CROPPED = {**_COMMON, "resample": 3, "do_center_crop": True, "crop_size": _SQUARE}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": _COMMON,
    "deit": {**_CROPPED, "size": {"height": 256, "width": 256}},
    "siglip": {**_COMMON, "resample": 3},
    "clip": {
        **_CROPPED,
        "size": {"shortest_edge": 224},
        # mean and standard deviation of CLIP's training images
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
}
# ResNet's files name ConvNeXt's, which has no crop_size: what it crops is a share.
_DEFAULTS["convnext"] = {**_COMMON, "size": {"shortest_edge": 384}, "crop_pct": 224 / 256}
_WHOLE_FROM = 384  # pixels, from which on it crops nothing
# DINOv2's files name BiT's processor, which has CLIP's defaults.
_DEFAULTS["detr"] = {
    **_COMMON,
    "size": {"shortest_edge": 800, "longest_edge": 1333},
    "do_pad": True,  # a batch, with its pixel_mask: whether there is one follows from the images
    # mean and standard deviation of ImageNet
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
_DEFAULTS["segformer"] = {
    **_DEFAULTS["detr"],
    "size": {"height": 512, "width": 512},
    "do_pad": False,
}
# Of clips; TimeSformer's files name VideoMAE's processor too.
_DEFAULTS["videomae"] = {
    **_COMMON,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": _SQUARE,
}
_DEFAULTS["timesformer"] = _DEFAULTS["videomae"]
_DEFAULTS |= {"bit": _DEFAULTS["clip"], "dinov2": _DEFAULTS["clip"]}
# Keys that may have one value only.
_FIXED: dict[str, Any] = {
    "do_pad": False,
    "use_square_size": False,
    "data_format": "channels_first",
}
# Keys that do not change the pixels.
_IGNORED = {
    "_processor_class",
    "_valid_processor_keys",
    "device",
    "disable_grouping",
    "do_convert_annotations",
    "do_convert_rgb",
    "do_reduce_labels",  # of masks
    "feature_extractor_type",
    "format",
    "image_processor_type",
    "input_data_format",
    "pad_size",
    "processor_class",
    "return_tensors",
}


def new_image_processor(kind: str, side: int) -> ImageProcessor:
    """The preprocessing of a new model: the defaults of a kind (vit, clip), for squares of a side.

    CLIP's keeps the aspect ratio and crops; ViT's does not.
    """
    square = {"height": side, "width": side}
    size = {"shortest_edge": side} if kind == "clip" else square
    return image_processor({"size": size, "crop_size": square}, kind)


def read_image_processor(folder: str | Path) -> ImageProcessor:
    """The preprocessing that preprocessor_config.json of a model folder describes.

    Where that file does not name its processor, the model type of config.json counts.
    """
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise ModelError(f"{folder} holds no {FILE}", "give the folder of a model that sees images")
    config = disk.read_json_object(folder / FILE, ModelError)
    kind = config.get("image_processor_type") or config.get("feature_extractor_type")
    if kind is None and (folder / "config.json").is_file():
        model_config = disk.read_json_object(folder / "config.json", ModelError)
        # CLIP's image tower alone is a clip_vision_model.
        kind = str(model_config.get("model_type")).removesuffix("_vision_model")
    return image_processor(config, str(kind))


def image_processor(config: Mapping[str, Any], kind: str) -> ImageProcessor:
    """The preprocessing of a preprocessor_config.json.

    `kind` is the name of a processor (ViTImageProcessor) or model type (vit), whose defaults count.
    """
    # ViTImageProcessor, ViTImageProcessorFast, ViTFeatureExtractor (the old name) → vit
    name = kind.split("ImageProcessor")[0].split("FeatureExtractor")[0].lower()
    if name not in _DEFAULTS:
        raise ModelError(
            f"{FILE} is for {kind!r}, which is not understood", did_you_mean(name, _DEFAULTS)
        )
    for key, value in config.items():
        # A key that is not understood is refused: it may change the pixels.
        if key not in _FIXED | _DEFAULTS[name] and key not in _IGNORED:
            raise ModelError(
                f"{FILE} has a key that is not understood: {key}",
                "remove it if it does not change the pixels; "
                "otherwise this model's pictures cannot be prepared",
            )
        if value not in (None, _FIXED.get(key, value), _DEFAULTS[name].get(key)):
            raise ModelError(
                f"{FILE}: {key} is {value!r}, but only {_FIXED[key]!r} is understood here",
                "correct it",
            )
    # null in a file means the default, as a missing key does.
    settings = {key: value for key, value in config.items() if value is not None}
    values = _DEFAULTS[name] | settings
    size: tuple[int, int] | int | None = None
    crop = factor = mean = std = longest = None
    if values["do_resize"]:
        if "longest_edge" in _DEFAULTS[name]["size"] and isinstance(values["size"], dict):
            longest = values["size"].get("longest_edge")
            values["size"] = {k: v for k, v in values["size"].items() if k != "longest_edge"}
        # One number is the shorter edge for CLIP and ConvNeXt, a square for the others.
        size = _size(values["size"], "size", square=name not in ("clip", "convnext"))
    if name == "convnext" and isinstance(size, int):
        values |= {"do_center_crop": size < _WHOLE_FROM, "crop_size": size}
        size = int(size / values["crop_pct"]) if size < _WHOLE_FROM else (size, size)
    if values["do_center_crop"]:
        crop_size = _size(values["crop_size"], "crop_size", square=True)
        if isinstance(crop_size, int):
            raise ModelError(f"{FILE}: crop_size has no height and width", "give both")
        crop = crop_size
    if values["do_rescale"]:
        factor = float(values["rescale_factor"])
    if values["do_normalize"]:
        mean = _three(values["image_mean"], "image_mean")
        std = _three(values["image_std"], "image_std")
    return ImageProcessor(size, values["resample"], crop, factor, mean, std, longest)


def _size(value: Any, key: str, *, square: bool) -> tuple[int, int] | int:
    """(height, width), or the shorter edge, in any of the notations that files have."""
    if isinstance(value, int) and square:
        value = [value, value]
    match value:
        case int(edge) if edge > 0:
            return edge
        case {"shortest_edge": int(edge)} if edge > 0 and len(value) == 1:
            return edge
        case [int(height), int(width)] if min(height, width) > 0:
            return height, width
        case {"height": int(height), "width": int(width)} if (
            min(height, width) > 0 and len(value) == 2
        ):
            return height, width
    raise ModelError(
        f"{FILE}: {key} cannot be {value!r}", "give a height and a width, or a shortest_edge"
    )


def _three(value: Any, key: str) -> tuple[float, ...]:
    # One number stands for all channels.
    values = value if isinstance(value, list) else [value] * 3
    if len(values) != 3:
        raise ModelError(
            f"{FILE}: {key} has {len(values)} numbers", "give one for each of red, green and blue"
        )
    return tuple(map(float, values))
