"""Evaluation of graph models: the classes of nodes, or of graphs."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.graphs import GraphData
from regard.evaluation.classification import check_labels
from regard.evaluation.task import Outputs, Settings
from regard.models import GraphModel
from regard.system.errors import DataError


def rank_graph_classes(
    model: GraphModel, examples: Sequence[GraphData], settings: Settings
) -> Outputs:
    """The classes of labelled nodes or graphs, likeliest first: of the split `test`, if there is
    one, otherwise of all."""
    rankings = []
    references = []
    names = model.labels
    for data in examples:
        # A file with splits was used for training: only its test split is evaluated.
        rows = data.rows("test") or [i for i, label in enumerate(data.labels) if label]
        if not rows:
            raise DataError("the graph data has no labels", "add labels to the data")
        order = model.logits(data)[rows].argsort(dim=-1, descending=True, stable=True)
        rankings += [[names[i] for i in row] for row in order.tolist()]
        references += [data.labels[row] for row in rows]
    check_labels(references, names)
    return Outputs(rankings, references)
