"""A model of graphs: classes of nodes, or of whole graphs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard import spec as kinds
from regard.core.context import Context
from regard.core.finite_outputs import require_finite
from regard.data.graphs import (
    GraphData,
    laplacian_eigenvectors,
    read_graphs,
    shortest_paths,
    subgraph,
    surroundings,
)
from regard.look.inspectable import Reading
from regard.models.base import Model
from regard.models.labels import Scores, top_labels
from regard.system.errors import DataError
from regard.wirings.encoder import Encoder

if TYPE_CHECKING:
    from regard.look.backdrop import Backdrop

_BATCH_NODES = 4096
_MAX_NODES_SHOWN = 512  # nodes whose attention to each other is shown


class GraphModel(Model):
    """Classifies the nodes of a graph, or graphs; made by `regard.load(folder)`."""

    model: Encoder
    spec: kinds.Encoder
    reads_files = True

    @property
    def level(self) -> str:
        """What is classified."""
        return "nodes" if self.spec.task == "tag" else "graphs"

    @property
    def evaluations(self) -> tuple[str, ...]:
        return (self.level,)

    # ------------------------------------------------------------------ for `regard.look`

    def read_text(self, text: str) -> Reading:
        """The features [1, N, F] of a graph, with the numbers of its nodes and their classes.

        `FOLDER:NUMBER` is a node with all that its layers reach, or one of several graphs.
        """
        from regard.look.backdrop import GraphBackdrop

        data, nodes = self._graph_of(text)
        _, number = _folder_and_number(text)
        names = tuple(map(str, nodes))
        node = None
        if data.level == "nodes":
            names = tuple(f"{node} {data.labels[i]}".strip() for i, node in enumerate(nodes))
            node = None if number is None else nodes.index(number)
        tensors = self.inputs(data, [0])
        features = tensors.pop("node_features")
        return Reading(features, names, tensors, GraphBackdrop(names, data.edges, node))

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        """The backdrop with the class of each node, or of the graph."""
        from regard.look.backdrop import GraphBackdrop

        assert isinstance(backdrop, GraphBackdrop), "graphs stand on themselves"
        scores = self.scores(logits.flatten(0, -2))
        if self.level == "graphs":
            return replace(backdrop, answer=top_labels(scores[0]))
        answer = "" if backdrop.node is None else top_labels(scores[backdrop.node])
        return replace(backdrop, classes=tuple(next(iter(one)) for one in scores), answer=answer)

    def _graph_of(self, text: str) -> tuple[GraphData, list[int]]:
        """One graph, or the surroundings of one node, and the numbers that its nodes have."""
        folder, number = _folder_and_number(text)
        data = read_graphs(folder)
        # Attention is shown for each pair: a large graph is looked at around one node.
        if data.level == "graphs":
            nodes = np.flatnonzero(data.graph == (number or 0)).tolist()
        elif number is None:
            nodes = list(range(len(data.features)))
        else:
            nodes = surroundings(data, number, self.spec.stack.layers)
        if not nodes or len(nodes) > _MAX_NODES_SHOWN:
            raise DataError(
                f"the graph has too many nodes to show ({len(nodes):,})",
                "choose one node: FOLDER:NUMBER",
            )
        return subgraph(data, nodes), nodes

    # ------------------------------------------------------------------ classes

    def classify(self, graphs: str | Path | GraphData) -> list[Scores]:  # type: ignore[override]
        """Label → probability, likeliest first, of each node or of each graph."""
        data = graphs if isinstance(graphs, GraphData) else read_graphs(graphs)
        return self.scores(self.logits(data))

    def classify_named(self, text: str) -> dict[str, Scores]:
        """Classes of all nodes or graphs of a folder, by FOLDER:NUMBER, or of the one so named."""
        folder, number = _folder_and_number(text)
        scores = self.classify(folder)
        if number is None:
            return {f"{folder}:{i}": one for i, one in enumerate(scores)}
        if number >= len(scores):
            raise DataError(
                f"{folder} has no number {number}: there are {len(scores):,} {self.level}",
                f"use a number from 0 to {len(scores) - 1:,}",
            )
        return {text: scores[number]}

    @torch.inference_mode()
    def logits(self, data: GraphData) -> Tensor:
        """Logits [nodes or graphs, classes], on the CPU."""
        if data.level != self.level:
            raise DataError(
                f"this model classifies {self.level}, but the data has labels for {data.level}",
                f"pass data with labels for {self.level}, or use another model",
            )
        self.model.eval()
        parts = []
        for graphs in batches_of_graphs(data, _BATCH_NODES):
            inputs = self.inputs(data, graphs)
            parts.append(require_finite(self.graph_logits(inputs).float().cpu(), self.model))
        return torch.cat(parts)

    def graph_logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """Logits of a batch: [nodes, classes] without padding, or [graphs, classes]."""
        # The pool of a graph leaves padding out; nodes at padding are cut off below.
        logits = self.model.head_output(self.model.hidden_states(inputs, Context()), inputs)
        if self.level == "graphs":
            return logits
        # [B, N, classes] → [nodes, classes], in the order of the nodes in the data.
        mask = inputs.get("attention_mask")
        return logits.flatten(0, 1) if mask is None else logits[mask]

    def inputs(self, data: GraphData, graphs: Sequence[int]) -> dict[str, Tensor]:
        """The tensors of some graphs, padded to the largest of them, on the model's device."""
        tensors = graph_tensors(self.spec, data, graphs)
        return {
            name: tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)
            for name, tensor in tensors.items()
        }


