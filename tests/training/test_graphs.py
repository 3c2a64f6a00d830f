"""Graphs by the one assembly line: nodes and graphs, attention along edges, structure, resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import spec
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.masks.mask import PaddingMask
from regard.core.mixers import edge_attention
from regard.core.mixers.edge_attention import GraphMask
from regard.core.mixers.scaled_dot_product_attention import dispatch, explicit
from regard.data.graphs import (
    GraphData,
    laplacian_eigenvectors,
    read_graphs,
    shortest_paths,
    undirected,
)
from regard.data.padding import IGNORED
from regard.evaluation.scores import Score
from regard.families import presets
from regard.models.graph_model import graph_tensors
from regard.system.errors import DataError, RegardWarning, SettingError, TrainingInterrupted
from regard.training.assembly import assemble
from regard.training.recipe import loading
from regard.training.run import resume
from regard.training.run_folder import begin
from regard.training.setup import Setup

QUICK: dict[str, Any] = {
    "steps": 6, "warmup_steps": 1, "validate_every": 3, "save_every": 2, "schedule": "constant",
    "learning_rate": 5e-3, "threads": 1, "device": "cpu", "model": "graph:tiny", "d_model": 16,
    "d_ff": 16, "heads": 2, "layers": 2,
}  # fmt: skip
SIZE = 40  # nodes of each of two communities


def communities() -> tuple[list[str], list[tuple[int, int]]]:
    """Two communities with many edges inside and few between; features are noise."""
    generator = np.random.default_rng(0)
    rows = []
    for node in range(2 * SIZE):
        words = sorted({int(word) for word in generator.integers(0, 30, 4)})
        split = "train" if node % SIZE < 10 else ("valid" if node % SIZE < 20 else "test")
        name = "left" if node < SIZE else "right"
        # The first word says the class, of nodes with labels only.
        word = 30 + (node >= SIZE)
        features = [word, *words] if split == "train" else words
        rows.append(f"{node}\t{name}\t{split}\t{' '.join(map(str, features))}")
    edges = []
    for one in range(2 * SIZE):
        for other in range(one):
            share = 0.2 if (one < SIZE) == (other < SIZE) else 0.005
            if generator.random() < share:
                edges.append((one, other))
    return rows, edges


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    folder = tmp_path / "graph"
    folder.mkdir()
    rows, edges = communities()
    (folder / "nodes.tsv").write_text("\n".join(rows) + "\n")
    (folder / "edges.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in edges))
    return folder


def rings_and_stars(count: int = 24) -> GraphData:
    """Rings and stars of other sizes, told apart by their edges alone."""
    features = []
    edges = []
    graph = []
    labels = []
    splits = []
    begin = 0
    for number in range(count):
        size = 5 + number % 4
        ring = number % 2 == 0
        labels.append("ring" if ring else "star")
        splits.append("test" if number >= count - 6 else "train")
        for node in range(size):
            edges.append((begin + node, begin + (node + 1) % size if ring else begin))
        features += [[1.0]] * size
        graph += [number] * size
        begin += size
    joined = undirected(np.array(edges), begin)
    values = np.array(features, np.float32)
    owners = np.array(graph, np.int64)
    return GraphData(values, joined, owners, tuple(labels), tuple(splits), "graphs")


# ------------------------------------------------------------------ attention along edges


def test_a_batch_of_a_split_has_its_labels(graph: Path, tmp_path: Path) -> None:
    values = {**QUICK, "objective": "nodes", "graph": str(graph)}
    recipe = loading.load(None, values)
    objective = assemble(Setup(begin(recipe, tmp_path / "run", "test"), recipe, lambda _: None))
    counts = {"train": 20, "valid": 20, "test": 40}
    for split, count in counts.items():
        batches = list(objective.evaluation_batches(split))
        labels = sum(int((batch.tensors["labels"] != IGNORED).sum()) for batch in batches)
        assert labels == count
    _, training = next(iter(objective.batches(0, 0)))
    (valid,) = objective.evaluation_batches("valid")
    assert not (training.tensors["labels"] != IGNORED)[valid.rows].any()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_along_edges_is_attention_under_their_mask(padded: bool, biased: bool) -> None:
    torch.manual_seed(0)
    rows, heads, groups, nodes = 2, 4, 2, 40
    joined = torch.rand(rows, nodes, nodes) < 0.03
    joined[0] |= torch.eye(nodes, dtype=torch.bool)
    joined[1, 3] = False  # a node without edges
    edges = joined.nonzero()
    pattern: Any = GraphMask(edges, nodes)
    if padded:
        lengths = torch.tensor([nodes, nodes - 7])[:, None]
        pattern = PaddingMask(torch.arange(nodes) < lengths) & pattern
    positions = torch.arange(nodes)
    mask = AttentionMask(pattern, positions, positions, rows)
    assert edge_attention.edges_of(mask) is not None
    q = torch.randn(rows, heads, nodes, 8, requires_grad=True)
    k = torch.randn(rows, groups, nodes, 8, requires_grad=True)
    v = torch.randn(rows, groups, nodes, 6, requires_grad=True)
    bias = ScoreBias(torch.randn(1, heads, nodes, nodes)) if biased else None
    results = []
    for kernel in (dispatch, explicit):
        out = kernel(q, k, v, mask, 0.3, 0.0, bias)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
        results.append((out, *gradients))
    for ours, expected in zip(*results, strict=True):
        assert torch.allclose(ours, expected, atol=1e-5)
    if not padded:
        assert torch.equal(results[0][0][1, :, 3], torch.zeros(heads, 6))


def test_dropout_on_edges_keeps_the_mean() -> None:
    torch.manual_seed(0)
    nodes = 48
    edges = torch.stack([torch.zeros(nodes, dtype=torch.long), *[torch.arange(nodes)] * 2], dim=1)
    edges = torch.cat([edges, edges.roll(1, dims=1)[:1] * 0])
    positions = torch.arange(nodes)
    mask = AttentionMask(GraphMask(edges[:nodes], nodes), positions, positions, 1)
    ones = torch.ones(1, 1, nodes, 4)
    mean = torch.stack([dispatch(ones, ones, ones, mask, 1.0, 0.5) for _ in range(200)]).mean()
    assert mean.item() == pytest.approx(1.0, abs=0.05)


def test_a_node_sees_no_farther_than_its_layers_reach() -> None:
    """On a path of nodes, two layers see two steps."""
    edges = undirected(np.array([(i, i + 1) for i in range(9)]), 10)
    data = GraphData(
        np.eye(10, dtype=np.float32), edges, np.zeros(10, np.int64), ("",) * 10, ("",) * 10, "nodes"
    )
    description = presets.preset("graph:tiny", 3, features=10)
    assert isinstance(description, spec.Encoder)
    model = regard.build(description).eval()
    inputs = graph_tensors(description, data, [0])
    changed = {**inputs, "node_features": inputs["node_features"].clone()}
    changed["node_features"][0, 0] = 2 * torch.rand(10)
    with torch.inference_mode():
        one, other = (
            model(each["node_features"], None, edges=each["edges"])[0][0]
            for each in (inputs, changed)
        )
    moved = (one - other).abs().amax(dim=-1) > 1e-6
    assert moved.tolist() == [True] * 3 + [False] * 7


# ------------------------------------------------------------------ structure


def test_shortest_paths_are_those_of_breadth_first_search() -> None:
    generator = np.random.default_rng(1)
    edges = undirected(generator.integers(0, 20, (18, 2)), 20)
    paths = shortest_paths(edges, 20, 3)
    neighbours = {i: {int(b) for a, b in edges if a == i} for i in range(20)}
    for start in range(20):
        found = {start: 0}
        layer = {start}
        while layer:
            layer = {b for a in layer for b in neighbours[a]} - found.keys()
            found |= dict.fromkeys(layer, 1 + max(found.values()))
        for end in range(20):
            assert paths[start, end] == min(found.get(end, -1), 4)


def test_eigenvectors_are_those_of_the_laplacian() -> None:
    size = 8
    ring = undirected(np.array([(i, (i + 1) % size) for i in range(size)]), size)
    vectors = laplacian_eigenvectors(ring, size, 3).astype(np.float64)
    # Of a ring: 1 − cos(2π k / n), each but the ends twice.
    adjacency = np.zeros((size, size))
    adjacency[ring[:, 0], ring[:, 1]] = 1
    np.fill_diagonal(adjacency, 0)
    laplacian = np.eye(size) - adjacency / 2
    expected = 1 - np.cos(2 * np.pi * np.array([1, 1, 2]) / size)
    for vector, value in zip(vectors.T, expected, strict=True):
        assert np.allclose(laplacian @ vector, value * vector, atol=1e-6)
    # A graph with fewer nodes than eigenvectors is filled with zeros.
    assert np.array_equal(laplacian_eigenvectors(ring[:0], 1, 2), np.zeros((1, 2)))


@pytest.mark.parametrize("model", ["graph:tiny", "graphormer:tiny"])
def test_the_order_of_nodes_and_of_graphs_does_not_matter(model: str) -> None:
    """Equivariance: renumbered nodes have the same hidden states, padding or not."""
    data = rings_and_stars()
    description = presets.preset(
        model, 2, features=1, task="classify", degrees=8, laplacian=0, distances=4
    )
    assert isinstance(description, spec.Encoder)
    torch.manual_seed(0)
    core = regard.build(description).eval()
    forecaster = regard.models.GraphModel(core, description, {})
    together = forecaster.graph_logits(graph_tensors(description, data, [0, 3, 5]))
    alone = [forecaster.graph_logits(graph_tensors(description, data, [i])) for i in (0, 3, 5)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)
    # Graph 0 with its nodes in another order.
    size = int((data.graph == 0).sum())
    order = np.random.default_rng(2).permutation(size)
    place = np.argsort(order)
    own = data.edges[(data.edges < size).all(axis=1)]
    shuffled = replace(
        data, features=data.features[:size][order], edges=np.unique(place[own], axis=0),
        graph=np.zeros(size, np.int64), labels=data.labels[:1], splits=data.splits[:1],
    )  # fmt: skip
    other = forecaster.graph_logits(graph_tensors(description, shuffled, [0]))
    assert torch.allclose(alone[0], other, atol=1e-5)


# ------------------------------------------------------------------ files


def test_tables_and_arrays_hold_the_same_graph(graph: Path, tmp_path: Path) -> None:
    data = read_graphs(graph)
    assert data.level == "nodes"
    assert data.features.shape == (2 * SIZE, 32)
    splits = {"train": 0, "valid": 1, "test": 2}
    np.savez(
        tmp_path / "graph.npz", features=data.features, edges=data.edges,
        labels=np.array(data.labels), split=np.array([splits[name] for name in data.splits]),
    )  # fmt: skip
    again = read_graphs(tmp_path / "graph.npz")
    assert np.array_equal(again.features, data.features)
    assert np.array_equal(again.edges, data.edges)
    assert (again.labels, again.splits, again.level) == (data.labels, data.splits, data.level)


@pytest.mark.parametrize(
    ("nodes", "edges", "problem"),
    [
        ("0\ta\ttrain\t1\n2\tb\ttrain\t1\n", "0\t1\n", "not numbered"),
        ("0\ta\ttrain\tword\n", "", "is not a feature"),
        ("0\ta\ttrain\t1\n", "0\t5\n", "none of 0 to 0"),
        ("0\ta\ttrain\t1\nx\n", "", "is not a row"),
        ("0\ta\ttrain\t1\n", "0\tx\n", "invalid literal"),
        ("0\ta\ttrain\t1\n", "0\t0.5\n", "invalid literal"),
        ("0\ta\ttrain\t1\n", "0\t0\n²\t0\n", "is not a row"),
        ("0\ta\ttrain\t-1:2 3\n", "", "'-1:2' is not a feature"),
        ("0\ta\ttrain\t1:nan\n", "", "not finite"),
        ("0\ta\ttrain\t999999999999\n", "", "too many numbers"),
        ("0\ta\tval\t1\n", "", "no split 'val'"),
        ("", "", "without nodes"),
    ],
)
def test_tables_that_are_no_graph_are_refused(
    nodes: str, edges: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "nodes.tsv").write_text(nodes)
    (tmp_path / "edges.tsv").write_text(edges)
    with pytest.raises(DataError, match=problem):
        read_graphs(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        # PyTorch Geometric's edge_index: its rows of two would be other edges.
        ({"edges": np.array([[0, 1, 2], [1, 2, 3]])}, "transposed"),
        ({"edges": np.array([[0.5, 1.0]])}, "float64"),
        ({"features": np.ones(4)}, "features"),
        ({"features": np.full((4, 2), np.nan)}, "finite"),
        ({"split": np.array(["train", "val", "test", "test"])}, "no split 'val'"),
        ({"features": np.ones((0, 2)), "labels": np.array([]), "split": np.array([])}, "no"),
    ],
)
def test_arrays_that_are_no_graph_are_refused(
    arrays: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    edges = np.array([[0, 1], [1, 2]])
    graph = {
        "features": np.eye(4),
        "edges": edges,
        "labels": np.arange(4),
        "split": np.zeros(4, int),
    }
    np.savez(tmp_path / "graph.npz", **{**graph, **arrays})
    with pytest.raises(DataError, match=problem):
        read_graphs(tmp_path / "graph.npz")


@pytest.mark.parametrize("content", [b"", b"PK\3\4 and no more", b"text"])
def test_a_damaged_npz_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "graph.npz").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        read_graphs(tmp_path / "graph.npz")


def test_weights_of_edges_are_ignored_aloud(tmp_path: Path) -> None:
    (tmp_path / "nodes.tsv").write_text("0\ta\ttrain\t1\n1\tb\tvalid\t0\n2\ta\ttest\t1\n")
    # Loops, one edge twice, and a node without any.
    (tmp_path / "edges.tsv").write_text("0\t0\t1.0\n0\t1\t0.5\n1\t0\t0.5\n")
    with pytest.warns(RegardWarning, match="weight"):
        data = read_graphs(tmp_path)
    assert data.edges.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]]


def test_an_npz_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", features=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="cannot be read"):
        read_graphs(tmp_path / "bad.npz")


# ------------------------------------------------------------------ runs


def test_communities_are_told_apart_by_their_edges(graph: Path, tmp_path: Path) -> None:
    changes = {"steps": 60, "validate_every": 20, "save_every": 60, "r_drop": 1.0}
    scores = {}
    for attention in ("neighbours", "softmax"):
        settings = {**QUICK, **changes, "attention": attention, "graph": str(graph)}
        result = regard.train(settings, out=tmp_path / attention)
        score = result.scores["test"]
        assert isinstance(score, Score)
        scores[attention] = score.accuracy
    # The features of unlabelled nodes are noise: only the edges say where they belong.
    assert scores["neighbours"] > 90
    assert scores["neighbours"] > scores["softmax"] + 20
    again = regard.evaluate(tmp_path / "neighbours", str(graph))
    assert again["accuracy"] == pytest.approx(scores["neighbours"])
    model = regard.load(tmp_path / "neighbours", device="cpu")
    classes = model.classify(graph)  # type: ignore[call-overload]
    assert len(classes) == 2 * SIZE
    assert set(classes[0]) == {"left", "right"}


@pytest.mark.parametrize("model", ["graph:tiny", "graphormer:tiny"])
def test_graphs_are_classified(model: str, tmp_path: Path) -> None:
    class Source:
        def splits(self) -> Any:
            return {"train": lambda: iter([rings_and_stars()])}

    settings = {
        **QUICK, "model": model, "steps": 40, "validate_every": 40, "save_every": 40,
        "batch_tokens": 60, "degrees": 8, "laplacian": 2, "input_dropout": 0.0, "dropout": 0.0,
        "objective": "graphs",
    }  # fmt: skip
    result = regard.train(settings, data=Source(), out=tmp_path / "run")
    score = result.scores["test"]
    assert isinstance(score, Score)
    assert score.accuracy == 100


def test_a_resumed_run_is_the_same_bit_for_bit(graph: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "graph": str(graph), "r_drop": 0.5, "laplacian": 2}
    regard.train(settings, out=tmp_path / "whole")

    def stop(loop: Any) -> None:
        if loop.progress.step == 4:
            loop.request_stop()

    with pytest.raises(TrainingInterrupted):
        regard.train(settings, out=tmp_path / "parts", on_step=stop)
    resume(tmp_path / "parts")
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"graph": None}, "learns from graphs"),
        ({"objective": "classify", "model": "bert"}, "not from `graph`"),
        ({"text": "a.txt"}, "not from `text`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], problem: str) -> None:
    values = {**QUICK, "objective": "nodes", "graph": "folder", **changes}
    with pytest.raises(SettingError, match=problem):
        loading.load(None, {key: value for key, value in values.items() if value is not None})


def test_labels_of_another_level_are_refused(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="labels for nodes"):
        regard.train({**QUICK, "objective": "graphs"}, graph=str(graph), out=tmp_path / "run")


def test_only_graphs_have_neighbours() -> None:
    with pytest.raises(SettingError, match="NeighbourMask and ShortestPathBias need graphs"):
        presets.preset("bert:tiny", attention="neighbours")
