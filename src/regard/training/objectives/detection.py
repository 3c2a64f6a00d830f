"""Object detection as the prediction of a set (Carion et al. 2020, DETR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core import boxes
from regard.core.context import Context
from regard.data.boxes import Box, boxes_of_text
from regard.data.padding import IGNORED
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.metrics.registry import metric
from regard.evaluation.scores import Score
from regard.evaluation.task import Outputs
from regard.models import Model
from regard.models.object_detector import detections
from regard.system.errors import DataError, SettingError
from regard.training import model_spec
from regard.training.data.box_sources import BoxedImages
from regard.training.data.stored_items import ItemData
from regard.training.objectives.classification import MediaClassification
from regard.training.objectives.head_objective import has_classes
from regard.training.objectives.losses import LossSums, LossTerms, Tensors
from regard.training.setup import Setup

# The paper's weights (Section A.4): of the L1 distance and of the generalized IoU, next to 1 of the
# class, in the loss and in the cost of a match; and of queries that find nothing.
L1_WEIGHT = 5.0
GIOU_WEIGHT = 2.0
NO_OBJECT_WEIGHT = 0.1


class Matches(NamedTuple):
    """Pairs of queries and objects: the row in the batch, the query, and the object."""

    row: Tensor
    query: Tensor
    object: Tensor


class DetectionLosses(NamedTuple):
    """Sums over a batch: of the weighted −log p of classes over queries, and of these weights; of
    the L1 distances and 1 − the generalized IoU over objects."""

    classes: Tensor
    weights: Tensor
    l1: Tensor
    giou: Tensor

    @property
    def total(self) -> Tensor:
        """What is divided by the number of objects of a whole step."""
        return self.classes + L1_WEIGHT * self.l1 + GIOU_WEIGHT * self.giou


@torch.no_grad()
def match(logits: Tensor, guesses: Tensor, labels: Tensor, objects: Tensor) -> Matches:
    """Hungarian matching (Section 3.1): one query for each object, at the least cost altogether.

    logits [B, N, classes + 1] and boxes [B, N, 4] of queries, their guesses; labels [B, M] and
    boxes [B, M, 4] of objects, whose label is IGNORED where an image has fewer.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise DataError(
            "matching boxes needs SciPy, which is not installed", "pip install 'regard[detection]'"
        ) from None

    probabilities = logits.float().softmax(dim=-1)  # [B, N, classes + 1]
    places = labels.clamp_min(0)[:, None].expand(-1, logits.shape[1], -1)  # [B, N, M]
    distance = (guesses[:, :, None] - objects[:, None]).abs().sum(dim=-1)
    overlap = boxes.generalized_iou(
        boxes.corners(guesses)[:, :, None], boxes.corners(objects)[:, None]
    )
    cost = L1_WEIGHT * distance - GIOU_WEIGHT * overlap - probabilities.gather(2, places)
    cost = torch.nan_to_num(cost.float(), nan=1e9, posinf=1e9, neginf=1e9)  # [B, N, M]
    # One copy from the device and one back, however many rows there are.
    is_object = (labels != IGNORED).cpu().numpy()
    pairs = []
    for row, (costs, there) in enumerate(zip(cost.cpu().numpy(), is_object, strict=True)):
        columns = there.nonzero()[0]
        query, column = linear_sum_assignment(costs[:, columns])
        pairs.append(np.stack([np.full(len(query), row), query, columns[column]]))
    together = torch.from_numpy(np.concatenate(pairs, axis=1))  # [3, matches]
    return Matches(*together.to(logits.device))


def detection_losses(
    logits: Tensor, guesses: Tensor, labels: Tensor, objects: Tensor
) -> DetectionLosses:
    """The losses of queries after they are matched with objects; shapes as in `match`."""
    pairs = match(logits, guesses, labels, objects)
    nothing = logits.shape[-1] - 1
    targets = torch.full(logits.shape[:2], nothing, device=logits.device)  # [B, N]
    targets[pairs.row, pairs.query] = labels[pairs.row, pairs.object]
    weights = logits.new_ones(nothing + 1, dtype=torch.float32)
    weights[nothing] = NO_OBJECT_WEIGHT
    classes = functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), weights, reduction="sum"
    )
    ours = guesses[pairs.row, pairs.query].float()  # [objects, 4]
    theirs = objects[pairs.row, pairs.object]
    overlap = boxes.generalized_iou(boxes.corners(ours), boxes.corners(theirs))
    return DetectionLosses(
        classes, weights[targets].sum(), (ours - theirs).abs().sum(), (1 - overlap).sum()
    )


