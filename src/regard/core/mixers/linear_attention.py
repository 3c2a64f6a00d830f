"""Linear attention: φ(q) φ(k)ᵀ instead of exp(q kᵀ), so that sums over keys are made once and not
for each query (Katharopoulos et al. 2020; Performer, Choromanski et al. 2021).

The cost grows with the length, not with its square, and the decoding cache is one sum of a fixed
size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.attention import Mixer
from regard.core.caches.kv_cache import Cache, CacheRoom, PrefixSumCache
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.seeding import generator
from regard.system import memory

# Random directions are drawn in float64, also on the meta device, and with them their factors.
_BYTES_PER_DIRECTION = 32
CHUNK = 64  # positions whose pairs are written out; sums are kept between chunks only


# ------------------------------------------------------------------ feature maps


class EluFeatures(nn.Module):
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020)."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.count = d_k

    def queries(self, q: Tensor) -> Tensor:
        return functional.elu(q) + 1

    def keys(self, k: Tensor, padding_mask: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
        return (functional.elu(k) + 1) * padding_mask, torch.zeros_like(exponent)


class FavorFeatures(nn.Module):
    """FAVOR+ (Performer): φ(x)ᵢ = exp(wᵢ·x − |x|²/2), whose products are exp(q·k) on average.

    Directions wᵢ are orthogonal in groups of d_k and as long as normal vectors are. Evaluation uses
    the first draw, training the one that `redraw` chose; both follow from `seed`, so none is
    stored.
    """

    first: Tensor
    drawn: Tensor

    def __init__(self, part: spec.FavorFeatures, d_k: int, scale: float) -> None:
        super().__init__()
        self.d_k = d_k
        # d ln d features suffice for uniform approximation (Choromanski et al., Theorem 4).
        self.count = part.count or math.ceil(d_k * math.log(d_k)) or 1
        self.seed = part.seed
        self.every = part.redraw
        memory.require_bytes(
            _BYTES_PER_DIRECTION * self.count * d_k,
            f"{self.count:,} random features of {d_k:,} dimensions",
            "give FavorFeatures a smaller `count`",
        )
        self.root = scale**0.5  # half of the scale goes to q, half to k
        first = directions(self.count, d_k, self.seed, 0)  # [F, K]
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("drawn", self.first.clone(), persistent=False)
        self.draw = 0

    def extra_repr(self) -> str:
        return f"features={self.count}, redraw_every={self.every}"

    def redraw(self, draw: int) -> None:
        """The directions of draw number `draw`, for training."""
        if draw != self.draw:
            # In place: a CUDA graph reads the buffer there.
            self.drawn.copy_(directions(self.count, self.d_k, self.seed, draw))
            self.draw = draw

    def queries(self, q: Tensor) -> Tensor:
        """Each query's features may have a scale of their own: weights are divided by their sum."""
        exponents = self._exponents(q)
        return (exponents - exponents.detach().amax(dim=-1, keepdim=True)).exp()

    def keys(self, k: Tensor, padding_mask: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
        """Features over e^m, and m, which is at least `exponent`: the largest of a head, so that
        nothing overflows."""
        exponents = self._exponents(k)
        visible = exponents.detach().masked_fill(~padding_mask, float("-inf"))
        most = torch.maximum(visible.amax(dim=(-1, -2), keepdim=True), exponent)
        most = most.masked_fill(most == float("-inf"), 0.0)
        features = (exponents - most).masked_fill(~padding_mask, float("-inf")).exp()
        return features, most

    def _exponents(self, x: Tensor) -> Tensor:
        # Choromanski et al. 2021, Lemma 1: features of q and k multiply to exp(q·k) on average.
        x = x * self.root
        directions = self.drawn if self.training else self.first
        return x @ directions.to(x).mT - x.square().sum(dim=-1, keepdim=True) / 2


def directions(count: int, d_k: int, seed: int, draw: int) -> Tensor:
    """[count, d_k]: groups of orthogonal vectors with the lengths of normal ones."""
    chance = generator(seed, draw)
    groups = -(-count // d_k)
    normal = torch.randn(groups, d_k, d_k, generator=chance, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(normal)
    # The algorithm chooses signs to round well; without those of R, directions would not be even.
    even = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    # only their lengths count: χ-distributed
    vectors = torch.randn(count, d_k, generator=chance, dtype=torch.float64, device="cpu")
    lengths = vectors.norm(dim=1, keepdim=True)
    return (even.mT.flatten(0, 1)[:count] * lengths).float()


def redraw(model: nn.Module, step: int) -> None:
    """Redraws random features, a function of the step; training calls it before each update."""
    for part in model.modules():
        if isinstance(part, FavorFeatures) and part.every:
            part.redraw(step // part.every)


Features = EluFeatures | FavorFeatures


# ------------------------------------------------------------------ the kernel


class LinearAttention(Mixer):
    """out_t = φ(q_t) Σ φ(k_s)ᵀ v_s / φ(q_t) Σ φ(k_s)ᵀ, over all tokens s, or those up to t."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.features = features

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
        causal, padding_mask = mask.causal_and_padding()
        # Sums over long texts need float32.
        with torch.autocast(q.device.type, enabled=False):
            # in decoding, k is of the new tokens only
            padding_mask = padding_mask[:, -k.shape[2] :]
            fq, fk, ones, total = self._features(q, k, v, padding_mask, cache)
            if causal:
                sums = _prefix_sums(fq, fk, ones, total)
            else:
                sums = fq @ (fk.mT @ ones)[:, :, None]  # [B, G, H/G, T, E + 1]
            if isinstance(cache, PrefixSumCache):
                cache.total = total + fk.mT @ ones
        weight = sums[..., -1:]  # the denominator: [B, G, H/G, T, 1]
        out = sums[..., :-1] / weight.masked_fill(weight == 0, 1.0)
        return out.flatten(1, 2).to(q.dtype)  # [B, H, T, E]

    def _features(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor, cache: Cache | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features of q [B, G, H/G, T, F] and k [B, G, S, F]; v with a column of ones, whose sums
        are the weights; and the sum of the past, to the scale of these features."""
        q, k, v = (x if x.dtype == torch.float64 else x.float() for x in (q, k, v))
        if isinstance(cache, PrefixSumCache):
            state = cache
        else:
            state = PrefixSumCache.empty(k, self.features.count, v.shape[-1])
        fk, exponent = self.features.keys(k, padding_mask[:, None, :, None], state.exponent)
        # The exponent never falls, so that this factor is at most 1.
        total = state.total * (state.exponent - exponent).exp()
        state.exponent = exponent
        ones = torch.cat([v, v.new_ones(*v.shape[:3], 1)], dim=-1)  # [B, G, S, E + 1]
        return self.features.queries(q).unflatten(1, (k.shape[1], -1)), fk, ones, total

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        """The effective weights, which `forward` never makes: [B, heads, rows, S]."""
        _, padding_mask = mask.causal_and_padding()
        fq, fk, _, _ = self._features(q, k, k, padding_mask, None)
        if heads is None:
            heads = torch.arange(q.shape[1], device=q.device)
        fk = fk[:, heads // (q.shape[1] // k.shape[1])]  # the key head of each query head's group
        weights = fq.flatten(1, 2)[:, heads][:, :, rows] @ fk.mT  # [B, heads, rows, S]
        weights = weights.masked_fill(~mask.for_rows(rows), 0.0)
        total = weights.sum(dim=-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0)

    def start(self, room: CacheRoom, shape: tuple[int, int, int]) -> PrefixSumCache:
        """An empty sum, for sequences of any length."""
        groups, _, d_v = shape
        like = room.like.new_empty(room.rows, groups, 0, 0)
        return PrefixSumCache.empty(like, self.features.count, d_v)


def _prefix_sums(fq: Tensor, fk: Tensor, v: Tensor, total: Tensor) -> Tensor:
    """Σ_{s ≤ t} φ(q_t)·φ(k_s) v_s: pairs inside a chunk are written out, what came before it is one
    sum [F, E]."""
    length = fk.shape[2]
    size = min(CHUNK, length)
    fq = _in_chunks(fq, size)  # [B, G, H/G, N, size, F]
    fk = _in_chunks(fk, size)[:, :, None]  # [B, G, 1, N, size, F]
    v = _in_chunks(v, size)[:, :, None]
    sums = fk.mT @ v  # [B, G, 1, N, F, E]
    # An exclusive prefix sum over the chunks: [B, G, 1, N, F, E]
    before = sums.cumsum(dim=3) - sums + total[:, :, None, None]
    inside = (fq @ fk.mT).tril() @ v  # [B, G, H/G, N, size, E]
    return (inside + fq @ before).flatten(3, 4)[:, :, :, :length]


def _in_chunks(x: Tensor, size: int) -> Tensor:
    """[.., T, F] → [.., N, size, F], filled up with zeros."""
    return functional.pad(x, (0, 0, 0, -x.shape[-2] % size)).unflatten(-2, (-1, size))
