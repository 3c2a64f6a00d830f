"""Multi-head attention: projections → positions → state → mix → project (Section 3.2.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.cache import Cache, CrossKV, KVCache, SegmentMemory, StaticKVCache
from regard.core.chunked_attention import ChunkedAttention
from regard.core.compressive_memory import CompressiveMemory
from regard.core.linear import Linear, dimensions
from regard.core.linear_attention import LinearAttention as LinearMixer
from regard.core.linformer import Linformer
from regard.core.mask import AttentionMask
from regard.core.position import LayerPosition, RelativeSinusoids, Rope
from regard.core.probe import AttentionCall, Probe
from regard.core.softmax_attention import SoftmaxAttention, attention_weights, per_query_head


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·K] → [B, H, T, K]"""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


class SelfProjection(nn.Module):
    """Queries, keys and values of one sequence, in one matrix product."""

    def __init__(
        self, d_model: int, heads: int, groups: int, d_k: int, d_v: int, bias: str
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.d_k, self.d_v = heads, groups, d_k, d_v
        widths = (heads * d_k, groups * d_k, groups * d_v)
        self.qkv = Linear(
            d_model, sum(widths), bias=[letter in bias for letter in "qkv"], parts=widths
        )

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).split(self.qkv.parts, dim=-1)
        return split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)

    def keep(self, heads: Tensor) -> None:
        """Only these heads, with their keys and values."""
        seen = _seen(heads, self.heads, self.groups)
        self.qkv.keep_outputs(
            [dimensions(heads, self.d_k), dimensions(seen, self.d_k), dimensions(seen, self.d_v)]
        )
        self.heads, self.groups = len(heads), len(seen)


