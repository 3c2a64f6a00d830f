"""Semantic segmentation: the class of each pixel (Xie et al. 2021, Strudel et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec
from regard.data.padding import IGNORED
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.metrics.registry import metric
from regard.evaluation.scores import Score
from regard.evaluation.task import Outputs
from regard.models.image_encoder import enlarged, position_logits
from regard.training import model_spec
from regard.training.data.mask_sources import SegmentedImages
from regard.training.data.stored_items import ItemData
from regard.training.objectives.classification import MediaClassification, without_masks
from regard.training.objectives.losses import LossSums, Tensors
from regard.training.setup import Setup

_DECODER_LAYERS = 2  # of the mask Transformer; the authors' (Strudel et al. 2021, Section 4)


def image_segmenter(description: Any, count: int) -> spec.Encoder:
    """An encoder of images with so many classes of pixels: by the all-MLP decoder of a pyramid
    (SegFormer), and by a mask Transformer otherwise (Segmenter)."""
    if description.pixels is not None or description.input.mask_token:
        description = without_masks(description)
    scheme = description.stack.scheme
    if isinstance(scheme, spec.Pyramid):
        fused = replace(scheme, fused=scheme.fused or 4 * scheme.widths[0])
        stack = replace(description.stack, scheme=fused)
        head = spec.ClassifierHead(count, "segment", dropout=0.1)
        if description.task == "segment":
            head = replace(description.labels, count=count)
        return replace(description, stack=stack, heads=(head,))  # type: ignore[no-any-return]
    if description.task == "segment":
        new = replace(description.labels, count=count)
        return description.with_head(new)  # type: ignore[no-any-return]
    block = description.stack.blocks[-1]
    width = description.stack.width(description.d_model)
    decoder = spec.Stack.of(_DECODER_LAYERS, block, final=block.norm)
    return description.with_heads(spec.MaskDecoder(count, width, decoder))  # type: ignore[no-any-return]


class Segmentation(MediaClassification):
    """The class of each pixel, by cross-entropy of the logits of positions, enlarged bilinearly."""

    name = "segment"
    unit = "pixels"
    source_class = SegmentedImages
    source: SegmentedImages
    spec_classes = (spec.Encoder,)
    input_names = ("pixel_values",)
    head_task = "segment"
    head_fields = "heads=(ClassifierHead(CLASSES, 'segment'),)"
    classifier = staticmethod(image_segmenter)
    base_tasks = ("embed",)
    base_advice = "give an encoder of images, such as SegFormer or ViT"

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        count = len(data.vocabulary)
        return cls.classifier(model_spec.describe(setup.recipe, count), count)

    def label_count(self, labels: Tensor) -> Tensor:
        return (labels != IGNORED).sum().clamp_min(1)

    def logits(self, tensors: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits of pixels [B, H, W, classes]."""
        pixels = self.source.pixel_values(tensors)
        maps, auxiliary = position_logits(self.model, pixels)
        return enlarged(maps, pixels.shape[-2:]).permute(0, 2, 3, 1), auxiliary

    def head_loss(self, logits: Tensor, tensors: Tensors) -> LossSums:
        return self.class_loss(logits, self.source.pixel_classes(tensors), tensors)

    # --- evaluation -------------------------------------------------------------------------------

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        """Masks in the size that the model reads."""

        def predict(tensors: Tensors) -> list[NDArray[np.uint8]]:
            logits, _ = self.logits(tensors)
            return [*logits.argmax(dim=-1).to(torch.uint8).cpu().numpy()]

        return "prediction", Outputs(self.predictions(split, predict), self._masks(split))

    def _masks(self, split: str) -> list[NDArray[np.uint8]]:
        stored = self.data.sets[split].values[..., -1]
        return [mask - np.uint8(1) for mask in stored]  # 0 is none, which is 255 outside of runs

    def final_score(self, split: str) -> Score:
        """Next to mIoU of the most frequent class of training, everywhere."""
        references = self._masks(split)
        counts = np.bincount(self.data.sets["train"].values[..., -1].ravel(), minlength=2)
        most_frequent = np.uint8(counts[1:].argmax())
        baseline = [np.full_like(mask, most_frequent) for mask in references]
        score = super().final_score(split)
        return Score(**vars(score), one_class=metric("miou").compute(baseline, references))
