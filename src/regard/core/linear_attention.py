"""Linear attention: φ(q) φ(k)ᵀ instead of exp(q kᵀ), so that sums over keys are made once and not for each query.

The cost grows with the length, not with its square, and what decoding remembers is one sum of a fixed size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.cache import Cache, PrefixSumCache
from regard.core.mask import AttentionMask
from regard.core.seeding import generator

CHUNK = 64  # places whose pairs are written out; sums are kept between chunks only


class EluFeatures(nn.Module):
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020)."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.count = d_k

    def queries(self, q: Tensor) -> Tensor:
        return functional.elu(q) + 1

    def keys(self, k: Tensor, padding_mask: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        return (functional.elu(k) + 1) * padding_mask, torch.zeros_like(least)


class FavorFeatures(nn.Module):
    """φ(x)ᵢ = exp(wᵢ·x − |x|²/2), whose products are exp(q·k) on average (Choromanski et al. 2021, FAVOR+).

    Directions wᵢ are orthogonal in groups of d_k and as long as normal vectors are. Evaluation uses the first draw, training
    the one that `redraw` chose; both follow from `seed`, so nothing of it needs to be stored.
    """

    first: Tensor
    drawn: Tensor

    def __init__(self, d_k: int, count: int, scale: float, seed: int, every: int) -> None:
        super().__init__()
        self.d_k, self.count, self.seed, self.every = d_k, count, seed, every
        self.root = scale**0.5  # half of the scale goes to q, half to k
        self.register_buffer("first", directions(count, d_k, seed, 0), persistent=False)  # [F, K]
        self.register_buffer("drawn", self.first.clone(), persistent=False)
        self.draw = 0

    def redraw(self, draw: int) -> None:
        """The directions of draw number `draw`, for training."""
        if draw != self.draw:
            self.drawn.copy_(
                directions(self.count, self.d_k, self.seed, draw)
            )  # in place: a recorded step reads it there
            self.draw = draw

    def queries(self, q: Tensor) -> Tensor:
        """Each query's features may have a scale of their own: weights are divided by their sum."""
        exponents = self._exponents(q)
        return (exponents - exponents.detach().amax(dim=-1, keepdim=True)).exp()

    def keys(self, k: Tensor, padding_mask: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        """Features over e^m, and m, which is at least `least`: the largest exponent of a head, so that nothing overflows."""
        exponents = self._exponents(k)
        most = (
            exponents.detach()
            .masked_fill(~padding_mask, float("-inf"))
            .amax(dim=(-1, -2), keepdim=True)
        )
        most = torch.maximum(most, least)
        most = most.masked_fill(most == float("-inf"), 0.0)
        return (exponents - most).masked_fill(~padding_mask, float("-inf")).exp(), most

    def _exponents(self, x: Tensor) -> Tensor:
        x = x * self.root
        return (
            x @ (self.drawn if self.training else self.first).to(x).mT
            - x.square().sum(dim=-1, keepdim=True) / 2
        )


def directions(count: int, d_k: int, seed: int, draw: int) -> Tensor:
    """[count, d_k]: groups of orthogonal vectors with the lengths of normal ones."""
    chance = generator(seed, draw)
    normal = torch.randn(
        -(-count // d_k), d_k, d_k, generator=chance, dtype=torch.float64, device="cpu"
    )
    turned, upper = torch.linalg.qr(normal)
    # The algorithm chooses signs to round well; without those of its other factor, directions would not be even.
    even = turned * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    lengths = torch.randn(count, d_k, generator=chance, dtype=torch.float64, device="cpu").norm(
        dim=1, keepdim=True
    )
    return (even.mT.flatten(0, 1)[:count] * lengths).float()


def redraw(model: nn.Module, step: int) -> None:
    """What training calls before each update: random features are a function of the step."""
    for part in model.modules():
        if isinstance(part, FavorFeatures) and part.every:
            part.redraw(step // part.every)


Features = EluFeatures | FavorFeatures


class LinearAttention(nn.Module):
    """The mixer: out_t = φ(q_t) Σ φ(k_s)ᵀ v_s / φ(q_t) Σ φ(k_s)ᵀ, over all real s, or those up to t."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.features = features

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: AttentionMask,
        past: Cache | None = None,
    ) -> Tensor:
        causal, padding_mask = attention_mask.factors()
        with torch.autocast(q.device.type, enabled=False):
            fq, fk, ones, total = self._featured(q, k, v, padding_mask[:, -k.shape[2] :], past)
            mixed = _prefix_sums(fq, fk, ones, total) if causal else fq @ (fk.mT @ ones)[:, :, None]
            if isinstance(past, PrefixSumCache):
                past.total = total + fk.mT @ ones
        weight = mixed[..., -1:]
        out = mixed[..., :-1] / weight.masked_fill(weight == 0, 1.0)
        return out.flatten(1, 2).to(q.dtype)

    def _featured(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor, past: Cache | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features of q [B, G, H/G, T, F] and k [B, G, S, F]; v with a column of ones, whose sums are the weights; and the
        sum of the past, to the scale of these features."""
        q, k, v = (x if x.dtype == torch.float64 else x.float() for x in (q, k, v))
        state = (
            past
            if isinstance(past, PrefixSumCache)
            else PrefixSumCache.empty(k, self.features.count, v.shape[-1])
        )
        fk, most = self.features.keys(k, padding_mask[:, None, :, None], state.most)
        total = state.total * (state.most - most).exp()
        state.most = most
        ones = torch.cat([v, v.new_ones(*v.shape[:3], 1)], dim=-1)
        return self.features.queries(q).unflatten(1, (k.shape[1], -1)), fk, ones, total

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        attention_mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
    ) -> Tensor:
        """The effective weights, which `forward` never makes."""
        _, padding_mask = attention_mask.factors()
        fq, fk, _, _ = self._featured(q, k, k, padding_mask, None)
        chosen = torch.arange(q.shape[1], device=q.device) if heads is None else heads
        fk = fk[:, chosen // (q.shape[1] // k.shape[1])]  # the key head of each query head's group
        weights = fq.flatten(1, 2)[:, chosen][:, :, rows] @ fk.mT
        weights = weights.masked_fill(~attention_mask.asked(rows), 0.0)
        total = weights.sum(dim=-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0)

    def start(
        self,
        like: Tensor,
        rows: int,
        capacity: int,
        shape: tuple[int, int, int],
        max_lookback: int | None,
    ) -> PrefixSumCache:
        """An empty sum for `rows` sequences of any length; `shape` is (G, K, E)."""
        groups, _, d_v = shape
        return PrefixSumCache.empty(like.new_empty(rows, groups, 0, 0), self.features.count, d_v)


def _prefix_sums(fq: Tensor, fk: Tensor, v: Tensor, total: Tensor) -> Tensor:
    """Σ_{s ≤ t} φ(q_t)·φ(k_s) v_s: pairs inside a chunk are written out, what came before it is one sum [F, E]."""
    length = fk.shape[2]
    size = min(CHUNK, length)
    fq, fk, v = (
        functional.pad(x, (0, 0, 0, -length % size)).unflatten(-2, (-1, size)) for x in (fq, fk, v)
    )
    fk, v = fk[:, :, None], v[:, :, None]  # [B, G, 1, N, size, ·], against [B, G, H/G, N, size, F]
    sums = fk.mT @ v  # [B, G, 1, N, F, E]
    before = sums.cumsum(dim=3) - sums + total[:, :, None, None]
    inside = (fq @ fk.mT).tril() @ v
    return (inside + fq @ before).flatten(3, 4)[:, :, :, :length]
