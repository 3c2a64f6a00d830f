"""Longformer's global attention: some tokens attend to everything, with projections of their own
(Beltagy et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.attention import Attention
from regard.core.caches.kv_cache import Cache
from regard.core.context import LayerContext
from regard.core.heads.head import before_separator, question_ends
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask, anchor
from regard.core.masks.mask import NO_MASK, Call, MaskPattern
from regard.core.masks.sparse_masks import GlobalMask, GlobalTokenMask
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention, attention_weights
from regard.core.positions.position_terms import NO_POSITION, LayerPosition, PositionTerms
from regard.core.projection import Memory, Projection, SelfProjection, per_query_head


@dataclass(frozen=True)
class GlobalTokens(MaskPattern):
    """A local pattern, and global tokens with projections of their own: those that a call names,
    or `default`."""

    local: MaskPattern
    default: spec.GlobalTokens | None = None

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.local.causal

    @property
    def max_lookback(self) -> int | None:  # type: ignore[override]
        return self.local.max_lookback

    @property
    def waits_for_device(self) -> bool:  # type: ignore[override]
        return isinstance(self.default, spec.QuestionTokens)  # to count them

    def bind(self, call: Call) -> MaskPattern:
        local = anchor(self.local.bind(call), call)
        if call.global_tokens is not None:
            return _with_global_tokens(local, call.global_tokens)
        positions = torch.arange(call.length, device=call.device)
        tokens = call.inputs.get("inputs")
        match self.default:
            case spec.FirstTokens(count):
                which = (positions < count).expand(call.rows, -1)
                return GlobalPattern(local | GlobalMask(count), which, min(count, call.length))
            case spec.QuestionTokens(separator, answers=True) if tokens is not None:
                behind = positions > question_ends(tokens, separator) + 1
                return _with_global_tokens(local, behind)
            case spec.QuestionTokens(separator) if tokens is not None:
                return _with_global_tokens(local, before_separator(tokens, separator))
            case _:
                return local


def _with_global_tokens(local: MaskPattern, which: Tensor) -> GlobalPattern:
    # As queries they are not in the mask: their rows are replaced after the kernel.
    return GlobalPattern(local | GlobalTokenMask(which, keys_only=True), which)


class GlobalPattern(MaskPattern):
    """A local pattern with global tokens as keys, which knows which tokens are global.

    `local` is what ordinary tokens see, global keys included; `visible` what is no padding. `most`
    is the largest number of global tokens in a row, where it is known without asking the device.
    """

    per_row = True
    names_global_tokens = True

    def __init__(
        self,
        local: MaskPattern,
        which: Tensor,
        most: int | None = None,
        visible: MaskPattern = NO_MASK,
    ) -> None:
        self.local = local
        self.visible = visible
        self.which = which  # [B, S] bool
        self.most = most

    def __and__(self, other: MaskPattern) -> GlobalPattern:
        """What is hidden from all is hidden from global tokens too."""
        return GlobalPattern(self.local, self.which, self.most, self.visible & other)

    @property
    def anchored(self) -> bool:  # type: ignore[override]
        return self.local.anchored

    @property
    def stride(self) -> int:  # type: ignore[override]
        return self.local.stride

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        local = self.local.allows(batch, head, query, key)
        return local & self.visible.allows(batch, head, query, key)

    def reach(self, low: int, high: int) -> list[tuple[int, int]]:
        return self.local.reach(low, high)

    def outline(self) -> MaskPattern:
        return self.local.outline() & self.visible.outline()


class GlobalProjection(nn.Module):
    """The second set of projections, with which global tokens attend to everything."""

    def __init__(self, project: SelfProjection, mixer: SoftmaxAttention) -> None:
        super().__init__()
        self.project = project
        self.mixer = mixer

    def forward(
        self, x: Tensor, out: Tensor, pattern: GlobalPattern, mask: AttentionMask,
        context: LayerContext,
    ) -> Tensor:  # fmt: skip
        """out [B, H, T, E] with the rows of the global tokens replaced."""
        # [B, H, T, K], [B, G, S, K], [B, G, S, E]
        q, k, v = self.project(x, None)
        everything = AttentionMask(pattern.visible, mask.queries, mask.keys, mask.batch)
        context.probe.attention(self.mixer, (q, k, v), everything, global_rows=pattern.which)
        which = pattern.which
        count = pattern.most if pattern.most is not None else int(which.sum(dim=1).max())
        # The global tokens of each row first; rows with fewer of them have others at the end.
        index = which.long().argsort(dim=1, descending=True, stable=True)[:, :count]  # [B, count]
        batch = torch.arange(len(x), device=x.device)[:, None, None, None]
        head = torch.zeros_like(batch[:1])
        rows = index[:, None, :, None]  # [B, 1, count, 1]
        allowed = pattern.visible.allows(batch, head, rows, mask.keys)
        allowed = allowed.expand(len(x), 1, count, k.shape[2])  # [B, 1, count, S]
        global_q = q.take_along_dim(rows, dim=2)  # [B, H, count, K]
        weights = attention_weights(global_q, k, allowed, self.mixer.scale)  # [B, H, count, S]
        dropout = self.mixer.dropout * self.training
        found = functional.dropout(weights, dropout) @ per_query_head(v, q.shape[1])
        rows = rows.expand_as(found)  # [B, H, count, E]
        # Rows that only fill up to `count` keep what local attention found.
        is_global = which.gather(1, index)[:, None, :, None]
        replacement = torch.where(is_global, found.to(out.dtype), out.gather(2, rows))
        return out.scatter(2, rows, replacement)


class GlobalTokenAttention(Attention):
    """Attention whose global tokens, which the mask names, have projections of their own."""

    def __init__(
        self,
        project: Projection,
        mixer: SoftmaxAttention,
        output: Linear,
        global_: SelfProjection,
        position: LayerPosition = NO_POSITION,
    ) -> None:
        super().__init__(project, mixer, output, position)
        self.global_attention = GlobalProjection(global_, mixer)

    def attend(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Memory,
        cache: Cache,
    ) -> Tensor:
        out = super().attend(x, mask, positions, context, memory, cache)
        if not isinstance(mask.pattern, GlobalPattern):
            return out
        return self.global_attention(x, out, mask.pattern, mask, context.scope("global"))

    def keep(self, heads: Tensor) -> None:
        super().keep(heads)
        self.global_attention.project.keep(heads)
