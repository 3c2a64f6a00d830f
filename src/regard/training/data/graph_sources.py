"""Sources of graphs: one large graph with classes of nodes, or many with a class each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import Batch, Rows
from regard.data.file_access import read_arrays, write_arrays
from regard.data.graphs import GraphData, Level, read_graphs
from regard.data.padding import IGNORED
from regard.models import GraphModel, Model
from regard.models.graph_model import graph_tensors
from regard.system.errors import DataError, SettingError
from regard.training.data.labelled_text import class_names
from regard.training.data.source import Position, Source
from regard.training.run_folder import RunFolder
from regard.training.setup import Setup

_FILE = "graphs.npz"


def stored_graphs(setup: Setup, level: Level) -> GraphData:
    """The graphs of a run, stored in its folder on the first call."""
    path = setup.run_folder.data / _FILE
    if not path.exists():
        data = _read(setup)
        if data.level != level:
            raise SettingError(
                f"the data has labels for {data.level}, but the objective is for {level}",
                f"use --objective {data.level}",
            )
        if not data.rows("train"):
            raise DataError("the split 'train' is empty", "write it into the split column")
        # Once, with all splits in it: a resumed run needs no other file.
        write_arrays(path, vars(data))
    data = open_graphs(setup.run_folder)
    counts = ", ".join(f"{len(data.rows(name)):,} {name}" for name in data.split_names())
    # Edges are stored in both directions, with a loop at each node: neither counts for a reader.
    edges = (len(data.edges) - len(data.features)) // 2
    setup.say(f"data: {len(data.features):,} nodes, {edges:,} edges; {data.level}: {counts}")
    return data


def _read(setup: Setup) -> GraphData:
    """The graphs of the source, as one `GraphData` in a split of any name, or of the recipe."""
    if setup.parts.source is not None:
        # The splits of a graph are marks on its nodes: all of it is one example.
        for split in setup.parts.source.splits().values():
            for data in split():
                if isinstance(data, GraphData):
                    return data
        raise DataError("the source has no GraphData", "yield one, with the splits in it")
    return read_graphs(setup.recipe.files["train"][0])


def open_graphs(run_folder: RunFolder) -> GraphData:
    """The graphs that a run has stored."""
    arrays = read_arrays(run_folder.data / _FILE, "start a new run")
    features, edges, graph = (arrays[name] for name in ("features", "edges", "graph"))
    labels, splits = (tuple(map(str, arrays[name])) for name in ("labels", "splits"))
    level: Level = "nodes" if arrays["level"] == "nodes" else "graphs"
    return GraphData(features, edges, graph, labels, splits, level)


class GraphSource(Source):
    """Graphs with classes; whatever has a class that training does not know is in no score."""

    level: ClassVar[Level]
    model_class = GraphModel
    model: GraphModel
    data: GraphData

    def __init__(self, model: GraphModel, data: GraphData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.labels = torch.tensor([self.label_ids.get(label, IGNORED) for label in data.labels])
        self.splits = {name: data.rows(name) for name in data.split_names()}

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> GraphData:
        return stored_graphs(setup, cls.level)

    @classmethod
    def class_names(cls, data: GraphData) -> list[str]:
        return class_names(data.labels[row] for row in data.rows("train"))

    def tensors(self, graphs: Sequence[int]) -> dict[str, Tensor]:
        """The tensors of some graphs, as the model reads them."""
        return graph_tensors(self.model.spec, self.data, graphs)

    def describe(self) -> str:
        return ""  # said when the graphs were opened

    def example(self, row: int) -> dict[str, Any]:
        return {"text": f"{self.level[:-1]} {row}"}


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


class Nodes(GraphSource):
    """The nodes of a graph, of which few are labelled; all are read in each step."""

    unit = "nodes"
    level = "nodes"

    def __init__(self, model: GraphModel, data: GraphData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.graph = self.tensors(range(data.graphs))
        # The same at each step: moved to the device once.
        rows = np.arange(len(self.splits["train"]))
        self.whole_graph = self._labelled("train", rows).to(setup.device)

    def lengths(self, split: str) -> NDArray[Any]:
        return np.ones((len(self.splits[split]), 1), np.int64)

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        return self._labelled(split, rows)

    def _labelled(self, split: str, rows: Rows) -> NodeBatch:
        """All nodes, of which only some of a split have their labels."""
        nodes = np.array(self.splits[split], np.int64)[rows]
        labels = torch.full_like(self.labels, IGNORED)
        labels[nodes] = self.labels[nodes]
        count = int((labels != IGNORED).sum())
        return NodeBatch({**self.graph, "labels": labels}, count, nodes)


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


class Graphs(GraphSource):
    """Whole graphs, in batches of similar sizes, as sentences are of similar lengths."""

    unit = "graphs"
    level = "graphs"

    def lengths(self, split: str) -> NDArray[Any]:
        return np.bincount(self.data.graph)[self.splits[split]][:, None]

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        graphs = np.array(self.splits[split], np.int64)[rows]
        tensors = {**self.tensors(graphs.tolist()), "labels": self.labels[graphs]}
        return GraphBatch(tensors, len(graphs), graphs)
