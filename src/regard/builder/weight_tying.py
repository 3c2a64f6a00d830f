"""Weight tying (Press and Wolf 2017): heads and sides that share the table of an embedding."""

from __future__ import annotations

from typing import NamedTuple

from regard import spec
from regard.core.frontends import embedding


def output_table(
    model: spec.Encoder | spec.RecurrentEncoder | spec.Decoder | spec.RecurrentDecoder,
    table: embedding.Table,
    width: int,
) -> embedding.Table:
    """The table of the language-model head: tied to the embedding, or one of its own."""
    if model.tied or model.head is None:
        return table
    if model.head.transform is not None:
        width = model.head.transform.width  # the transform's output is what the table multiplies
    return embedding.Table(len(table.weight), width)


class SharedTables(NamedTuple):
    """The tables [V, D] of an encoder–decoder; two of them, or all, may be one."""

    target: embedding.Table
    output: embedding.Table
    source: embedding.Table | None  # None: one of its own


def shared_tables(model: spec.EncoderDecoder | spec.SequenceToSequence) -> SharedTables:
    """One table for the target and the output, for source and target, or for all (Section 3.4)."""
    target = embedding.Table(model.target.vocabulary, model.d_model)
    output = target
    if model.share not in ("all", "target") and model.head is not None:
        output = embedding.Table(model.target.vocabulary, model.d_model)
    source = target if model.share in ("all", "inputs") else None
    return SharedTables(target, output, source)