class Detection(MediaClassification):
    """Boxes and classes of objects: every decoder layer is asked for them (auxiliary losses)."""

    name = "detect"
    unit = "objects"
    source_class = BoxedImages
    source: BoxedImages
    head_task = "objects"
    head_fields = "heads=(DetectionHead(CLASSES),)"
    spec_classes = (spec.EncoderDecoder,)
    input_names = ("pixel_values",)
    base_tasks = ("detect",)
    base_advice = "give a detector of objects, such as DETR"
    cuda_graphs = False  # the matching is the host's

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def check_spec(cls, description: Any, from_file: bool = False) -> None:
        super().check_spec(description, from_file)
        if description.vocab_size is not None:
            raise SettingError(
                "a spec that writes texts is not a model for the objective 'detect'",
                "set target=ObjectQueries(…), or --objective caption",
            )

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        count = len(data.vocabulary)
        description: Any = model_spec.describe(setup.recipe, count)
        return description.with_head(spec.DetectionHead(count))  # type: ignore[no-any-return]

    @classmethod
    def adapt(cls, base: Any, data: Any, setup: Setup) -> Model:
        names = cls.source_class.class_names(data)
        if has_classes(base, names):
            return base  # type: ignore[no-any-return]
        description = base.spec.with_head(spec.DetectionHead(len(names)))
        return cls.rebuilt(base, description, data, setup)

    # --- loss -------------------------------------------------------------------------------------

    def label_count(self, labels: Tensor) -> int | Tensor:
        return (labels != IGNORED).sum().clamp_min(1)

    def logits(self, tensors: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        model = self.model
        context = Context()
        memory = model.encode(self.source.pixel_values(tensors), None, context)
        layers = Context(layer_outputs=[])
        model.decode(None, memory, layers)
        # The norm after the last layer is that of all; the last is what the model says.
        each = [model.decoder.finish(hidden) for hidden in layers.layer_outputs or ()]
        return torch.stack(each), dict(context.losses or {})  # [layers, B, N, D]

    def loss(self, tensors: Tensors) -> LossSums:
        hidden, auxiliary = self.logits(tensors)
        if not self.model.training:
            hidden = hidden[-1:]
        logits, guesses = self.model.get_submodule("labels")(hidden)  # [layers, B, N, …] each
        labels, objects = tensors["labels"], tensors["boxes"]
        # Layers are rows of one batch: all of them are matched at once.
        layers = len(hidden)
        total = detection_losses(
            logits.flatten(0, 1),
            guesses.float().flatten(0, 1),
            labels.repeat(layers, 1),
            objects.repeat(layers, 1, 1),
        ).total
        terms = LossTerms(total, total.detach() / layers, auxiliary, self.label_count(labels))
        return self.total(terms)

    def head_loss(self, logits: Tensor, tensors: Tensors) -> LossSums:
        raise NotImplementedError("the loss is of several layers")

    # --- evaluation -------------------------------------------------------------------------------

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        names = self.trained_model.require_labels()

        def predict(tensors: Tensors) -> Sequence[list[tuple[Any, ...]]]:
            hidden, _ = self.logits(tensors)
            logits, guesses = self.model.get_submodule("labels")(hidden[-1])
            return [
                [(one.label, one.score, one.box) for one in detections(*pair, names, (1, 1))]
                for pair in zip(logits.float().cpu(), guesses.float().cpu(), strict=True)
            ]

        return "prediction", Outputs(self.predictions(split, predict), self._objects(split))

    def _objects(self, split: str) -> list[tuple[Box, ...]]:
        return [boxes_of_text(text) for text in self.data.sets[split].texts]

    def final_score(self, split: str) -> Score:
        """Next to AP50 of the mean box of each class of training, whatever is in the image."""
        references = self._objects(split)
        baseline = [mean_boxes(self._objects("train"))] * len(references)
        score = super().final_score(split)
        return Score(**vars(score), mean_boxes=metric("ap50").compute(baseline, references))


def mean_boxes(train: Sequence[Sequence[Box]]) -> list[tuple[str, float, Any]]:
    """The baseline that sees no image: each class's mean box, by how many an image has."""
    labels = {one.label for row in train for one in row}
    result = []
    for label in sorted(labels):
        corners = [one.corners for row in train for one in row if one.label == label]
        of_class = torch.tensor(corners, dtype=torch.float64)
        share = min(1.0, len(of_class) / len(train))
        result.append((label, share, tuple(of_class.mean(dim=0).tolist())))
    return result