class CrossProjection(nn.Module):
    """Queries of one sequence; keys and values of another, or as they were remembered."""

    def __init__(
        self, d_model: int, heads: int, groups: int, d_k: int, d_v: int, bias: str
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.d_k, self.d_v = heads, groups, d_k, d_v
        widths = (groups * d_k, groups * d_v)
        self.q = Linear(d_model, heads * d_k, bias="q" in bias)
        self.kv = Linear(
            d_model, sum(widths), bias=[letter in bias for letter in "kv"], parts=widths
        )

    def remember(self, memory: Tensor) -> CrossKV:
        k, v = self.kv(memory).split(self.kv.parts, dim=-1)
        return CrossKV(split_heads(k, self.groups), split_heads(v, self.groups))

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> tuple[Tensor, Tensor, Tensor]:
        assert memory is not None, "cross-attention needs something to look at"
        seen = memory if isinstance(memory, CrossKV) else self.remember(memory)
        return split_heads(self.q(x), self.heads), seen.k, seen.v

    def keep(self, heads: Tensor) -> None:
        """Only these heads, with their keys and values."""
        seen = _seen(heads, self.heads, self.groups)
        self.q.keep_outputs([dimensions(heads, self.d_k)])
        self.kv.keep_outputs([dimensions(seen, self.d_k), dimensions(seen, self.d_v)])
        self.heads, self.groups = len(heads), len(seen)


def _seen(heads: Tensor, of: int, groups: int) -> Tensor:
    """The key heads that some of the heads look at: their own, or the one that all have in common."""
    assert groups in (1, of), "heads in groups cannot be told apart"
    return heads if groups == of else torch.arange(groups, device=heads.device)


class SharedProjection(nn.Module):
    """Values, and queries that are keys too: as keys their length is 1 (Kitaev et al. 2020)."""

    def __init__(
        self, d_model: int, heads: int, groups: int, d_k: int, d_v: int, bias: str
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.d_k, self.d_v = heads, groups, d_k, d_v
        widths = (heads * d_k, groups * d_v)
        self.qv = Linear(
            d_model, sum(widths), bias=[letter in bias for letter in "qv"], parts=widths
        )

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> tuple[Tensor, Tensor, Tensor]:
        q, v = self.qv(x).split(self.qv.parts, dim=-1)
        q = split_heads(q, self.heads)
        k = q * (q.square().sum(dim=-1, keepdim=True) + 1e-6 * self.d_k).rsqrt()
        return q, k, split_heads(v, self.groups)


class GlobalAttention(nn.Module):
    """Tokens that look at everything, with projections of their own (Beltagy et al. 2020, Longformer)."""

    def __init__(self, project: SelfProjection, mixer: SoftmaxAttention) -> None:
        super().__init__()
        self.project = project
        self.mixer = mixer

    def forward(
        self, x: Tensor, mixed: Tensor, attention_mask: AttentionMask, probe: Probe | None
    ) -> Tensor:
        """mixed [B, H, T, E] with the rows of these tokens replaced."""
        assert attention_mask.everywhere is not None
        which, hidden = attention_mask.everywhere
        q, k, v = self.project(x, None)
        if probe is not None:
            whole = AttentionMask(
                hidden, attention_mask.queries, attention_mask.keys, attention_mask.batch
            )
            probe.attended(AttentionCall(self.mixer, q, k, v, whole))
        few = int(which.sum(dim=1).max())
        places = which.long().argsort(dim=1, descending=True, stable=True)[
            :, :few
        ]  # [B, few], some of them none
        batch = torch.arange(len(x), device=x.device)[:, None, None, None]
        mask = hidden.allows(
            batch, torch.zeros_like(batch[:1]), places[:, None, :, None], attention_mask.keys
        )
        rows = places[:, None, :, None].expand(-1, q.shape[1], -1, -1)
        dropout = self.mixer.dropout if self.training else 0.0
        weights = attention_weights(
            q.gather(2, rows.expand(-1, -1, -1, q.shape[-1])),
            k,
            mask.expand(len(x), 1, few, k.shape[2]),
            self.mixer.scale,
        )
        out = functional.dropout(weights, dropout) @ per_query_head(v, q.shape[1])
        rows = rows.expand_as(out)
        padding_mask = which.gather(1, places)[:, None, :, None]
        return mixed.scatter(
            2, rows, torch.where(padding_mask, out.to(mixed.dtype), mixed.gather(2, rows))
        )


Projection = SelfProjection | CrossProjection | SharedProjection
Mixer = SoftmaxAttention | LinearMixer | Linformer | ChunkedAttention


class Attention(nn.Module):
    """One sequence looks at itself, at its past, or at a memory: the projection part decides."""

    def __init__(
        self,
        project: Projection,
        mixer: Mixer,
        output: Linear,
        rope: Rope | None = None,
        relative: LayerPosition | None = None,
        everywhere: GlobalAttention | None = None,
        compression: CompressiveMemory | None = None,
    ) -> None:
        super().__init__()
        self.project = project
        self.rope = rope
        self.mixer = mixer
        self.output = output
        self.relative = relative
        self.everywhere = everywhere
        self.compression = compression

    def forward(
        self,
        x: Tensor,
        attention_mask: AttentionMask,
        *,
        memory: Tensor | CrossKV | None = None,
        past: Cache | None = None,
        probe: Probe | None = None,
        losses: dict[str, Tensor] | None = None,
    ) -> Tensor:
        shape = x.shape
        shared = (
            memory.k
            if isinstance(memory, CrossKV)
            else past.k
            if isinstance(past, KVCache | StaticKVCache)
            else None
        )
        if shared is not None and shared.shape[0] != shape[0]:
            # Beams share their sentence's memory, and may share its past: they become query positions of the same row.
            x = x.reshape(shared.shape[0], -1, shape[-1])
        if isinstance(past, SegmentMemory):
            q, k, v = self._remembering(x, past, losses)
        else:
            q, k, v = self.project(x, memory)
        if self.rope is not None and attention_mask.angles is not None:
            q, k = (
                self.rope.rotate(q, attention_mask.angles),
                self.rope.rotate(k, attention_mask.angles),
            )
        if past is not None:
            k, v = past.extend(k, v)
        if attention_mask.relative is not None:
            assert isinstance(self.mixer, SoftmaxAttention), "other mixers have no scores to add to"
            attention_mask = attention_mask.biased(
                attention_mask.relative.scores(q, k, self.project) * self.mixer.scale
            )
        if self.relative is not None:
            assert isinstance(self.mixer, SoftmaxAttention), "other mixers have no scores to add to"
            q, scores = self.relative(q, attention_mask.queries, attention_mask.keys)
            attention_mask = attention_mask.biased(scores * self.mixer.scale)
        if probe is not None:
            probe.attended(AttentionCall(self.mixer, q, k, v, attention_mask))
        mixed = self.mixer(q, k, v, attention_mask, past)  # [B, H, T, E]
        if self.everywhere is not None and attention_mask.everywhere is not None:
            mixed = self.everywhere(
                x, mixed, attention_mask, probe.scope("global") if probe else None
            )
        if probe is not None:
            mixed = probe.through("mixed", mixed)
        return self.output(mixed.transpose(1, 2).flatten(-2)).view(shape)

    def _remembering(
        self, x: Tensor, past: SegmentMemory, losses: dict[str, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, and keys and values of what is remembered and of x, which is remembered then."""
        if past.k is None or past.v is None:
            q, k, v = self.project(torch.cat([past.x.to(x.dtype), x], dim=1), None)
            q = q[:, :, -x.shape[1] :]
        else:
            q, k, v = self.project(x, None)
            k, v = torch.cat([past.k, k], dim=2), torch.cat([past.v, v], dim=2)
        if self.compression is None:
            past.keep(x)
            return q, k, v
        left = self.compression.remember(past, x, k, v, self.project)
        if self.training and losses is not None:
            assert isinstance(self.mixer, SoftmaxAttention)
            apart = self.compression.loss(left, q, self.project, self.mixer.scale)
            losses["compression"] = losses.get("compression", apart.new_zeros(())) + apart
        return q, k, v

    @property
    def heads(self) -> int:
        return self.project.heads

    def keep(self, heads: Tensor) -> None:
        """Only these heads: what the others found is gone, as if it were zero, and their weights are no more."""
        assert not isinstance(self.project, SharedProjection), "hashes are drawn for each head"
        self.project.keep(heads)
        self.output.keep_inputs(dimensions(heads, self.project.d_v))
        if isinstance(self.relative, RelativeSinusoids):
            self.relative.keep(heads)
        if self.everywhere is not None:
            self.everywhere.project.keep(heads)

    @property
    def out_weight(self) -> Tensor:
        """[D, H·E]: what becomes of what the heads find."""
        return self.output.weight

    def start(self, rows: int, capacity: int, max_lookback: int | None, like: Tensor) -> Cache:
        """An empty past for `rows` sequences of at most `capacity` tokens, none of which looks more than `behind` back, in the
        precision and place of `like`."""
        part = self.project
        if self.compression is not None:
            room = self.compression.room
            k, v = (
                like.new_zeros(rows, part.groups, room, width) for width in (part.d_k, part.d_v)
            )
            padding_mask = torch.zeros(rows, room, dtype=torch.bool, device=like.device)
            return SegmentMemory(
                like.new_zeros(rows, room, self.compression.d_model), padding_mask, k, v
            )
        return self.mixer.start(
            like, rows, capacity, (part.groups, part.d_k, part.d_v), max_lookback
        )

    def remember(self, memory: Tensor) -> CrossKV:
        """The keys and values of `memory`, for all the steps that will look at it."""
        assert isinstance(self.project, CrossProjection), "self-attention has no memory"
        seen = self.project.remember(memory)
        return CrossKV(
            seen.k.contiguous(), seen.v.contiguous()
        )  # each head's places side by side, as they will be read
