"""Weight tying: the language-model head shares the table of the embedding (Press and Wolf 2017)."""

from __future__ import annotations

from regard import spec
from regard.core import embedding


def output_table(
    model: spec.Encoder | spec.Decoder | spec.RecurrentDecoder, table: embedding.Table, width: int
) -> embedding.Table:
    """The table of the language-model head: tied to the embedding, or one of its own."""
    if model.tied or model.head is None:
        return table
    if model.head.transform is not None:
        width = model.head.transform.width  # the transform's output is what the table multiplies
    return embedding.Table(len(table.weight), width)
