"""From pictures to pixels as a model wants them: resized, cropped and normalised as its preprocessor_config.json says.

Pillow is needed here and nowhere else, so it is imported when the first picture comes (`pip install 'regard[image]'`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from regard.errors import DataError, ModelError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

Picture: TypeAlias = "str | Path | bytes | NDArray[np.uint8] | Image"
MOST = 1 << 26  # pixels of a picture
FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class Preparation:
    """`size`: (height, width), or the shorter edge, which keeps the shape; `crop`: (height, width) around the centre, with
    black where the picture is smaller; then pixels times `factor`, less `mean`, over `std`. Each is left out if None.

    `resample` counts Pillow's filters: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box, 5 Hamming.
    """

    size: tuple[int, int] | int | None
    resample: int = 2
    crop: tuple[int, int] | None = None
    factor: float | None = 1 / 255
    mean: tuple[float, ...] | None = (0.5, 0.5, 0.5)
    std: tuple[float, ...] | None = (0.5, 0.5, 0.5)

    def __call__(self, picture: Picture) -> Tensor:
        """A PNG or JPEG file or its contents, a Pillow image, or an array of bytes [height, width] or [height, width, 3 or 4]
        → [3, height, width]."""
        image = _rgb(_opened(picture))
        if self.size is not None:
            image = image.resize(_target(image.size, self.size), resample=self.resample)
        if self.crop is not None:
            (width, height), (tall, wide) = image.size, self.crop
            left, top = (width - wide) // 2, (height - tall) // 2
            image = image.crop((left, top, left + wide, top + tall))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        # The product in float64, as the others have it: the last bit of the pixels follows from it.
        x = pixels.float() if self.factor is None else (pixels.double() * self.factor).float()
        if self.mean is not None and self.std is not None:
            x = (x - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]
        return x.contiguous()

    def seen(self, pixels: Tensor) -> NDArray[np.uint8]:
        """The way back, from [3, height, width] to what a person sees: [height, width, 3]."""
        x = pixels
        if self.mean is not None and self.std is not None:
            x = x * torch.tensor(self.std)[:, None, None] + torch.tensor(self.mean)[:, None, None]
        x = x if self.factor is None else x / self.factor
        return x.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()

    def batch(self, pictures: Sequence[Picture]) -> Tensor:
        """[B, 3, height, width]; the pictures must come out equally large."""
        prepared = [self(picture) for picture in pictures]
        shapes = sorted({tuple(x.shape[1:]) for x in prepared})
        if len(shapes) != 1:
            raise DataError(
                f"the pictures come out in different sizes: {shapes}", "crop them to one size"
            )
        return torch.stack(prepared)


def _target(size: tuple[int, int], wanted: tuple[int, int] | int) -> tuple[int, int]:
    """(width, height), as Pillow counts them, after resizing."""
    if isinstance(wanted, tuple):
        return wanted[1], wanted[0]
    width, height = size
    longer = int(wanted * max(size) / min(size))
    return (wanted, longer) if width <= height else (longer, wanted)


def _opened(picture: Any) -> Image:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise DataError(
            "pictures need Pillow, which is not installed", "pip install 'regard[image]'"
        ) from None
    if isinstance(picture, Image.Image):
        return picture
    if isinstance(picture, str | Path | bytes):
        name = "the picture" if isinstance(picture, bytes) else picture
        try:
            with Image.open(
                BytesIO(picture) if isinstance(picture, bytes) else picture, formats=("PNG", "JPEG")
            ) as image:
                if image.width * image.height > MOST:  # known before a pixel is unpacked
                    raise DataError(
                        f"{name} has {image.width} × {image.height} pixels", "make it smaller"
                    )
                return ImageOps.exif_transpose(image)  # upright, however the camera was held
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            what = "" if isinstance(picture, bytes) else f": {error}"
            raise DataError(
                f"{name} cannot be read{what}", "give a PNG or JPEG file that opens elsewhere"
            ) from None
    array = np.asarray(picture)
    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not shaped or not array.size:
        raise DataError(
            f"an array of {array.dtype} numbers with the shape {array.shape} is no picture",
            "give bytes [height, width] or [height, width, 3]",
        )
    return Image.fromarray(array)


def _rgb(image: Image) -> Image:
    """Three channels, and white behind what can be seen through."""
    from PIL import Image

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


# ------------------------------------------------------------------ preprocessor_config.json

_HALF = [0.5, 0.5, 0.5]
# What transformers assumes for keys that a file leaves out. A size that is one number is a square, or the shorter edge.
_COMMON: dict[str, Any] = {
    "do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_center_crop": False,
    "crop_size": {}, "resample": 2, "image_mean": _HALF, "image_std": _HALF, "size": {"height": 224, "width": 224},
}  # fmt: skip
_ASSUMED: dict[str, dict[str, Any]] = {
    "vit": _COMMON,
    "deit": {
        **_COMMON, "resample": 3, "size": {"height": 256, "width": 256}, "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
    },
    "clip": {
        **_COMMON, "resample": 3, "size": {"shortest_edge": 224}, "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224}, "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
}  # fmt: skip
_FIXED: dict[str, Any] = {
    "do_pad": False,
    "use_square_size": False,
    "data_format": "channels_first",
}
_IGNORED = {
    "_processor_class", "_valid_processor_keys", "device", "disable_grouping", "do_convert_rgb", "feature_extractor_type",
    "image_processor_type", "input_data_format", "processor_class", "return_tensors",
}  # fmt: skip


def read(folder: str | Path) -> Preparation:
    """What the preprocessor_config.json of a model folder says. Files that do not say whose they are go by config.json."""
    folder = Path(folder)
    said = _json(folder / FILE)
    kind = said.get("image_processor_type") or said.get("feature_extractor_type")
    if kind is None and (folder / "config.json").is_file():
        kind = str(_json(folder / "config.json").get("model_type")).removesuffix("_vision_model")
    return preparation(said, str(kind))


def preparation(said: Mapping[str, Any], kind: str) -> Preparation:
    """`kind` is the name of a processor (ViTImageProcessor) or model type (vit) whose defaults count."""
    name = kind.split("ImageProcessor")[0].split("FeatureExtractor")[0].lower()
    if name not in _ASSUMED:
        raise ModelError(
            f"{FILE} is for {kind!r}, which is not understood", did_you_mean(name, _ASSUMED)
        )
    for key, value in said.items():
        if key in _FIXED and value not in (None, _FIXED[key]):
            raise ModelError(
                f"{FILE}: {key} is {value!r}, but only {_FIXED[key]!r} is understood here",
                "correct it",
            )
        if key not in _FIXED and key not in _COMMON and key not in _IGNORED:
            raise ModelError(
                f"{FILE} has a key that is not understood: {key}",
                "remove it if it does not change the pixels; otherwise this model's pictures cannot be prepared",
            )
    values = {
        key: said[key] if said.get(key) is not None else value
        for key, value in _ASSUMED[name].items()
    }
    for key, value in values.items():
        if key.startswith("do_") and not isinstance(value, bool):
            raise ModelError(f"{FILE}: {key} cannot be {value!r}", "write true or false")
    if values["resample"] not in range(6):
        raise ModelError(
            f"{FILE}: resample {values['resample']!r} is no filter",
            "known: 0 to 5, as Pillow counts them",
        )
    crop = (
        _size(values["crop_size"], "crop_size", square=True) if values["do_center_crop"] else None
    )
    if isinstance(crop, int):
        raise ModelError(f"{FILE}: crop_size has no height and width", "give both")
    normalized = values["do_normalize"]
    return Preparation(
        size=_size(values["size"], "size", square=name != "clip") if values["do_resize"] else None,
        resample=values["resample"],
        crop=crop,
        factor=_number(values["rescale_factor"], "rescale_factor")
        if values["do_rescale"]
        else None,
        mean=_three(values["image_mean"], "image_mean") if normalized else None,
        std=_three(values["image_std"], "image_std") if normalized else None,
    )


def _size(said: Any, key: str, *, square: bool) -> tuple[int, int] | int:
    if isinstance(said, int) and square:
        said = [said, said]
    match said:
        case int(edge) | {"shortest_edge": int(edge)} if edge > 0 and (
            isinstance(said, int) or len(said) == 1
        ):
            return edge
        case [int(height), int(width)] if min(height, width) > 0:
            return height, width
        case {"height": int(height), "width": int(width)} if (
            min(height, width) > 0 and len(said) == 2
        ):
            return height, width
    raise ModelError(
        f"{FILE}: {key} cannot be {said!r}", "give a height and a width, or a shortest_edge"
    )


def _three(said: Any, key: str) -> tuple[float, ...]:
    values = said if isinstance(said, list) else [said] * 3
    if len(values) != 3:
        raise ModelError(
            f"{FILE}: {key} has {len(values)} numbers", "give one for each of red, green and blue"
        )
    return tuple(_number(value, key) for value in values)


def _number(said: Any, key: str) -> float:
    if (
        not isinstance(said, (int, float))
        or isinstance(said, bool)
        or (key != "image_mean" and said <= 0)
    ):
        raise ModelError(f"{FILE}: {key} cannot be {said!r}", "give a number above 0")
    return float(said)


def _json(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path.parent} holds no {path.name}", "give the folder of a model that sees images"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} is not valid JSON: {error}", "fetch or write the folder again"
        ) from None
    if not isinstance(said, dict):
        raise ModelError(f"{path} holds no object", "fetch or write the folder again")
    return said
