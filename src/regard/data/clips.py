"""Clips: frames from a folder of images, an animated picture or a video file, and their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from regard.data.image import ImageProcessor, Picture, require_pillow
from regard.data.labelled import IMAGE_SUFFIXES, LabelledImage
from regard.system.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ANIMATED = (".gif", ".webp", ".apng")
VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
# How the contents of MP4 and QuickTime, Matroska and WebM, AVI, and MPEG begin.
_VIDEO_MARKS = ((4, b"ftyp"), (0, b"\x1aE\xdf\xa3"), (8, b"AVI "), (0, b"\x00\x00\x01\xba"))
MOST_PIXELS = 1 << 28  # of all frames of an animation; more would be a decompression bomb
# A folder of frames, a file or its contents, an array [frames, height, width, 3], or pictures.
Clip: TypeAlias = "Picture | Sequence[Picture]"


@dataclass(frozen=True)
class ClipProcessor(ImageProcessor):
    """Image processor of clips: evenly spaced frames, each of which is prepared as an image."""

    frames: int = 8

    @classmethod
    def of(cls, processor: ImageProcessor, frames: int, **changes: Any) -> ClipProcessor:
        """The same steps for each of so many frames."""
        values = {field.name: getattr(processor, field.name) for field in fields(ImageProcessor)}
        return cls(**{**values, **changes, "frames": frames})

    def __call__(self, picture: Clip) -> Tensor:
        """Pixel values [frames, 3, height, width] of a clip; a single image stands still."""
        pixels = torch.from_numpy(self.resized(picture))
        return torch.stack([self.normalized(frame.permute(2, 0, 1)) for frame in pixels])

    def resized(self, picture: Clip) -> NDArray[np.uint8]:
        """Bytes [frames, height, width, 3]."""
        each = [super(ClipProcessor, self).resized(one) for one in frames_of(picture, self.frames)]
        if len({frame.shape for frame in each}) > 1:
            raise DataError("the frames of a clip have different sizes", "crop them to one size")
        return np.stack(each)

    def to_config(self) -> dict[str, Any]:
        return {**super().to_config(), "image_processor_type": "VideoMAEImageProcessor"}

    def to_image(self, pixels: Tensor) -> NDArray[np.uint8]:
        """The frames [frames, 3, height, width], side by side: [height, frames · width, 3]."""
        return np.concatenate([super(ClipProcessor, self).to_image(one) for one in pixels], axis=1)


def frames_of(clip: Clip, count: int) -> list[Any]:
    """So many frames of a clip, evenly spaced from the first to the last."""
    frames = _frames(clip, count)
    if not frames:
        raise DataError(f"{clip} holds no frames", "give a folder of images, or a video file")
    return [frames[place] for place in _places(len(frames), count)]


def _places(length: int, count: int) -> list[int]:
    """Evenly spaced numbers of frames."""
    places: list[int] = np.linspace(0, length - 1, count).round().astype(int).tolist()
    return places


def _frames(clip: Any, count: int) -> Sequence[Any]:
    """The frames of a clip; of a video file, only those that are wanted."""
    if isinstance(clip, str | Path):
        path = Path(clip)
        if path.is_dir():
            return [one for one in sorted(path.iterdir()) if one.suffix.lower() in IMAGE_SUFFIXES]
        if path.suffix.lower() in VIDEO_SUFFIXES:
            return _of_video(path, count)
        if path.suffix.lower() in ANIMATED:
            return _of_animation(path)
    if isinstance(clip, bytes) and _is_animated(clip):
        return _of_animation(clip)
    if isinstance(clip, bytes) and any(clip[at:].startswith(mark) for at, mark in _VIDEO_MARKS):
        return _of_video(clip, count)
    if isinstance(clip, np.ndarray) and clip.ndim == 4:
        return [*clip]
    if isinstance(clip, list | tuple):
        return clip
    return [clip]


def _is_animated(content: bytes) -> bool:
    is_webp = content[:4] == b"RIFF" and content[8:12] == b"WEBP"
    return content[:3] == b"GIF" or is_webp or b"acTL" in content[:64]


def _of_animation(file: Path | bytes) -> Sequence[Any]:
    """The frames of an animated GIF, WebP or PNG."""
    require_pillow()
    from PIL import Image, ImageSequence

    try:
        with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
            if image.width * image.height * getattr(image, "n_frames", 1) > MOST_PIXELS:
                raise DataError(f"{_name(file)} has too many pixels", "make it smaller or shorter")
            return [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{_name(file)} cannot be read: {error}", "give one that opens") from None


def _of_video(file: Path | bytes, count: int) -> Sequence[Any]:
    """Evenly spaced frames of a video file, by PyAV: counted first, then those are converted."""
    try:
        import av
    except ImportError:
        raise DataError(
            "video files need PyAV, which is not installed", "pip install 'regard[video]'"
        ) from None
    try:
        with av.open(BytesIO(file) if isinstance(file, bytes) else str(file)) as container:
            length = sum(1 for _ in container.decode(video=0))
        places = set(_places(length, count))
        with av.open(BytesIO(file) if isinstance(file, bytes) else str(file)) as container:
            return [
                frame.to_ndarray(format="rgb24")
                for number, frame in enumerate(container.decode(video=0))
                if number in places
            ]
    except (OSError, ValueError, IndexError, av.FFmpegError) as error:
        raise DataError(f"{_name(file)} cannot be read: {error}", "give one that plays") from None


def _name(file: Path | bytes) -> str:
    return str(file) if isinstance(file, Path) else "the clip"


def read_clips(folder: str | Path) -> list[LabelledImage]:
    """The clips of a folder: each of its subfolders is a class, and holds a folder of frames, an
    animated picture or a video file for each clip."""
    files = (*ANIMATED, *VIDEO_SUFFIXES)
    clips = [
        path
        for path in sorted(Path(folder).glob("*/*"))
        if path.is_dir() or path.suffix.lower() in files
    ]
    if not clips:
        raise DataError(
            f"{folder} holds no clips in subfolders, one for each class",
            "give a folder of classes, each of folders of frames, GIFs or video files",
        )
    return [LabelledImage(path, path.parent.name) for path in clips]
