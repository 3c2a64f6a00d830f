"""The path of tokens through one layer: the vectors at every station, for a few tokens.

Stations are probes, and where the residual stream stands after each sublayer. A vector is shown by
some of its numbers, as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.core.block import Block, ParallelBlock
from regard.core.mixers.explicit_attention import AdditiveAttention
from regard.core.mixers.linear_attention import LinearAttention
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.probe import AttentionCall
from regard.core.residual import PostNorm, PreNorm, SandwichNorm
from regard.core.stack import Stack
from regard.look import Look
from regard.look.recording import array, rounded
from regard.look.result import to_json
from regard.studio.layers import layer_guesses
from regard.wirings.baselines import additive_attention as baseline_attention

NUMBERS = 24  # of a vector that are shown
ROWS = 28  # tokens that are shown

NormPlacement = Literal["pre", "post", "parallel", "none"]

# ------------------------------------------------------------------ what a layer is made of


def norm_placement(stack: nn.Module) -> NormPlacement:
    """Where the norms of a block stand: before each sublayer, after the sum, or one for both."""
    if not isinstance(stack, Stack):
        return "none"
    block = stack.block(0)
    if isinstance(block, ParallelBlock):
        return "parallel"
    if not isinstance(block, Block):  # reversible blocks have their norms inside
        return "pre"
    match next(iter(block.residual.each)):
        case PreNorm() | SandwichNorm():
            return "pre"
        case PostNorm():
            return "post"
        case _:
            return "none"  # sublayers without residual connections


def chosen_rows(count: int, marked: int | None) -> list[int]:
    """Evenly spaced positions, with the marked one and the last one always among them."""
    # [0, count) itself where all fit.
    shown = min(count, ROWS)
    rows = {round(i * (count - 1) / max(1, shown - 1)) for i in range(shown)}
    if marked is not None:
        rows.add(min(marked, count - 1))
    return sorted(rows)


# ------------------------------------------------------------------ the path


def token_path(run: Look, stack: str, layer: int, head: int, marked: int | None) -> dict[str, Any]:
    """The vectors of some tokens at every station of a layer, and the weights of one head."""
    rows, columns = _axes(run, stack, layer, marked)
    stations = {name: _strip(values) for name, values in _sums(run, stack, layer, rows).items()}
    # Vectors of a probe, at the positions that its rows stand for.
    for name in _stations(run, stack, layer):
        attention, _, part = name.rpartition(".")
        positions = rows
        # Keys and values of cross-attention have the rows of the memory.
        if part in ("k", "v") and attention.endswith(".cross"):
            positions = columns
        values = run.tensor(name)[0]
        if attention in run.probe.attentions:
            values = _of_head(values, head, run.call(attention).q.shape[1])
        stations[name] = _strip(_vectors(values, positions))

    weights = {}
    for kind in ("self", "cross"):
        name = f"{stack}.{layer}.{kind}"
        if name in run.probe.attentions:
            weights[name] = _weights(run, name, head, rows, columns if kind == "cross" else rows)
    return {
        "stack": stack,
        "layer": layer,
        "stations": stations,
        "weights": weights,
        "words": layer_guesses(run, stack, rows),
        **_labels(run, stack, rows, columns),
    }


def _axes(run: Look, stack: str, layer: int, marked: int | None) -> tuple[list[int], list[int]]:
    """The positions shown of the stack itself, and of what its cross-attention reads."""
    rows = chosen_rows(run.tensor(f"{stack}.embedded").shape[1], marked)
    # Only a decoder and a memory network have one.
    cross = run.probe.attentions.get(f"{stack}.{layer}.cross")
    columns = [] if cross is None else chosen_rows(cross.k.shape[2], None)
    return rows, columns


def _stations(run: Look, stack: str, layer: int) -> list[str]:
    """The recorded probes of vectors that this layer has, in forward order."""
    prefix = f"{stack}.{layer}."
    around = (f"{stack}.embedded", f"{stack}.output")
    # What the layer reads; of the first one that is the embedding.
    before = f"{stack}.{layer - 1}.residual"
    names = [name for name in run.names if name.startswith(prefix) or name in (*around, before)]
    return [name for name in names if not name.endswith(".weights")]


def _of_head(values: Tensor, head: int, heads: int) -> Tensor:
    """One query head's part of [H or G, T, K]; what has no heads stays as it is."""
    if values.ndim < 3:
        return values
    # Grouped keys and values (G < H) are shared by neighbouring query heads.
    return values[min(head, heads - 1) * len(values) // heads]


def _vectors(values: Tensor, positions: Sequence[int]) -> Tensor:
    """[positions, D] of what passes a station."""
    if values.ndim == 1:  # the output of a memory network is one vector
        values = values[None]
    shown = [i for i in positions if i < len(values)] or [0]
    return values[shown].float()


def _sums(run: Look, stack: str, layer: int, rows: Sequence[int]) -> dict[str, Tensor]:
    """The residual stream after each sublayer but the last, whose sum is the layer's output."""
    placement = norm_placement(run.model.model.stacks()[stack])
    names = set(run.names)
    if placement not in ("pre", "post") or f"{stack}.{layer}.self.output" not in names:
        return {}
    stream = f"{stack}.{layer - 1}.residual" if layer else f"{stack}.embedded"
    x = run.tensor(stream)[0]
    sums = {}
    for kind in ("self", "cross"):
        output = f"{stack}.{layer}.{kind}.output"
        if output not in names:
            continue
        x = x + run.tensor(output)[0]
        if placement == "post":
            # The norm of the sum is what the next sublayer reads.
            following = "feedforward"
            if kind == "self" and f"{stack}.{layer}.cross.output" in names:
                following = "cross"
            x = run.tensor(f"{stack}.{layer}.{following}.input")[0]
        sums[f"{stack}.{layer}.{kind}.sum"] = _vectors(x, rows)
    return sums


def _strip(values: Tensor) -> dict[str, Any]:
    """Some numbers of each vector, evenly spaced, with its length and its largest number."""
    # values: [rows, D]
    width = values.shape[-1]
    index = torch.linspace(0, width - 1, min(NUMBERS, width)).round().long()
    return {
        "width": width,
        "values": rounded(values[:, index], 3),
        "norms": rounded(values.norm(dim=-1), 3),
        "largest": float(values.abs().max()),
    }


def _weights(
    run: Look, name: str, head: int, rows: Sequence[int], columns: Sequence[int]
) -> dict[str, Any]:
    """The weights of one head between the positions shown, and their shades."""
    call = run.call(name)
    number = min(head, call.q.shape[1] - 1)
    queries = [i for i in rows if i < call.q.shape[2]]
    shown = run.attention(name, rows=queries, heads=[number])
    weights = shown.weights[0][:, list(columns)]  # [rows, columns]
    shades = shown.shades()[0][:, list(columns)]
    return {
        "heads": call.q.shape[1],
        "head": number,
        "values": rounded(weights, 4),
        "shades": rounded(shades, 4),
        "formula": weights_formula(call),
    }


def weights_formula(call: AttentionCall) -> str:
    """The definition of an attention's weights; B is what positions add to the scores."""
    scores = "Q Kᵀ / √d"
    match call.mixer:
        case AdditiveAttention() | baseline_attention.AdditiveAttention():
            scores = "wᵀ tanh(Q + K)"
        case LinearAttention():
            return "A = φ(Q) φ(K)ᵀ, each row divided by its sum"
        case SoftmaxAttention(scale=scale, cap=cap):
            width = call.q.shape[-1]
            if scale == 1.0:
                scores = "Q Kᵀ"
            elif not math.isclose(scale, width**-0.5, rel_tol=1e-4):
                scores = f"{scale:.3g} · Q Kᵀ"
            if cap is not None:
                scores = f"{cap:g} · tanh({scores} / {cap:g})"
    bias = " + B" if call.bias is not None else ""
    return f"A = softmax({scores}{bias} + mask)"


def attention_scores(run: Look, name: str, head: int, rows: Sequence[int]) -> dict[str, Any] | None:
    """The way from some queries to their weights: q·k, times the scale, plus the bias, softmax.

    None of a kernel that is no softmax over all visible keys.
    """
    call = run.call(name)
    mixer = call.mixer
    if not isinstance(mixer, SoftmaxAttention) or not mixer.is_plain:
        return None
    # Global queries of Longformer have projections of their own.
    if call.global_call is not None:
        return None
    _, heads, queries, width = call.q.shape
    head = min(head, heads - 1)
    shown = list(dict.fromkeys(min(row, queries - 1) for row in rows))
    keys = _of_head(call.k[0], head, heads).float()  # [S, K]
    dots = call.q[0, head, shown].float() @ keys.mT  # [R, S]
    visible = call.visible(torch.tensor(shown, device=call.q.device))[0]  # [H or 1, R, S]
    visible = visible[min(head, len(visible) - 1)].expand(dots.shape)
    bias = None
    if call.bias is not None:
        every_head = call.bias.tensor(call.mask)[0]  # [H, T, S]
        bias = to_json(array(every_head[head, shown].float()))
    return {
        "width": width,
        "scale": mixer.scale,
        "dots": to_json(array(dots)),
        "bias": bias,
        "visible": visible.tolist(),
        "weights": to_json(run.weights(name, shown, [head])[0]),
    }


def _labels(run: Look, stack: str, rows: Sequence[int], columns: Sequence[int]) -> dict[str, Any]:
    inputs = run.model_inputs
    tokens = inputs.queries_of(stack)
    read: Tensor | None = inputs.inputs
    # Behind an encoder, a decoder reads the target; alone, it reads the input.
    if stack == "decoder" and inputs.decoder_tokens:
        read = inputs.decoder_inputs
    if stack == "memory":
        tokens = tokens[-1:]  # the question; the story is what it looks at
    return {
        "rows": [[i, tokens[i] if i < len(tokens) else str(i)] for i in rows],
        "ids": _token_ids(read, rows),
        "columns": [[i, inputs.input_tokens[i]] for i in columns if i < len(inputs.input_tokens)],
        "count": run.tensor(f"{stack}.embedded").shape[1],
    }


def _token_ids(read: Tensor | None, rows: Sequence[int]) -> list[int] | None:
    """The numbers of the tokens in the vocabulary; None where no tokens are read."""
    # Sentences of a story are rows of token ids: [1, sentences, words].
    if read is None or read.is_floating_point() or read.ndim != 2:
        return None
    ids: list[int] = read[0].tolist()
    return [ids[i] for i in rows] if max(rows) < len(ids) else None
