"""Graph Transformers: nodes that attend to their neighbours, or to all with Graphormer's biases."""

from __future__ import annotations

from functools import partial
from typing import Any

from regard import spec
from regard.families.preset_settings import PresetFamily, Settings, size

# Of our own: small enough for graphs with few labels. Attention along edges, as GAT's.
SIZES = {
    "tiny": size(2, 128, 4, d_ff=128),
    "small": size(4, 256, 8, d_ff=512),
}
DEFAULTS: Settings = {
    "features": 1433,  # of a node
    "task": "tag",  # classes of nodes; `classify`: of graphs
    "dropout": 0.3,
    "attention_dropout": 0.3,
    "feedforward_dropout": 0.0,
    "input_dropout": 0.7,
    "activation": "gelu",
    "degrees": 0,  # rows of the embedding of degrees
    "laplacian": 0,  # eigenvectors
    "distances": 0,  # shortest paths with a bias of their own
}
# Ying et al. 2021: every node attends to all, and the paths between them are told apart.
GRAPHORMER: Settings = {"degrees": 64, "distances": 8, "input_dropout": 0.0, "dropout": 0.1}


def _make(settings: Any, *, neighbours: bool = True) -> spec.Encoder:
    """The vocabulary are classes, and there is no context."""
    nodes = spec.NodeFeatures(
        settings["features"],
        input_dropout=settings["input_dropout"],
        dropout=settings["dropout"],
        degrees=settings["degrees"],
        laplacian=settings["laplacian"],
    )
    mixer = spec.SoftmaxAttention(settings["attention_dropout"])
    width = settings["d_k"]
    block = spec.Block(
        spec.Attention(settings["heads"], width, width, mixer=mixer),
        spec.FeedForward(settings["d_ff"], settings["activation"], settings["feedforward_dropout"]),
        residual=spec.PreNorm(),
        dropout=settings["dropout"],
    )
    pattern = spec.NeighbourMask() if neighbours else spec.FullMask()
    paths = settings["distances"]
    position = spec.ShortestPathBias(paths) if paths else None
    stack = spec.Stack.of(
        settings["layers"],
        block,
        pattern=pattern,
        position=position,
        final=block.norm,
    )
    # A node is classified by its own hidden state, a graph by the mean of its nodes.
    pool = None if settings["task"] == "tag" else spec.Pool("mean", None)
    head = spec.ClassifierHead(settings["vocabulary"], settings["task"])
    return spec.Encoder(settings["d_model"], nodes, stack, spec.heads(pool, head))


PRESETS = {
    "graph": PresetFamily("graph", _make, SIZES, DEFAULTS, 7, 1, "tiny"),
    "graphormer": PresetFamily(
        "graph", partial(_make, neighbours=False), SIZES, DEFAULTS | GRAPHORMER, 7, 1, "tiny"
    ),
}
