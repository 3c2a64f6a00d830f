"""Classification of nodes and graphs (GAT, Veličković et al. 2018; Graphormer, Ying et al. 2021).

Nodes are learnt transductively: each step reads the whole graph, and the loss counts the labelled
nodes of the training split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.data.batching import Batch, BatchSampler
from regard.data.graphs import GraphData, Level
from regard.data.padding import IGNORED
from regard.encoder import Encoder
from regard.errors import DataError, ModelError
from regard.families import folder as folders
from regard.metrics.classification import ClassificationScore, classification_score
from regard.metrics.scores import AnyScore
from regard.models import GraphModel, Model
from regard.models.graph_model import graph_tensors
from regard.models.labels import label_config
from regard.training import model_spec
from regard.training.data.stored_graphs import stored_graphs
from regard.training.objectives.head_objective import class_names
from regard.training.objectives.label_smoothed_cross_entropy import (
    add_auxiliary_losses,
    cross_entropy,
)
from regard.training.objectives.objective import Objective
from regard.training.objectives.r_drop import r_drop
from regard.training.setup import Setup


class GraphObjective(Objective):
    """Base of both: the class of what has labels, from its hidden state or the graph's mean."""

    level: ClassVar[Level]
    head_task: ClassVar[spec.HeadTask]
    model_classes = (GraphModel,)
    base_advice = "give a model of graphs"
    spec_classes = (spec.Encoder,)
    input_names = ("node_features",)
    trained_model: GraphModel
    data: GraphData

    def __init__(self, model: GraphModel, data: GraphData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        ids = {name: i for i, name in enumerate(model.labels)}
        # Whatever has a class that training does not know, or none, is in no score.
        self._labels = torch.tensor([ids.get(label, IGNORED) for label in data.labels])
        self._rows = {name: data.rows(name) for name in data.split_names()}

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def check_base(cls, base: Model, setup: Setup) -> None:
        super().check_base(base, setup)
        assert isinstance(base, GraphModel), "checked above"
        if base.level != cls.level:
            raise ModelError(
                f"{base.folder} classifies {base.level}, and the task is of {cls.level}",
                f"say {base.level} instead",
            )

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> GraphData:
        return stored_graphs(setup, cls.level)

    @classmethod
    def has_head(cls, description: spec.Encoder) -> bool:
        return description.task == cls.head_task

    @classmethod
    def describe(cls, setup: Setup, data: GraphData) -> spec.Model:
        count = len(_classes(data))
        features = data.features.shape[1]
        return model_spec.describe(setup.recipe, count, features=features, task=cls.head_task)

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: GraphData, setup: Setup
    ) -> GraphModel:
        model_spec.check_classes(description, _classes(data))
        config = folders.describe(description, model_type=setup.recipe.model_name)
        return GraphModel(model, description, config | label_config(_classes(data)))

    @classmethod
    def adapt(cls, base: Model, data: GraphData, setup: Setup) -> GraphModel:
        """The same model, whose classes are those of the data."""
        assert isinstance(base, GraphModel), "checked before"
        unknown = sorted(set(_classes(data)) - set(base.labels))
        if unknown:
            raise DataError(
                f"the model has no class {unknown[0]!r}; it knows {', '.join(base.labels)}",
                "give labels of these, or train a new model: regard train --graph FOLDER",
            )
        return base

    # --- training ---------------------------------------------------------------------------------

    @property
    def model(self) -> Encoder:
        return self.trained_model.model

    def tensors(self, graphs: Sequence[int]) -> dict[str, Tensor]:
        """The tensors of some graphs, as the model reads them."""
        return graph_tensors(self.trained_model.spec, self.data, graphs)

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = self.trained_model.graph_logits(dict(tensors))
        labels = tensors["labels"]
        loss, nll = cross_entropy(logits, labels, self.settings.label_smoothing)
        weight = self.settings.r_drop
        if weight and self.model.training:
            # Two passes with other dropout should agree, on what has no label too: nodes without
            # one say more about the graph than the few that have it (GRAND, Feng et al. 2020).
            other = self.trained_model.graph_logits(dict(tensors))
            other_loss, _ = cross_entropy(other, labels, self.settings.label_smoothing)
            everything = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
            # The step divides by the labelled nodes: so the mean over all nodes counts once.
            share = (labels != IGNORED).sum() / len(labels)
            agreement = r_drop(logits, other, everything) * share
            loss = (loss + other_loss) / 2 + weight * agreement
        return add_auxiliary_losses(loss, {}, len(labels)), nll

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [{"row": int(row), "text": f"{self.level[:-1]} {row}"} for row in rows]

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        rows = self._rows.get("valid")
        if not rows:
            return None
        # One pass for all splits: nodes are read together anyway.
        logits = self._logits(autocast)
        labels = self._labels[rows]
        _, nll = cross_entropy(logits[rows], labels)
        count = max(1, int((labels != IGNORED).sum()))
        return {"loss": nll.item() / count, **vars(self._score(logits, rows))}

    def _logits(self, autocast: AbstractContextManager[Any]) -> Tensor:
        with autocast:
            return self.trained_model.logits(self.data)

    def _score(self, logits: Tensor, rows: Sequence[int]) -> ClassificationScore:
        predictions = logits[rows].argmax(dim=-1).tolist()
        return classification_score(predictions, self._labels[rows].tolist())

    def scores(self) -> dict[str, AnyScore]:
        results: dict[str, AnyScore] = {}
        logits = self._logits(torch.no_grad())
        for split, rows in self._rows.items():
            if split == "train":
                continue
            score = self._score(logits, rows)
            results[split] = score
            self.setup.say(
                f"{split}: accuracy {score.accuracy:.2f}  f1 {score.f1:.2f}  "
                f"({score.examples:,} {self.level})"
            )
        return results


