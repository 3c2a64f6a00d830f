"""QK and OV circuits of attention heads, composition between them, and induction heads.

Definitions as in "A Mathematical Framework for Transformer Circuits" (Elhage et al. 2021) and in
TransformerLens, for row vectors: a head's scores are x W_QK xᵀ and it adds A x W_OV to the stream.
Biases, norms and rotary positions are left out.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.linalg import matrix_norm

from regard.core.attention import Attention
from regard.core.block import AnyBlock
from regard.core.projection import SelfProjection
from regard.core.stack import Stack
from regard.system.errors import ModelError


class HeadCircuits(NamedTuple):
    """The circuits of all heads of a stack: L layers, H heads, width D of the stream."""

    qk: Tensor  # [L, H, D, D]: W_Q W_Kᵀ
    ov: Tensor  # [L, H, D, D]: W_V W_O


@torch.no_grad()
def head_circuits(stack: Stack) -> HeadCircuits:
    """The QK and OV circuits of a stack's self-attention."""
    qk = []
    ov = []
    for block in stack.blocks:
        assert isinstance(block, AnyBlock)
        q, k, v, o = head_weights(block.attention)
        qk.append(q @ k.mT)
        ov.append(v @ o)
    return HeadCircuits(torch.stack(qk), torch.stack(ov))


def head_weights(attention: Attention) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_Q, W_K, W_V [H, D, K] and W_O [H, K, D] of each head."""
    project = attention.project
    if not isinstance(project, SelfProjection) or project.groups != project.heads:
        raise ModelError(
            "QK and OV circuits need separate queries, keys and values for each head",
            "use a model without grouped or shared projections",
        )
    heads = project.heads
    q, k, v = project.qkv.weight.split(project.qkv.parts)  # [H·K, D] each
    o = attention.output.weight  # [D, H·E]
    return (
        q.unflatten(0, (heads, -1)).mT,
        k.unflatten(0, (heads, -1)).mT,
        v.unflatten(0, (heads, -1)).mT,
        o.mT.unflatten(0, (heads, -1)),
    )


@torch.no_grad()
def composition_scores(circuits: HeadCircuits, mode: Literal["Q", "K", "V"]) -> Tensor:
    """How much each head reads what an earlier one writes: [L, H, L, H] of writer and reader.

    ‖W_OV M‖ / (‖W_OV‖ ‖M‖) by Frobenius norms, with M the reader's W_QK for queries, its transpose
    for keys, and its W_OV for values; 0 where the reader is not in a later layer.
    """
    readers = {"Q": circuits.qk, "K": circuits.qk.mT, "V": circuits.ov}[mode]
    writers = circuits.ov
    layers, heads = writers.shape[:2]
    scores = torch.zeros(layers, heads, layers, heads, dtype=writers.dtype)
    for writer in range(layers):
        for reader in range(writer + 1, layers):
            # [H, 1, D, D] @ [1, H, D, D]
            products = writers[writer, :, None] @ readers[reader, None]
            norms = matrix_norm(writers[writer])[:, None] * matrix_norm(readers[reader])[None]
            scores[writer, :, reader] = matrix_norm(products) / norms
    return scores


# ------------------------------------------------------------------ attention patterns


def induction_scores(weights: Tensor, period: int) -> Tensor:
    """Induction scores of heads on a text that repeats after `period` tokens: [H].

    The mean attention from each token to the one after its last occurrence, `period` − 1 before it
    (Olsson et al. 2022). `weights` is [B, H, T, T].
    """
    return weights.diagonal(1 - period, dim1=-2, dim2=-1).mean(dim=(0, -1))


def previous_token_scores(weights: Tensor) -> Tensor:
    """The mean attention of heads [B, H, T, T] to the token before: [H]."""
    return weights.diagonal(-1, dim1=-2, dim2=-1).mean(dim=(0, -1))
