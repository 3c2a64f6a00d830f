"""The attention mask of one call: a mask pattern laid over actual query and key positions.

It is made once per forward pass, outside the layers, and all layers of a stack share it. Kernels
ask it what they need: whether nothing is masked, whether it is exactly the causal mask, the boolean
tensor, or the non-empty blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.masks.mask import (
    And,
    Call,
    CausalMask,
    FullMask,
    MaskPattern,
    PaddingMask,
    padding_pattern,
)
from regard.core.masks.mask_blocks import BLOCK_SIZES, BlockGrid, Blocks, block_plan, plan_cost
from regard.core.masks.sparse_masks import GlobalTokenMask, ShiftedMask
from regard.system.errors import ModelError


class Span(NamedTuple):
    """The query positions `start`, `start` + `step`, …, as numbers on the host. The last key has
    the position of the last query."""

    start: int
    step: int = 1


class DeviceLimit(NamedTuple):
    """The causal limit of a decoding step of fixed shapes (CUDA graph).

    Keys after `position` [1], or [rows, 1] of each row, which only the device knows, are hidden.
    Each position has `columns` keys, one for each beam that shares the row.
    """

    position: Tensor
    columns: int = 1


class MaskAxes(NamedTuple):
    """The axes of an attention mask: the positions of its queries and of its keys."""

    queries: Tensor  # [T], or [rows, T] where rows are at different positions
    keys: Tensor | int  # [S], or their number, counted from position 0
    length: int  # positions so far, or all slots of a static cache
    rows: int  # of keys
    span: Span | None = None
    limit: DeviceLimit | None = None
    visible: MaskPattern = FullMask()  # hides beams that share a row from each other

    @classmethod
    def counted(cls, start: int, x: Tensor, first_key: int = 0) -> MaskAxes:
        """Those of the positions x [rows, T, D] from `start` on; keys are all from the first on."""
        rows, new = x.shape[:2]
        keys = torch.arange(first_key, start + new, device=x.device)
        # The very same tensor where all positions are new: kernels know the causal triangle by it.
        queries = keys if start == 0 else keys[-new:]
        return cls(queries, keys, start + new, rows, Span(start))


@dataclass(eq=False)
class AttentionMask:
    """Which query positions may attend to which key positions; True = may attend."""

    pattern: MaskPattern
    queries: Tensor  # [T], or [B, T] where rows are at different positions
    _keys: Tensor | int  # [S], or their number, counted from position 0
    batch: int = 1
    span: Span | None = None
    limit: DeviceLimit | None = None

    @classmethod
    def lay(cls, pattern: MaskPattern, call: Call, axes: MaskAxes) -> AttentionMask:
        """A pattern over the positions of a call, and what the batch adds to it."""
        bound = anchor(pattern.bind(call), call)
        if call.global_tokens is not None and not bound.names_global_tokens:
            bound = bound | GlobalTokenMask(call.global_tokens)
        # What no pattern may uncover: padding, other documents, other beams.
        visible = padding_pattern(call.padding_mask)
        if call.documents is not None:
            visible = visible & call.documents
        bound = bound & (visible & axes.visible)
        return cls(bound, axes.queries, axes.keys, axes.rows, axes.span, axes.limit)

    @cached_property
    def keys(self) -> Tensor:
        """Key positions [S]."""
        if isinstance(self._keys, int):
            return torch.arange(self._keys, device=self.queries.device)
        return self._keys

    # ------------------------------------------------------------------ masks without a tensor

    @cached_property
    def is_full(self) -> bool:
        """Whether nothing is masked; the last query of a causal sequence may attend to all keys."""
        if isinstance(self.pattern, FullMask):
            return True
        # A shape and not len(): exporters take the latter for a number that never changes.
        single = self.queries.shape[0] == 1
        return self.pattern == CausalMask() and self.span is not None and single

    @cached_property
    def is_causal(self) -> bool:
        """Plain causal mask (PyTorch's `is_causal`): queries and keys are the same positions."""
        # The same tensor, not an equal one: comparing values would wait for the GPU.
        return self.pattern == CausalMask() and self.queries is self._keys

    @property
    def is_bounded(self) -> bool:
        """Causal mask whose limit is a device tensor (CUDA graph)."""
        return self.limit is not None and self.pattern == CausalMask()

    @property
    def never_fully_masked(self) -> bool:
        """Whether surely no query is fully masked: in a decoding step each attends to itself."""
        return self.limit is not None

    # ------------------------------------------------------------------ as tensors

    @cached_property
    def allowed(self) -> Tensor:
        """[B or 1, H or 1, T or 1, S] bool; dimensions on which the pattern does not depend stay
        1."""
        return self.at_positions(self.queries)

    @cached_property
    def fully_masked(self) -> Tensor:
        """[B or 1, H or 1, T or 1, 1], True for queries that may attend to nothing."""
        return ~self.allowed.any(dim=-1, keepdim=True)

    def at_positions(self, queries: Tensor) -> Tensor:
        """The mask of some query positions only."""
        # [B or 1, H or 1, T or 1, S or 1]
        queries = queries.view(-1, 1, queries.shape[-1], 1)
        mask = self.between(queries, self.keys[None, None, None, :])
        return mask.expand(*mask.shape[:3], self.keys.shape[0])

    def for_rows(self, rows: Tensor) -> Tensor:
        """The mask of some query rows. In cross-attention, where one query position stands for all,
        any row is that one."""
        last = self.queries.shape[-1] - 1
        return self.at_positions(self.queries[..., rows.clamp_max(last)])

    def between(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The mask between positions shaped [.., 1, 1, T, 1] and [.., 1, 1, 1, S]."""
        # Indices that broadcast: [B, 1, 1, 1], and head 0 for all heads.
        batch = torch.arange(self.batch, device=self.keys.device)[:, None, None, None]
        head = torch.zeros_like(batch[:1])
        return self.pattern.allows(batch, head, queries, keys)

    def causal_and_padding(self) -> tuple[bool, Tensor]:
        """Whether the mask is causal, and the padding mask of the keys [B or 1, S], for kernels
        that take nothing else."""
        causal = False
        padding = torch.ones_like(self.keys, dtype=torch.bool)[None]  # [B or 1, S]
        # Walks through nested conjunctions; what an Or or a Not hides is not of this form.
        parts = [self.pattern]
        while parts:
            match parts.pop():
                case And(first, second):
                    parts += [first, second]
                case CausalMask():
                    causal = True
                case PaddingMask(mask):
                    padding = padding & mask[:, self.keys]
                case FullMask():
                    pass
                case other:
                    raise ModelError(
                        f"this attention does not support the mask {type(other).__name__}",
                        "use SoftmaxAttention",
                    )
        return causal, padding

    # ---------------------------------------------------------------- as blocks, for sparse kernels

    @cached_property
    def is_sparse(self) -> bool:
        """Whether the mask is so sparse that a block-sparse kernel is faster."""
        length = self.queries.shape[0]
        if isinstance(length, torch.SymInt):
            return False  # blocks follow from the length, and an exported graph has none
        if self.span is None or length <= 2 * min(BLOCK_SIZES):
            return False
        return self.stride > self.span.step or self.block_size is not None

    @property
    def stride(self) -> int:
        """Positions whose distance is no multiple of it never attend to each other."""
        return self.pattern.outline().stride

    @cached_property
    def block_size(self) -> int | None:
        """The cheapest block size for sparse kernels; None if dense attention is as good."""
        costs = []
        for size in BLOCK_SIZES:
            if 2 * size >= len(self.queries):
                continue
            plan = self.blocks(size)
            if plan is not None:
                costs.append((plan_cost(size, plan), size))
        if not costs:
            return None
        return min(costs)[1]

    def blocks(self, size: int) -> tuple[Blocks, ...] | None:
        """The blocks of `size` keys that each block of queries attends to; None if most."""
        return block_plan(self.pattern.outline(), size, self.grid, self.keys.device)

    @property
    def grid(self) -> BlockGrid:
        """The positions as numbers on the host."""
        assert self.span is not None
        return BlockGrid(
            first_query=self.span.start,
            queries=len(self.queries),
            # Keys end where queries end (`Span`): both lengths give the first key.
            first_key=self.span.start + self.span.step * (len(self.queries) - len(self.keys)),
            keys=len(self.keys),
            step=self.span.step,
        )

    def strided(self, stride: int, first: int) -> AttentionMask:
        """The queries `first`, `first` + stride, … and the keys at such distances from them."""
        assert self.span is not None
        start = self.span.start + first
        # From the first key whose distance to `start` is a multiple of the stride.
        keys = self.keys[(start - self.grid.first_key) % stride :: stride]
        queries = self.queries[first::stride]
        return AttentionMask(self.pattern, queries, keys, self.batch, Span(start, stride))


# query positions [T] or [B, T], key positions [S] → [B or 1, H, T, S]
Term = Callable[[Tensor, Tensor], Tensor]


def distances(queries: Tensor, keys: Tensor) -> Tensor:
    """How far each query [T] or [B, T] is behind each key [S]: [B or 1, 1, T, S]."""
    return queries.view(-1, 1, queries.shape[-1], 1) - keys


def anchor(pattern: MaskPattern, call: Call) -> MaskPattern:
    """A pattern that counts from the start of a row, begun where each row's tokens do."""
    if not pattern.anchored:
        return pattern
    if call.documents is not None:
        raise ModelError(
            "block and global masks do not support packed texts: "
            "they count from the start of the row",
            "put each text into a row of its own",
        )
    if call.padding_mask is None or not pattern.causal:
        return pattern
    return ShiftedMask(pattern, first_token(call.padding_mask)[:, 0])


def first_token(padding_mask: Tensor) -> Tensor:
    """[B, 1]: the position of the first token of each row, where left padding ends."""
    return padding_mask.long().argmax(dim=1, keepdim=True)


@dataclass(eq=False)
class ScoreBias:
    """A bias [B or 1, H, T, S] on the scores: as a tensor, or as the `term` that computes it for
    any positions.

    Sparse kernels ask the term for the few allowed pairs. Whatever is made for a whole
    mask is kept, because all layers of a stack share one bias.
    """

    _tensor: Tensor | None = None
    term: Term | None = None
    _additive: tuple[AttentionMask, Tensor] | None = None  # with the mask it is for

    @property
    def is_dense(self) -> bool:
        """Whether the tensor of all pairs is there already."""
        return self._tensor is not None

    def tensor(self, mask: AttentionMask) -> Tensor:
        """The bias of all pairs of the mask's positions: [B or 1, H, T, S]."""
        if self._tensor is not None:
            return self._tensor
        assert self.term is not None
        return self.term(mask.queries, mask.keys)

    def additive(self, mask: AttentionMask) -> Tensor:
        """The bias with −∞ where the mask hides a pair: what PyTorch's kernels take as a float
        mask."""
        if self._additive is None or self._additive[0] is not mask:
            hidden = ~mask.allowed
            self._additive = (mask, self.tensor(mask).masked_fill(hidden, float("-inf")))
        return self._additive[1]


def additive_mask(mask: AttentionMask, bias: ScoreBias | None) -> Tensor:
    """The mask argument of kernels: booleans, or the bias with −∞ at masked pairs."""
    return mask.allowed if bias is None else bias.additive(mask)
