"""Longformer's global attention: some tokens attend to everything, with projections of their own
(Beltagy et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.attention import Attention
from regard.core.attention_mask import AttentionMask
from regard.core.context import LayerContext
from regard.core.head import before_separator
from regard.core.linear import Linear
from regard.core.mask import MaskPattern
from regard.core.projection import Projection, SelfProjection, per_query_head
from regard.core.scaled_dot_product_attention import SoftmaxAttention, attention_weights


@dataclass(frozen=True)
class FirstTokens:
    """The first tokens of a row are global."""

    count: int

    def which(self, x: Tensor) -> Tensor:
        """[B, S], True at global tokens of the hidden states x [B, S, D]."""
        positions = torch.arange(x.shape[1], device=x.device)
        return (positions < self.count).expand(x.shape[:2])

    def of_ids(self, tokens: Tensor) -> None:
        """Nothing: where they are does not depend on the ids."""


@dataclass(frozen=True)
class QuestionTokens:
    """The tokens of a question are global, which ends at the first separator."""

    separator: int

    def of_ids(self, tokens: Tensor) -> Tensor:
        """[B, S], True at global tokens of the ids [B, S]."""
        return before_separator(tokens, self.separator)


class GlobalPattern(MaskPattern):
    """A local pattern with global tokens as keys, which knows which tokens are global.

    `local` is what ordinary tokens see, global keys included; `visible` what is no padding. `most`
    is the largest number of global tokens in a row, where it is known without asking the device.
    """

    per_row = True

    def __init__(
        self, local: MaskPattern, visible: MaskPattern, which: Tensor, most: int | None = None
    ) -> None:
        self.local = local
        self.visible = visible
        self.which = which  # [B, S] bool
        self.most = most

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
        allowed = pattern.visible.allows(batch, head, index[:, None, :, None], mask.keys)
        allowed = allowed.expand(len(x), 1, count, k.shape[2])  # [B, 1, count, S]
        rows = index[:, None, :, None].expand(-1, q.shape[1], -1, -1)  # [B, H, count, 1]
        global_q = q.gather(2, rows.expand(-1, -1, -1, q.shape[-1]))  # [B, H, count, K]
        weights = attention_weights(global_q, k, allowed, self.mixer.scale)  # [B, H, count, S]
        dropout = self.mixer.dropout if self.training else 0.0
        found = functional.dropout(weights, dropout) @ per_query_head(v, q.shape[1])
        rows = rows.expand_as(found)  # [B, H, count, E]
        # Rows that only fill up to `count` keep what local attention found.
        is_global = which.gather(1, index)[:, None, :, None]
        return out.scatter(
            2, rows, torch.where(is_global, found.to(out.dtype), out.gather(2, rows))
        )


class GlobalTokenAttention(Attention):
    """Attention whose global tokens have projections of their own.

    The caller of the model names them; `default` are those where it names none.
    """

    def __init__(
        self,
        project: Projection,
        mixer: SoftmaxAttention,
        output: Linear,
        global_: SelfProjection,
        default: FirstTokens | QuestionTokens | None = None,
    ) -> None:
        super().__init__(project, mixer, output)
        self.default = default
        self.global_attention = GlobalProjection(global_, mixer)

    def after_kernel(
        self, x: Tensor, out: Tensor, mask: AttentionMask, context: LayerContext
    ) -> Tensor:
        if not isinstance(mask.pattern, GlobalPattern):
            return out
        return self.global_attention(x, out, mask.pattern, mask, context.scope("global"))

    def keep(self, heads: Tensor) -> None:
        super().keep(heads)
        self.global_attention.project.keep(heads)


def counts_global_tokens(model: nn.Module) -> bool:
    """Whether a forward pass waits for the device to count the tokens of questions."""
    return any(
        isinstance(part, GlobalTokenAttention) and isinstance(part.default, QuestionTokens)
        for part in model.modules()
    )
