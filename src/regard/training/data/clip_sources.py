"""Sources of clips, with classes or alone; generated ones where a recipe names no files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from regard.core.heads.pixel_decoder import IMAGENET_MEAN, IMAGENET_STD
from regard.data.clips import ClipProcessor, read_clips
from regard.data.generated.clips import labelled_clips
from regard.training.data.image_sources import Images
from regard.training.data.stored_items import LabelledItems
from regard.training.setup import Setup


class Clips(Images):
    """Batches of clips, all of whose frames are augmented alike."""

    unit = "clips"
    default_flip = 0.0  # what moves tells left from right
    read = staticmethod(read_clips)

    @classmethod
    def image_processor(cls, setup: Setup) -> ClipProcessor:
        processor = super().image_processor(setup)
        frames = cls.image_front_end(cls.description(setup)).frames
        return ClipProcessor.of(processor, frames, mean=IMAGENET_MEAN, std=IMAGENET_STD)

    @classmethod
    def generated(cls, numbers: range, processor: Any) -> Iterable[Any]:
        return labelled_clips(0, numbers, processor.side, processor.frames)


class LabelledClips(LabelledItems, Clips):
    """Clips of one class each: a folder for each class."""
