"""Classification: one class for each text, image, recording, story, node or graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard import spec
from regard.data.audio import RATE
from regard.data.batching import Batch, Rows
from regard.data.graphs import GraphData
from regard.data.padding import IGNORED
from regard.evaluation.scores import Score, scored
from regard.families import presets
from regard.models import GraphModel, Model
from regard.models.saving import config_json
from regard.system.errors import DataError, ModelError
from regard.training import model_spec
from regard.training.data.graph_sources import Graphs, GraphSource, Nodes
from regard.training.data.image_sources import PREVIOUS, ImageData, LabelledImages
from regard.training.data.sound_sources import (
    POSITIONS_PER_SECOND,
    SPECTROGRAM,
    WAVEFORM,
    LabelledRecordings,
    SoundData,
)
from regard.training.data.source import Position
from regard.training.data.text_sources import LabelledTexts
from regard.training.objectives.head_objective import HeadObjective, TextHead
from regard.training.objectives.heads import (
    has_classes,
    image_classifier,
    rebuilt,
    sound_classifier,
)
from regard.training.objectives.losses import cross_entropy, r_drop
from regard.training.setup import Setup


class Classification(HeadObjective):
    """One class per row, by cross-entropy; what the rows are is said by the source."""

    head_task: ClassVar[spec.HeadTask] = "classify"

    def head_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        labels = tensors["labels"]
        loss, nll = self.class_loss(logits, labels, tensors)
        if "mixup" in tensors:
            weight = tensors["mixup"].mean()  # CutMix: the share of the pixels that are its own
            # Where ranks share the batch, the label before the first row is not among these.
            others = tensors.get(PREVIOUS + "labels", labels.roll(1, dims=0))
            other_loss, other_nll = self.class_loss(logits, others, tensors)
            loss = weight * loss + (1 - weight) * other_loss
            nll = weight * nll + (1 - weight) * other_nll
        return loss, nll

    def score(self, split: str, autocast: AbstractContextManager[Any]) -> Score:
        def predict(tensors: Mapping[str, Tensor]) -> list[tuple[list[int], int]]:
            logits, _ = self.logits(tensors)
            ranked = logits.float().argsort(dim=-1, descending=True, stable=True)[:, :5]
            return list(zip(ranked.tolist(), tensors["labels"].tolist(), strict=True))

        rankings, labels = zip(*self.predictions(split, autocast, predict), strict=True)
        return scored("images", rankings, labels, "ranking")


class AgainstMajority(Classification):
    """Classes that are scored next to always answering the most frequent one of training."""

    def score(self, split: str, autocast: AbstractContextManager[Any]) -> Score:
        score = super().score(split, autocast)
        return Score(accuracy=score.accuracy, f1=score.f1, examples=score.examples)

    def final_score(self, split: str) -> Score:
        score = super().final_score(split)
        # Of the training split: a baseline may not look at the labels that it is scored by.
        most_frequent = Counter(example.label for example in self.data.train).most_common(1)[0][0]
        examples = self.data.sets[split]
        hits = sum(example.label == most_frequent for example in examples)
        majority = 100.0 * hits / max(1, len(examples))
        return Score(**vars(score), majority=majority)


class TextClassification(TextHead, AgainstMajority):
    """The class of a text or a pair of texts, from the pooled first token."""

    name = "classify"
    source_class = LabelledTexts
    head_fields = "heads=(Pool(), ClassifierHead(CLASSES))"


class ImageClassification(Classification):
    """The class of an image, from its class token (ViT); of DeiT, from the mean of both heads."""

    name = "images"
    unit = "images"
    source_class = LabelledImages
    base_tasks = ("embed",)
    base_advice = "give an encoder of images, such as ViT"
    input_names = ("pixel_values",)
    head_fields = "heads=(Pool(), ClassifierHead(CLASSES))"

    @classmethod
    def describe(cls, setup: Setup, data: ImageData) -> spec.Model:
        count = len(data.labels)
        description: Any = model_spec.describe(setup.recipe, count)
        return image_classifier(description, count)

    @classmethod
    def adapt(cls, base: Any, data: ImageData, setup: Setup) -> Model:
        """The same stack with the classes of the data: its own head if they are the same."""
        if has_classes(base, data.labels):
            return base
        return _with_new_classes(cls, base, image_classifier, data, setup)


class SoundClassification(Classification):
    """The class of a recording, from the mean of an encoder's positions (Wav2Vec2, Whisper).

    The recordings of a new model of spectrograms have a window as long as the longest, in whole
    seconds.
    """

    name = "sounds"
    unit = "recordings"
    source_class = LabelledRecordings
    base_advice = "give an encoder of sound, such as Wav2Vec2 or Whisper"
    convertible_classes = (spec.EncoderDecoder,)
    input_names = (WAVEFORM, SPECTROGRAM)
    head_fields = "heads=(Pool('mean', None), ClassifierHead(CLASSES))"

    @classmethod
    def describe(cls, setup: Setup, data: SoundData) -> spec.Encoder:
        recipe = setup.recipe
        changes = {}
        if recipe.model.spec is None and presets.about(recipe.preset_name).kind == "speech":
            longest = max(int(speech.lengths.max()) for speech in data.sets.values())
            changes["frames"] = -(-longest // RATE) * POSITIONS_PER_SECOND  # rounded up
        description: Any = model_spec.describe(recipe, len(data.vocabulary), **changes)
        return sound_classifier(description, len(data.vocabulary))

    @classmethod
    def adapt(cls, base: Any, data: SoundData, setup: Setup) -> Model:
        """The same encoder with the classes of the data: its own head if they are the same."""
        if base.spec.task == "classify" and has_classes(base, data.vocabulary):
            return base
        return _with_new_classes(cls, base, sound_classifier, data, setup)


def _with_new_classes(
    objective: type[Classification],
    base: Model,
    classifier: Callable[[Any, int], spec.Encoder],
    data: Any,
    setup: Setup,
) -> Model:
    """The encoder of a model with a new head for the classes of the data."""
    source = objective.source_class
    description = classifier(base.spec, len(source.class_names(data)))
    config = config_json(description, base.config) | objective.head_config(data)
    wrap = partial(source.wrap, data=data)
    return rebuilt(base, description, config, setup.recipe.train.seed, wrap)


# --- graphs ---------------------------------------------------------------------------------------


class GraphObjective(Classification):
    """Base of both: the class of what has labels, from its hidden state or the graph's mean.

    Nodes are learnt transductively (GAT, Veličković et al. 2018): each step reads the whole graph,
    and the loss counts the labelled nodes of the training split.
    """

    base_tasks = ("classify",)
    describes_head = False
    base_advice = "give a model of graphs"
    input_names = ("node_features",)
    source_class: ClassVar[type[GraphSource]]
    source: GraphSource
    trained_model: GraphModel

    @classmethod
    def check_base(cls, base: Any, setup: Setup) -> None:
        super().check_base(base, setup)
        level = cls.source_class.level
        if base.level != level:
            raise ModelError(
                f"{base.folder} classifies {base.level}, and the task is of {level}",
                f"say {base.level} instead",
            )

    @classmethod
    def describe(cls, setup: Setup, data: GraphData) -> spec.Model:
        count = len(cls.source_class.class_names(data))
        features = data.features.shape[1]
        return model_spec.describe(setup.recipe, count, features=features, task=cls.head_task)

    @classmethod
    def adapt(cls, base: Any, data: GraphData, setup: Setup) -> Model:
        """The same model, whose classes are those of the data."""
        unknown = sorted(set(cls.source_class.class_names(data)) - set(base.labels))
        if unknown:
            raise DataError(
                f"the model has no class {unknown[0]!r}; it knows {', '.join(base.labels)}",
                "give labels of these, or train a new model: regard train --graph FOLDER",
            )
        return base

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        return self.source.collate(split, rows, position)

    def logits(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.trained_model.graph_logits(dict(tensors)), {}

    def head_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, nll = super().head_loss(logits, tensors)
        weight = self.settings.r_drop
        if not weight or not self.model.training:
            return loss, nll
        # Two passes with other dropout should agree, on what has no label too: nodes without one
        # say more about the graph than the few that have it (GRAND, Feng et al. 2020).
        other, _ = self.logits(tensors)
        other_loss, _ = super().head_loss(other, tensors)
        everything = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        # The step divides by the labelled nodes: so the mean over all nodes counts once.
        labels = tensors["labels"]
        share = (labels != IGNORED).sum() / len(labels)
        agreement = r_drop(logits, other, everything) * share
        return (loss + other_loss) / 2 + weight * agreement, nll

    # --- evaluation: all graphs are read at once, whatever the split ------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        rows = self.source.splits.get("valid")
        if not rows:
            return None
        logits = self._logits(autocast)
        labels = self.source.labels[rows]
        _, nll = cross_entropy(logits[rows], labels)
        count = max(1, int((labels != IGNORED).sum()))
        return {"loss": nll.item() / count, **vars(self._score(logits, "valid"))}

    def score(self, split: str, autocast: AbstractContextManager[Any]) -> Score:
        return self._score(self._logits(autocast), split)

    def _logits(self, autocast: AbstractContextManager[Any]) -> Tensor:
        with autocast:
            return self.trained_model.logits(self.data)

    def _score(self, logits: Tensor, split: str) -> Score:
        rows = self.source.splits[split]
        predictions = logits[rows].argmax(dim=-1).tolist()
        return scored("nodes", predictions, self.source.labels[rows].tolist())


class NodeClassification(GraphObjective):
    """The classes of nodes, of which few are labelled; all nodes are read in each step."""

    name = "nodes"
    unit = "nodes"
    source_class = Nodes
    source: Nodes
    head_task = "tag"
    head_fields = "heads=(ClassifierHead(CLASSES, 'tag'),)"

    def batches_per_epoch(self) -> int:
        return 1

    def batches(self, epoch: int, index: int) -> Iterator[tuple[Position, Batch]]:
        while True:
            epoch += 1
            # An epoch is one step: Veličković et al. 2018 count full-graph updates in epochs.
            yield (epoch, 0), self.source.whole_graph


class GraphClassification(GraphObjective):
    """The classes of whole graphs, from the mean of their nodes (Graphormer, Ying et al. 2021)."""

    name = "graphs"
    unit = "graphs"
    source_class = Graphs
    head_fields = "heads=(Pool('mean', None), ClassifierHead(CLASSES))"
    cuda_graphs = False  # batches differ in their number of edges