@dataclass(frozen=True)
class NodeBatch(Batch):
    """Labelled nodes as rows; whoever computes some of them reads the whole graph."""

    @property
    def size(self) -> int:
        return len(self.rows)

    def part(self, start: int, rows: int) -> Batch:
        selected = self.rows[start : start + rows] if rows else self.rows[:1]
        labels = self.tensors["labels"]
        part = torch.full_like(labels, IGNORED)
        index = torch.from_numpy(selected).to(labels.device)
        part[index] = labels[index]
        return NodeBatch({**self.tensors, "labels": part}, self.tokens, selected)


class NodeClassification(GraphObjective):
    """The classes of nodes, of which few are labelled; all nodes are read in each step."""

    name = "nodes"
    unit = "nodes"
    level = "nodes"
    head_task = "tag"
    head_fields = "labels=ClassifierHead(CLASSES, 'tag')"

    def __init__(self, model: GraphModel, data: GraphData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        # Validation and test nodes are read, but their labels are not.
        labels = torch.full_like(self._labels, IGNORED)
        rows = self._rows["train"]
        labels[rows] = self._labels[rows]
        tensors = {**self.tensors(range(data.graphs)), "labels": labels}
        # The same at each step: moved to the device once.
        count = int((labels != IGNORED).sum())
        self._batch = NodeBatch(tensors, count, np.array(rows, np.int64)).to(setup.device)

    def batches_per_epoch(self) -> int:
        return 1

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        while True:
            epoch += 1
            # An epoch is one step: Veličković et al. 2018 count full-graph updates in epochs.
            yield (epoch, 0), self._batch


@dataclass(frozen=True)
class GraphBatch(Batch):
    """Graphs as rows; their edges are listed together, each behind the number of its row."""

    @property
    def size(self) -> int:
        return len(self.tensors["node_features"])

    def part(self, start: int, rows: int) -> Batch:
        by_row = {name: tensor for name, tensor in self.tensors.items() if name != "edges"}
        part = Batch(by_row, self.tokens, self.rows).part(start, rows)
        first = start if rows else 0
        edges = self.tensors["edges"]  # [E, 3]: row, from, to
        is_own = (edges[:, 0] >= first) & (edges[:, 0] < first + max(1, rows))
        part.tensors["edges"] = edges[is_own] - edges.new_tensor([first, 0, 0])
        return part


class GraphClassification(GraphObjective):
    """The classes of whole graphs, from the mean of their nodes."""

    name = "graphs"
    unit = "graphs"
    level = "graphs"
    head_task = "classify"
    head_fields = "labels=ClassifierHead(CLASSES), and pool=Pool('mean', None)"
    cuda_graphs = False  # batches differ in their number of edges

    def _sampler(self) -> BatchSampler:
        # Batches of graphs of similar sizes, as of sentences of similar lengths.
        sizes = np.bincount(self.data.graph)[self._rows["train"]]
        return BatchSampler(sizes[:, None], self.settings.batch_tokens, seed=self.settings.seed)

    def batches_per_epoch(self) -> int:
        return len(self._sampler().batches(0))

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        train = np.array(self._rows["train"], np.int64)
        for now, i, rows in self._sampler().iterate(epoch, index):
            graphs = train[rows]
            tensors = {**self.tensors(graphs.tolist()), "labels": self._labels[graphs]}
            yield (now, i + 1), GraphBatch(tensors, len(graphs), graphs)


def _classes(data: GraphData) -> list[str]:
    """The names of the classes that training knows, sorted."""
    return class_names([data.labels[row] for row in data.rows("train")])
