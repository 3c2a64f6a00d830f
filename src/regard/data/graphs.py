"""Graphs: nodes with features, edges, labels of nodes or of whole graphs; structural encodings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data import text_files
from regard.data.file_access import read_arrays
from regard.system.errors import DataError, RegardWarning, did_you_mean

Level = Literal["nodes", "graphs"]
SPLITS = ("train", "valid", "test")
_SUFFIXES = (".tsv", ".tsv.gz", ".csv", ".csv.gz")
_LARGEST_DENSE = 20_000  # nodes of a graph whose pairs are listed (eigenvectors, shortest paths)
_MOST_FEATURES = 2**32  # numbers of all nodes: 16 GB


@dataclass(frozen=True)
class GraphData:
    """Graphs, their nodes one after the other; nodes or graphs have a label and a split each."""

    features: NDArray[np.float32]  # [nodes, features]
    edges: NDArray[np.int64]  # [edges, 2]: both directions, and a loop at each node
    graph: NDArray[np.int64]  # [nodes], the graph that a node belongs to, ascending
    labels: tuple[str, ...]  # of nodes or graphs; "" without one
    splits: tuple[str, ...]  # of nodes or graphs; "" without one
    level: Level  # what has labels

    @property
    def graphs(self) -> int:
        return int(self.graph[-1]) + 1

    def rows(self, split: str) -> list[int]:
        """The labelled nodes, or graphs, of a split."""
        return [
            i
            for i, (name, label) in enumerate(zip(self.splits, self.labels, strict=True))
            if name == split and label
        ]

    def split_names(self) -> list[str]:
        """The splits that have labels, training first."""
        return [name for name in SPLITS if self.rows(name)]


# ------------------------------------------------------------------ files


def read_graphs(path: str | Path) -> GraphData:
    """A folder of tables, or an .npz file of arrays.

    `nodes`: number, class, split, features; `edges`: two numbers. With `graphs` (number, class,
    split) these have the labels, and the second column of `nodes` is the graph. Columns are
    divided by tabs (.tsv) or commas (.csv). Features are numbers with spaces between them: INDEX
    or INDEX:VALUE. The arrays of an .npz file are features, edges, labels, split, and graph where
    graphs have the labels.
    """
    path = Path(path)
    if path.suffix == ".npz":
        return _read_arrays(path)
    if not path.is_dir():
        raise DataError(
            f"{path} is not a graph folder", "give a folder with nodes.tsv and edges.tsv"
        )
    try:
        return _read_tables(path)
    except ValueError as error:
        raise DataError(
            f"{path}: {error}",
            "number nodes and graphs 0, 1, 2, …; write features as INDEX or INDEX:VALUE",
        ) from None


def _read_tables(folder: Path) -> GraphData:
    nodes = _rows(folder, "nodes")
    edges = _rows(folder, "edges")
    # Labels of graphs stand in a table of their own; without it, nodes have them.
    graphs = _rows(folder, "graphs")
    for rows in (nodes, graphs):
        if [int(row[0]) for row in rows] != list(range(len(rows))):
            raise ValueError("its rows are not numbered 0, 1, 2, …")
    if any(any(row[2:]) for row in edges):
        warnings.warn(
            f"{folder}/edges: an edge is two numbers; what else its row has, such as a weight, "
            "is ignored",
            RegardWarning,
            stacklevel=3,
        )
    graph = [int(row[1]) for row in nodes] if graphs else [0] * len(nodes)
    labelled = graphs or nodes
    return _checked(
        _features([row[3] if len(row) > 3 else "" for row in nodes]),
        np.array([[int(cell) for cell in row[:2]] for row in edges], np.int64).reshape(-1, 2),
        np.array(graph, np.int64),
        [row[1] for row in labelled],
        [row[2] if len(row) > 2 else "" for row in labelled],
        "graphs" if graphs else "nodes",
    )


def _rows(folder: Path, name: str) -> list[list[str]]:
    """The rows of a table; one of names at its top is left out."""
    files = [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        if name != "graphs":
            raise DataError(f"{folder} has no {name}.tsv", "give nodes.tsv and edges.tsv")
        return []
    # Features have spaces between them, so that both dividers are free.
    divider = "," if ".csv" in file.name else "\t"
    rows = []
    for number, line in enumerate(text_files.lines(file), 1):
        row = [cell.strip() for cell in line.split(divider)]
        if row[0].isdecimal() and len(row) > 1:
            rows.append(row)
        elif number > 1 and line.strip():
            raise DataError(f"{file}, line {number}: {line!r} is not a row", "begin with a number")
    return rows


def _features(texts: Sequence[str]) -> NDArray[np.float32]:
    """INDEX or INDEX:VALUE, with spaces between them: [nodes, features]."""
    entries = []
    for node, text in enumerate(texts):
        for item in text.split():
            index, _, value = item.partition(":")
            if not index.isdecimal():
                raise ValueError(f"{item!r} is not a feature")
            entries.append((node, int(index), float(value or 1)))
    width = max((column + 1 for _, column, _ in entries), default=1)
    if len(texts) * width > _MOST_FEATURES:
        raise ValueError(f"{len(texts):,} nodes of {width:,} features are too many numbers")
    # Nodes without features are all alike.
    features = np.full((len(texts), width), 0.0 if entries else 1.0, np.float32)
    for node, column, number in entries:
        features[node, column] = number
    return features


def _read_arrays(path: Path) -> GraphData:
    values: dict[str, Any] = read_arrays(path, "write it with numpy.savez")
    for name in ("features", "edges", "labels"):
        if name not in values:
            raise DataError(f"{path} has no array {name!r}", f"it has: {', '.join(values)}")
    # As many as nodes, or as graphs.
    count = len(values["labels"])
    numbers = dict(zip("012", SPLITS, strict=True))  # splits may have numbers for names
    splits = [numbers.get(str(value), str(value)) for value in values.get("split", [""] * count)]
    nodes = len(values["features"])
    graph = values.get("graph", np.zeros(nodes, np.int64)).astype(np.int64)
    level: Level = "graphs" if "graph" in values else "nodes"
    labels = [str(label) for label in values["labels"]]
    edges = values["edges"]
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        # Read as rows of two, an edge_index [2, edges] would be other edges.
        raise DataError(
            f"{path}: edges are {edges.dtype} numbers of the shape {edges.shape}",
            "give whole numbers [edges, 2]; an edge_index [2, edges] has to be transposed",
        )
    edges = edges.astype(np.int64)
    return _checked(values["features"].astype(np.float32), edges, graph, labels, splits, level)


def _checked(
    features: NDArray[np.float32],
    edges: NDArray[np.int64],
    graph: NDArray[np.int64],
    labels: Sequence[str],
    splits: Sequence[str],
    level: Level,
) -> GraphData:
    nodes = len(features)
    if not nodes:
        raise DataError("a graph without nodes", "give at least one")
    if features.ndim != 2 or not np.isfinite(features).all():
        raise DataError("features of nodes are not finite numbers", "give them [nodes, features]")
    for name in set(splits) - {"", *SPLITS}:
        # Its nodes would never be used.
        raise DataError(f"there is no split {name!r}", did_you_mean(name, SPLITS))
    expected = nodes if level == "nodes" else int(graph.max(initial=-1)) + 1
    if len(labels) != expected or len(splits) != expected:
        raise DataError(
            f"{expected} {level} have {len(labels)} labels and {len(splits)} splits",
            "give each one of both",
        )
    if len(edges) and (edges.min() < 0 or edges.max() >= nodes):
        raise DataError(f"an edge leads to a node that is none of 0 to {nodes - 1}", "correct it")
    # Batches cut out the nodes and edges of a graph as slices.
    if (np.diff(graph) < 0).any() or len(np.unique(graph)) != graph[-1] + 1:
        raise DataError("the nodes of a graph do not follow each other", "sort them by graph")
    if len(edges) and (graph[edges[:, 0]] != graph[edges[:, 1]]).any():
        raise DataError("an edge leads from one graph to another", "leave it out")
    return GraphData(features, undirected(edges, nodes), graph, tuple(labels), tuple(splits), level)


def undirected(edges: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    """Both directions of each edge once, and a loop at each node, sorted."""
    loops = np.repeat(np.arange(nodes)[:, None], 2, axis=1)
    every: NDArray[np.int64] = np.unique(np.concatenate([edges, edges[:, ::-1], loops]), axis=0)
    return every


def surroundings(data: GraphData, node: int, steps: int) -> list[int]:
    """A node, then all that are so many edges away or less, nearest first."""
    if not 0 <= node < len(data.features):
        raise DataError(f"there is no node {node}", f"the nodes are 0 to {len(data.features) - 1}")
    nodes = [node]
    for _ in range(steps):
        is_near = np.isin(data.edges[:, 0], nodes)
        nodes += sorted(set(data.edges[is_near, 1].tolist()) - set(nodes))
    return nodes


def subgraph(data: GraphData, nodes: Sequence[int]) -> GraphData:
    """These nodes as one graph, in this order, with the edges between them."""
    place = np.full(len(data.features), -1)
    place[list(nodes)] = np.arange(len(nodes))
    # −1 where an end is left out.
    edges = place[data.edges]
    edges = edges[(edges >= 0).all(axis=1)]
    # A label of all the graphs would be none of a part of one.
    labelled = list(nodes) if data.level == "nodes" else []
    return replace(
        data,
        features=data.features[list(nodes)],
        edges=np.unique(edges, axis=0),
        graph=np.zeros(len(nodes), np.int64),
        labels=tuple(data.labels[i] for i in labelled) or ("",),
        splits=tuple(data.splits[i] for i in labelled) or ("",),
    )


# ------------------------------------------------------------------ structural encodings


def laplacian_eigenvectors(edges: NDArray[np.int64], nodes: int, count: int) -> NDArray[np.float32]:
    """Eigenvectors of the normalized Laplacian I − D^-½ A D^-½, lowest frequencies first.

    The first, which is as large as the degrees alone say, is left out. [nodes, count]; zeros where
    a small graph has fewer.
    """
    adjacency = _dense(edges, nodes, np.float64)
    # Loops are for attention; the Laplacian has none.
    np.fill_diagonal(adjacency, 0)
    scale = 1 / np.sqrt(np.maximum(adjacency.sum(axis=1), 1))
    laplacian = np.eye(nodes) - scale[:, None] * adjacency * scale
    _, vectors = np.linalg.eigh(laplacian)
    chosen = np.zeros((nodes, count), np.float32)
    available = vectors[:, 1 : count + 1]
    chosen[:, : available.shape[1]] = available
    return chosen


def shortest_paths(edges: NDArray[np.int64], nodes: int, longest: int) -> NDArray[np.int16]:
    """Edges of the shortest path between each two nodes, −1 if there is none: [nodes, nodes].

    Paths of more than `longest` edges have length `longest` + 1.
    """
    adjacency = _dense(edges, nodes, np.float32)
    # Breadth-first search from all nodes at once: one matrix product for each step.
    reached = np.eye(nodes, dtype=np.float32)
    distances = np.full((nodes, nodes), -1, np.int16)
    distances[reached > 0] = 0
    for step in range(1, nodes):
        # The loop at each node keeps what was reached before.
        wider = ((reached @ adjacency) > 0).astype(np.float32)
        is_new = (wider > 0) & (reached == 0)
        if not is_new.any():
            break
        distances[is_new] = min(step, longest + 1)
        reached = wider
    return distances


def _dense(edges: NDArray[np.int64], nodes: int, dtype: Any) -> NDArray[Any]:
    if nodes > _LARGEST_DENSE:
        raise DataError(
            f"the pairs of {nodes:,} nodes are too many to list",
            "leave eigenvectors and shortest paths out",
        )
    adjacency = np.zeros((nodes, nodes), dtype)
    adjacency[edges[:, 0], edges[:, 1]] = 1
    return adjacency
