"""The summary of a stack: its blocks, their attention and feed-forward, and the norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from regard import spec
from regard.show import wording
from regard.show.summary import ModuleSummary, ParameterCounts


def summarize_stack(
    name: str,
    part: spec.Stack,
    d_model: int,
    counts: ParameterCounts,
    length: str,
    memory: str = "",
) -> ModuleSummary:
    """`length` is the letter of the stack's positions, `memory` that of cross-attention's keys."""
    shape = f"[B, {length}, D]"
    children = []
    if part.position is not None:
        text = wording.position(part.position) + ", for all layers"
        # Shaw's and Transformer-XL's positions have parameters in every layer.
        positions = counts["position"] + _in_all_blocks(part, counts, "attention.relative")
        children.append(ModuleSummary("positions", text, "", positions))
    if part.memory is not None:  # Transformer-XL
        text = f"{part.memory:,} positions before a segment"
        if part.compressed is not None:
            text += f"; older ones: {wording.named(part.compressed)}"
        compression = _in_all_blocks(part, counts, "attention.compression")
        children.append(ModuleSummary("memory", text, "", compression))
    if part.universal is not None and part.universal.timing:
        text = "sinusoidal encodings of position and of step, added before each step"
        children.append(ModuleSummary("positions, steps", text, shape))
    if part.stages is not None:  # Swin
        children.append(_stages(part.stages, d_model, counts))
    children += _blocks(part, d_model, counts, length, memory)
    if part.universal is not None and part.universal.halts:
        # Adaptive computation time (Dehghani et al. 2019, Section 2.2).
        threshold = 1 - part.universal.least
        text = f"each position stops when its probabilities reach {threshold:g}: {d_model:,} → 1"
        children.append(ModuleSummary("halting", text, f"[B, {length}, 1]", counts["universal"]))
    if part.conv_layer is not None:  # DeBERTa v2
        activation = wording.activation(part.conv_layer.activation)
        text = f"norm(first block + {activation}(convolution over {part.conv_layer.width}))"
        children.append(ModuleSummary("beside block 1", text, shape, counts["conv_layer"]))
    if part.final is not None:
        text = wording.norm(part.final)
        children.append(ModuleSummary("last norm", text, shape, counts["final_norm"]))
    # What is left is no part of one layer: Linformer's shared projections.
    shared = counts.total - sum(child.parameters for child in children)
    return ModuleSummary(name, "", shape, shared, tuple(children))


def _stages(part: spec.Stages, d_model: int, counts: ParameterCounts) -> ModuleSummary:
    """What stages have between them, and where their layers attend."""
    sides = " → ".join(f"{side} × {side}" for side in part.sides)
    widths = " → ".join(f"{2**stage * d_model:,}" for stage in range(len(part.depths)))
    text = (
        f"{' + '.join(map(str, part.depths))} blocks on {sides} patches, {widths} wide; attention "
        f"in windows of {part.window} × {part.window} with a bias for each distance, every other "
        "layer's moved by half; 2 × 2 patches become one between stages"
    )
    return ModuleSummary("stages", text, "", counts["merges"])


def _in_all_blocks(part: spec.Stack, counts: ParameterCounts, module: str) -> int:
    # A block that all layers share is stored as blocks.0; the others then count nothing.
    return sum(counts[f"blocks.{i}.{module}"] for i in range(part.layers))


def _blocks(
    part: spec.Stack, d_model: int, counts: ParameterCounts, length: str, memory: str
) -> Iterator[ModuleSummary]:
    """One summary for all equal blocks, in the order of their first occurrence."""
    text = "; ".join(_block_notes(part))
    # How often training skips a block differs in every layer of a stage.
    blocks = tuple(replace(block, drop_path=part.block.drop_path) for block in part.blocks)
    for block, times in Counter(blocks).items():
        index = blocks.index(block)
        # The block of this group as the only one, with its own number of heads.
        stack = replace(
            part, block=block, alternating_blocks=(), heads=None, cross_heads=None, stages=None
        )
        block_counts = counts.under(f"blocks.{index}")
        width = d_model
        if part.stages is not None:
            width = block.attention.heads * block.attention.d_k
        sublayers = tuple(_block(stack, width, block_counts, length, memory))
        copies = 1 if part.shared else times  # ALBERT applies one block many times
        shape = f"[B, {length}, D]"
        own_parameters = 0 if block.layer_scale is None else block_counts["layer_scales"]
        yield ModuleSummary("block", text, shape, own_parameters, sublayers, times, copies)


def _block_notes(part: spec.Stack) -> Iterator[str]:
    if part.shared:
        yield "shared by all layers"
    if part.alternating_blocks:
        yield "alternates with others"
    if part.block.dropout:
        yield f"dropout {part.block.dropout:g}"


def _block(
    stack: spec.Stack, d_model: int, counts: ParameterCounts, length: str, memory: str
) -> Iterator[ModuleSummary]:
    """The sublayers of `stack.block` in their order, with the norms before or after them."""
    part = stack.block
    shape = f"[B, {length}, D]"
    sublayers = list(_sublayers(stack, d_model, counts, length, memory))
    norms = len(sublayers)
    if isinstance(part.residual, spec.Parallel):
        norms = part.residual.norms
    norm = ModuleSummary("norm", wording.norm(part.norm), shape, counts["residual"] // norms)
    match part.residual:
        case spec.Parallel():
            for i, sublayer in enumerate(sublayers):
                if i < norms:  # the norms come first: one for both sublayers, or one for each
                    yield norm
                yield sublayer
            yield ModuleSummary("add", "x + all of them, side by side", shape)
        case spec.PreNorm():
            for sublayer in sublayers:
                yield norm
                yield sublayer
                scaled = "" if part.layer_scale is None else "scale · "
                yield ModuleSummary("add", f"x + {scaled}sublayer(norm(x))", shape)
        case spec.PostNorm():
            text = f"norm(x + sublayer(x)): {norm.text}"
            for sublayer in sublayers:
                yield sublayer
                yield replace(norm, name="add & norm", text=text)
        case spec.NoResidual(place):
            for sublayer in sublayers:
                if place == "pre":
                    yield norm
                    yield sublayer
                else:
                    yield sublayer
                    yield norm
        case _:  # reversible: its norms are not shown apart
            yield from sublayers
            text = wording.named(part.residual)
            yield ModuleSummary("residual", text, shape, counts["residual"])


def _sublayers(
    stack: spec.Stack, d_model: int, counts: ParameterCounts, length: str, memory: str
) -> Iterator[ModuleSummary]:
    part = stack.block
    keys = wording.pattern(stack.pattern)
    if stack.position is not None:
        keys += ", positions as above"
    text = f"{wording.attention(part.attention)}; {keys}"
    steps = _attention(
        part.attention,
        d_model,
        counts.under("attention"),
        (length, length),
        wording.scores(part.attention, stack.position),
    )
    if counts["attention.bias"]:
        text = f"{text} in its window, with relative position bias"
    yield replace(steps, name="self-attention", text=text)
    if part.cross is not None:
        text = f"{wording.attention(part.cross)}; over the memory"
        steps = _attention(
            part.cross,
            d_model,
            counts.under("cross"),
            (length, memory),
            wording.scores(part.cross),
        )
        yield replace(steps, name="cross-attention", text=text)
    text = wording.feedforward(part.feedforward, d_model)
    yield ModuleSummary("feed-forward", text, f"[B, {length}, F]", counts["feedforward"])


def _attention(
    part: spec.Attention,
    d_model: int,
    counts: ParameterCounts,
    lengths: tuple[str, str],
    scores: str,
) -> ModuleSummary:
    """The steps of multi-head attention; `lengths` are the letters of queries and keys."""
    queries, keys = lengths
    key_heads = "H" if part.key_heads == part.heads else "G"  # grouped or multi-query
    value_width = "K" if part.d_v == part.d_k else "E"
    # q, k and v of self-attention lie in one matrix, whose first rows are the queries'.
    query_rows = part.heads * part.d_k
    query_count = query_rows * d_model
    if "q" in part.bias:
        query_count += query_rows
    key_value_count = counts["project"] - query_count
    joined = part.heads * part.d_v  # the width of all heads concatenated
    steps = (
        ModuleSummary(
            "queries",
            f"{d_model:,} → {part.heads} × {part.d_k}",
            f"[B, H, {queries}, K]",
            query_count,
        ),
        ModuleSummary(
            "keys, values",
            f"{d_model:,} → {part.key_heads} × {part.d_k} and {part.key_heads} × {part.d_v}",
            f"[B, {key_heads}, {keys}, {value_width}]",
            key_value_count,
        ),
        # Swin's bias of distances inside a window.
        ModuleSummary("weights", scores, f"[B, H, {queries}, {keys}]", counts["bias"]),
        ModuleSummary(
            "output",
            f"weights · v, heads joined: {joined:,} → {d_model:,}",
            f"[B, {queries}, D]",
            counts["output"],
        ),
    )
    # Longformer's second projections, those of distances in DeBERTa, of the length in Linformer.
    more = counts["global_attention"] + counts["position_project"]
    if not (isinstance(part.mixer, spec.Linformer) and part.mixer.share == "layers"):
        more += counts["mixer"]
    return ModuleSummary("attention", "", f"[B, {queries}, D]", more, steps)
