"""QK and OV circuits of attention heads, composition between them, and induction heads.

Definitions as in "A Mathematical Framework for Transformer Circuits" (Elhage et al. 2021) and in
TransformerLens, for row vectors: a head's scores are x W_QK xᵀ and it adds A x W_OV to the stream.
Biases, norms and rotary positions are left out.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.projection import SelfProjection
from regard.core.stack import Stack
from regard.system.errors import ModelError


class HeadCircuits(NamedTuple):
    """The weights of all heads of a stack: L layers, H heads, width D of the stream.

    Key heads that several query heads share (grouped-query attention) are repeated for each.
    """

    q: Tensor  # [L, H, D, K]
    k: Tensor  # [L, H, D, K]
    v: Tensor  # [L, H, D, E]
    o: Tensor  # [L, H, E, D]

    @property
    def qk(self) -> Tensor:
        """W_Q W_Kᵀ of each head: [L, H, D, D]."""
        return self.q @ self.k.mT

    @property
    def ov(self) -> Tensor:
        """W_V W_O of each head: [L, H, D, D]."""
        return self.v @ self.o


@torch.no_grad()
def head_circuits(stack: Stack) -> HeadCircuits:
    """The weights of a stack's self-attention, head by head."""
    blocks = [stack.block(number) for number in range(stack.layers)]
    each = [head_weights(block.attention) for block in blocks]
    return HeadCircuits(*(torch.stack(weights) for weights in zip(*each, strict=True)))


def head_weights(attention: Attention) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_Q, W_K, W_V [H, D, K] and W_O [H, K, D] of each head."""
    project = attention.project
    if not isinstance(project, SelfProjection):
        raise ModelError(
            "QK and OV circuits need queries, keys and values with matrices of their own",
            "use a model without tied or shared projections",
        )
    q, k, v = project.qkv.weight.split(project.qkv.parts)  # [H·K, D], [G·K, D], [G·E, D]
    o = attention.output.weight  # [D, H·E]
    shared = project.heads // project.groups  # by how many query heads a key head is
    return (
        q.unflatten(0, (project.heads, -1)).mT,
        k.unflatten(0, (project.groups, -1)).mT.repeat_interleave(shared, dim=0),
        v.unflatten(0, (project.groups, -1)).mT.repeat_interleave(shared, dim=0),
        o.mT.unflatten(0, (project.heads, -1)),
    )


Mode = Literal["Q", "K", "V"]


@torch.no_grad()
def composition_scores(circuits: HeadCircuits, mode: Mode) -> Tensor:
    """How much each head reads what an earlier one writes: [L, H, L, H] of writer and reader.

    ‖W_OV M‖ / (‖W_OV‖ ‖M‖) by Frobenius norms, with M the reader's W_QK for queries, its transpose
    for keys, and its W_OV for values; 0 where the reader is not in a later layer. Of matrices that
    have nothing to do with each other it is 1/√D.
    """
    q, k, v, o = circuits
    reads, gives = {"Q": (q, k.mT), "K": (k, q.mT), "V": (v, o)}[mode]  # M = reads @ gives
    layers, heads = q.shape[:2]
    scores = torch.zeros(layers, heads, layers, heads, dtype=q.dtype, device=q.device)
    # No product is larger than K × K: ‖A B C‖² = ⟨AᵀA B, B C Cᵀ⟩.
    before = v.mT @ v  # [L, H, E, E]
    after = gives @ gives.mT  # [L, H, K, K]
    writer_norms = _product_norm(before, o)
    reader_norms = _product_norm(reads.mT @ reads, gives)
    for writer in range(layers):
        for reader in range(writer + 1, layers):
            # [H, 1, E, D] @ [1, H, D, K]
            between = o[writer, :, None] @ reads[reader, None]
            squares = (before[writer, :, None] @ between) * (between @ after[reader, None])
            products = squares.sum(dim=(-2, -1)).clamp_min(0).sqrt()  # [H, H]
            norms = writer_norms[writer][:, None] * reader_norms[reader][None]
            scores[writer, :, reader] = products / norms
    return scores


def _product_norm(gram: Tensor, factor: Tensor) -> Tensor:
    """‖A B‖ of factors [L, H, K, D], where AᵀA is the `gram`: [L, H]."""
    return ((gram @ factor) * factor).sum(dim=(-2, -1)).clamp_min(0).sqrt()


@torch.no_grad()
def copying_scores(circuits: HeadCircuits, embedding: Tensor, unembedding: Tensor) -> Tensor:
    """Whether heads raise the logits of the tokens that they attend to: [L, H], from −1 to 1.

    Σλ / Σ|λ| over the eigenvalues λ of W_E W_OV W_U (Elhage et al. 2021), for tables [V, D].
    """
    # The eigenvalues of A B are those of B A, which is E × E instead of V × V.
    tables = unembedding.mT @ embedding  # [D, D]
    values = torch.linalg.eigvals((circuits.o @ tables @ circuits.v).double())  # [L, H, E]
    return values.real.sum(dim=-1) / values.abs().sum(dim=-1)


# ------------------------------------------------------------------ attention patterns


def induction_scores(weights: Tensor, period: int) -> Tensor:
    """Induction scores of heads on a text that repeats after `period` tokens: [H].

    The mean attention from each token to the one after its last occurrence, `period` − 1 before it
    (Olsson et al. 2022). `weights` is [B, H, T, T].
    """
    return weights.diagonal(1 - period, dim1=-2, dim2=-1).mean(dim=(0, -1))


def duplicate_token_scores(weights: Tensor, period: int) -> Tensor:
    """The mean attention of heads to the last occurrence of the token itself: [H]."""
    return weights.diagonal(-period, dim1=-2, dim2=-1).mean(dim=(0, -1))


def previous_token_scores(weights: Tensor) -> Tensor:
    """The mean attention of heads [B, H, T, T] to the token before: [H]."""
    return weights.diagonal(-1, dim1=-2, dim2=-1).mean(dim=(0, -1))
