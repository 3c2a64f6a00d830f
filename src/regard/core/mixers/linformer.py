"""Linformer: attention over fewer keys, whose length is projected (Wang et al. 2020)."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.attention import Mixer
from regard.core.caches.kv_cache import Cache
from regard.core.linear import normal
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.system.errors import DataError


class LengthProjection(nn.Module):
    """Maps `length` positions to `rank`: one matrix for each of the key heads, or one for all;
    another for values, or the same."""

    def __init__(self, part: spec.Linformer, key_heads: int) -> None:
        super().__init__()
        heads = key_heads if part.share == "none" else 1  # broadcast over the heads
        draw = partial(normal, heads, part.rank, part.length, std=part.rank**-0.5)
        # E and F of the paper: [heads, rank, length]
        self.keys = nn.Parameter(draw())
        # One matrix for keys and values where `both` or `layers` are shared: E = F.
        self.values = nn.Parameter(draw()) if part.share in ("none", "heads") else None

    def extra_repr(self) -> str:
        return f"length={self.keys.shape[2]}, rank={self.keys.shape[1]}"

    def forward(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """[B, G, S, ·] → [B, G, rank, ·]"""
        length = k.shape[2]
        most = self.keys.shape[-1]
        if length > most:
            raise DataError(
                f"the input has {length} positions, but Linformer was trained with at most {most}",
                "split the text into shorter lines, or train with a larger max_length "
                "(context, for language models)",
            )
        values = self.keys if self.values is None else self.values
        return self.keys[..., :length] @ k, values[..., :length] @ v


class Linformer(Mixer):
    """softmax(q (E k)ᵀ) F v. Padding counts as zeros, so it changes nothing."""

    def __init__(self, scale: float, dropout: float, lengths: LengthProjection) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout
        self.lengths = lengths

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AttentionMask,
        bias: ScoreBias | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[B, H, T, E]"""
        _, padding_mask = mask.causal_and_padding()
        is_token = padding_mask[:, None, :, None]
        k, v = self.lengths(k * is_token, v * is_token)  # [B, G, rank, ·]
        return functional.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout * self.training,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