def _folder_and_number(text: str) -> tuple[str, int | None]:
    """FOLDER or FOLDER:NUMBER; a path that exists is meant as it is."""
    match = re.fullmatch(r"(.+):(\d+)", text)
    if match is None or Path(text).exists():
        return text, None
    return match[1], int(match[2])


def batches_of_graphs(data: GraphData, nodes: int) -> Iterator[list[int]]:
    """Graphs in their order, as many at once as have so many nodes when padded."""
    batch: list[int] = []
    largest = 0
    for graph, size in enumerate(np.bincount(data.graph).tolist()):
        largest = max(largest, size)
        # All graphs of a batch are as long as its largest; a single one may exceed the budget.
        if batch and largest * (len(batch) + 1) > nodes:
            yield batch
            batch = []
            largest = size
        batch.append(graph)
    yield batch


def graph_tensors(spec: kinds.Encoder, data: GraphData, graphs: Sequence[int]) -> dict[str, Tensor]:
    """Features [B, N, F], edges [E, 3], the padding mask, and what else the model reads."""
    front_end = spec.nodes
    if data.features.shape[1] != front_end.features:
        raise DataError(
            f"a node has {data.features.shape[1]} features, but the model reads "
            f"{front_end.features}",
            "pass graphs with the features of its training data",
        )
    # Where the nodes of each graph begin, and the last one ends.
    starts = np.searchsorted(data.graph, np.arange(data.graphs + 1))
    sizes = np.diff(starts)[list(graphs)].tolist()
    # Edges are sorted by where they start, and so by graph.
    edge_starts = np.searchsorted(data.edges[:, 0], starts)
    features = []
    edges = []
    for graph in graphs:
        begin, end = starts[graph : graph + 2]
        features.append(torch.from_numpy(data.features[begin:end]).float())
        # Edges number the nodes of all graphs; here, those of one graph from 0 on.
        edges.append(data.edges[edge_starts[graph] : edge_starts[graph + 1]] - begin)
    rows = [np.insert(one, 0, row, axis=1) for row, one in enumerate(edges)]
    tensors = {
        "node_features": pad_sequence(features, batch_first=True),
        "edges": torch.from_numpy(np.concatenate(rows)),
    }
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    if not mask.all():
        tensors["attention_mask"] = mask
    return tensors | _structure(spec, edges, sizes)


def _structure(
    spec: kinds.Encoder, edges: Sequence[NDArray[Any]], sizes: Sequence[int]
) -> dict[str, Tensor]:
    """Eigenvectors [B, N, k] and shortest paths [B, N, N], where the model reads them."""
    tensors: dict[str, Tensor] = {}
    graphs = [*zip(edges, sizes, strict=True)]
    count = spec.nodes.laplacian
    if count:
        vectors = [torch.from_numpy(laplacian_eigenvectors(*graph, count)) for graph in graphs]
        tensors["eigenvectors"] = pad_sequence(vectors, batch_first=True).float()
    if isinstance(spec.stack.block.position, kinds.ShortestPathBias):
        # −1 is "no path", for padding too; int16, because N² of them are the largest input.
        distances = torch.full((len(sizes), max(sizes), max(sizes)), -1, dtype=torch.int16)
        for row, graph in enumerate(graphs):
            paths = shortest_paths(*graph, spec.stack.block.position.distance)
            distances[row, : len(paths), : len(paths)] = torch.from_numpy(paths)
        tensors["distances"] = distances
    return tensors
