"""Mixture of experts: several feed-forward networks, of which a router asks a few for each token
(Shazeer et al. 2017; Switch Transformer, Fedus et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard import spec
from regard.core.context import LayerContext
from regard.core.feedforward import FeedForward, GatedFeedForward, PositionWise
from regard.core.linear import Linear
from regard.core.norm import BatchShare


class MixtureOfExperts(PositionWise):
    """A sparse mixture of experts: each token goes to the `top` experts that the router gives the
    highest probabilities, and their outputs are summed with these as weights.

    In training an expert takes `capacity` times its even share of the batch; first choices come
    before second ones, and what comes too late is dropped: the residual alone goes on. Evaluation
    drops nothing, so that what a token gets does not depend on its neighbours. Padding does not
    count, and in training is sent to no expert.
    """

    meets_padding = True

    def __init__(
        self,
        part: spec.MixtureOfExperts,
        d_model: int,
        experts: Sequence[FeedForward | GatedFeedForward],
    ) -> None:
        super().__init__()
        self.router = Linear(d_model, len(experts), bias=part.router_bias)
        self.experts = nn.ModuleList(experts)
        self.top = part.top
        self.capacity = part.capacity
        self.balance = part.balance
        self.share: BatchShare | None = None  # where several processes compute a batch

    def extra_repr(self) -> str:
        return f"experts={len(self.experts)}, top={self.top}, capacity={self.capacity}"

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])  # [N, D]
        # Selective precision (Fedus et al. 2022): the softmax of the router is in float32.
        probabilities = torch.softmax(self.router(tokens).float(), dim=-1)  # [N, E]
        gates, experts = probabilities.topk(self.top, dim=-1)  # [N, top] each
        if self.top > 1:
            # With one expert its probability itself counts, or nothing would teach the router.
            gates = gates / gates.sum(dim=-1, keepdim=True)
        choices = experts.T.flatten()  # [top·N], all first choices before all second ones
        one_hot = nn.functional.one_hot(choices, len(self.experts))  # [top·N, E]
        is_token = None
        counted = one_hot
        if context.padding_mask is not None:
            is_token = context.padding_mask.reshape(-1, 1)  # [N, 1]
            probabilities = probabilities * is_token
            counted = one_hot * is_token.repeat(self.top, 1)
        if context.losses is not None:
            loss = self._load_balance(counted, probabilities, is_token)
            context.add_loss("balance", self.balance * loss)
        if self.training:
            one_hot = counted
        batch_tokens = len(tokens)
        if self.share is not None:
            batch_tokens = round(batch_tokens / self.share.row_share)
        batch_slots = self._slots(one_hot, batch_tokens)  # of each expert
        slots = min(batch_slots, len(tokens))
        # How many came before, at the expert that is asked.
        queue = (one_hot.cumsum(dim=0) * one_hot).sum(dim=-1) - 1
        dropped = queue + self._queue_elsewhere(one_hot) >= batch_slots
        if context.probe.active:
            asked = one_hot.sum().clamp_min(1)
            context.probe.through("dropped", dropped.sum() / asked)  # as a share, padding left out
        dropped = dropped | (queue < 0)  # padding: it is in no queue
        # Dropped tokens share one slot behind all others, which is never read.
        index = (choices * slots + queue).masked_fill(dropped, slots * len(self.experts))
        outputs = self._run_experts(tokens, index, slots)  # [top·N, D]
        outputs = outputs.masked_fill(dropped[:, None], 0.0)
        weighted = outputs * gates.T.reshape(-1, 1).to(outputs.dtype)  # [top·N, D]
        return weighted.unflatten(0, (self.top, -1)).sum(dim=0).view(x.shape)

    def _load_balance(
        self, one_hot: Tensor, probabilities: Tensor, is_token: Tensor | None
    ) -> Tensor:
        """The load-balancing loss: 1 where experts are asked evenly."""
        # Fedus et al. 2022, equations 4 to 6: E · Σ fᵢ Pᵢ; both are [E].
        asked = one_hot.float().sum(dim=0)
        if is_token is None:
            tokens = asked.new_tensor(len(probabilities))
        else:
            tokens = is_token.sum().float()
        row_share = 1.0
        if self.share is not None and self.share.shares_batch:
            asked = self.share.sum(asked)
            tokens = self.share.sum(tokens)
            row_share = self.share.row_share  # by which this rank's loss is weighted
        tokens = tokens.clamp_min(1.0)
        fraction = asked / (self.top * tokens)
        mean_probability = probabilities.sum(dim=0) / (tokens * row_share)
        return (fraction * mean_probability).sum() * len(self.experts)

    def _queue_elsewhere(self, one_hot: Tensor) -> Tensor | int:
        """How many came before in the shares of others: [top·N].

        All first choices of the batch come before all second ones, in the order of its rows.
        """
        share = self.share
        if share is None or not share.shares_batch:
            return 0
        by_choice = one_hot.unflatten(0, (self.top, -1))  # [top, N, E]
        counts = by_choice.sum(dim=1)  # [top, E]
        everywhere = counts.new_zeros(share.data_size, *counts.shape, dtype=torch.float32)
        everywhere[share.data_rank] = counts.float()
        everywhere = share.sum(everywhere)
        others = everywhere.sum(dim=0) - everywhere[share.data_rank]
        # Earlier choices in all other shares, and the same choice in those before this one.
        earlier = others.cumsum(dim=0) - others
        before = earlier + everywhere[: share.data_rank].sum(dim=0)  # [top, E]
        return (by_choice * before[:, None]).sum(dim=-1).flatten()

    def _run_experts(self, tokens: Tensor, index: Tensor, slots: int) -> Tensor:
        """Tokens sorted into the slots of their experts, and the answers back: [top·N, D]."""
        buffer = tokens.new_zeros(slots * len(self.experts) + 1, tokens.shape[-1])
        buffer = buffer.index_copy(0, index, tokens.repeat(self.top, 1))
        by_expert = buffer[:-1].unflatten(0, (-1, slots))  # [E, slots, D]
        answers = [expert(part) for expert, part in zip(self.experts, by_expert, strict=True)]
        outputs = torch.cat(answers)  # [E·slots, D]
        outputs = torch.cat([outputs, outputs.new_zeros(1, outputs.shape[-1])])
        return outputs.index_select(0, index)

    def _slots(self, one_hot: Tensor, tokens: int) -> int:
        """Slots of each expert: fixed in training, and on a GPU, where a step must not wait for
        numbers; else as many as needed."""
        if self.training:
            # Expert capacity: equation 3 of Fedus et al. 2022.
            even_share = self.top * tokens / len(self.experts)
            return min(tokens, math.ceil(self.capacity * even_share))
        if one_hot.is_cuda:
            return tokens
        return max(1, int(one_hot.sum(dim=0).max()))  # at least one, for a batch of padding alone
