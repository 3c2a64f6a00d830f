"""Several feed-forward networks, of which a router asks a few for each place (Shazeer et al. 2017, Fedus et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.core.feedforward import FeedForward, GatedFeedForward
from regard.core.linear import Linear
from regard.core.probe import Probe


class MixtureOfExperts(nn.Module):
    """Each place goes to the `top` experts of the highest probability, and is answered with their outputs by these shares.

    In training an expert takes `capacity` times its even share of the batch; first choices come before second ones, and
    what comes too late is dropped: the residual alone goes on. Evaluation drops nothing, so that what a place gets does not
    depend on its neighbours.
    """

    def __init__(
        self,
        d_model: int,
        experts: Sequence[FeedForward | GatedFeedForward],
        *,
        top: int,
        capacity: float,
        balance: float,
    ) -> None:
        super().__init__()
        self.router = Linear(d_model, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.top, self.capacity, self.balance = top, capacity, balance

    def forward(
        self, x: Tensor, losses: dict[str, Tensor] | None = None, probe: Probe | None = None
    ) -> Tensor:
        places = x.reshape(-1, x.shape[-1])  # [N, D]
        probabilities = torch.softmax(self.router(places).float(), dim=-1)  # [N, E]
        share, chosen = probabilities.topk(self.top, dim=-1)  # [N, top]
        # Of one expert the probability itself counts, or nothing would teach the router.
        share = share if self.top == 1 else share / share.sum(dim=-1, keepdim=True)
        asked = nn.functional.one_hot(
            chosen.T.flatten(), len(self.experts)
        )  # [top · N, E], first choices first
        if losses is not None:
            even = (asked.float().mean(dim=0) * probabilities.mean(dim=0)).sum() * len(self.experts)
            losses["balance"] = losses.get("balance", x.new_zeros(())) + self.balance * even
        slots = self._slots(asked, len(places))
        queue = (asked.cumsum(dim=0) * asked).sum(
            dim=-1
        ) - 1  # how many came before, at the expert that is asked
        late = queue >= slots
        if probe is not None:
            probe.through("dropped", late.float().mean())
        # Dropped places share one slot behind all others, which is never read.
        where = (chosen.T.flatten() * slots + queue).masked_fill(late, slots * len(self.experts))
        held = places.new_zeros(slots * len(self.experts) + 1, places.shape[-1])
        held = held.index_copy(0, where, places.repeat(self.top, 1))
        each = held[:-1].unflatten(0, (-1, slots))
        said = torch.cat(
            [expert(given) for expert, given in zip(self.experts, each, strict=True)]
        )  # [E · slots, D]
        said = (
            torch.cat([said, said.new_zeros(1, said.shape[-1])])
            .index_select(0, where)
            .masked_fill(late[:, None], 0.0)
        )
        return (
            (said * share.T.reshape(-1, 1).to(said.dtype))
            .unflatten(0, (self.top, -1))
            .sum(dim=0)
            .view(x.shape)
        )

    def _slots(self, asked: Tensor, places: int) -> int:
        """Of each expert: fixed in training, and on a GPU, where a step must not wait for numbers; else as many as needed."""
        if self.training:
            return min(places, math.ceil(self.capacity * self.top * places / len(self.experts)))
        return places if asked.is_cuda else int(asked.sum(dim=0).max())
