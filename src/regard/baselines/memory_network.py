"""A memory of sentences that is asked several times (Sukhbaatar et al. 2015, "End-To-End Memory Networks")."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.embedding import Table
from regard.core.linear import normal
from regard.core.mask import AttentionMask, PaddingMask
from regard.core.probe import AttentionCall, HasHeads, Probe
from regard.core.softmax_attention import SoftmaxAttention


class MemoryHops(nn.Module):
    """Each hop looks at the sentences through one table and takes what it finds from the next, which is also the table that
    the following hop looks through (their adjacent tying); the question is read with the first. `ages` are trained vectors
    of how long ago a sentence was."""

    position = None

    def __init__(self, vocabulary: int, d_model: int, hops: int, sentences: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(Table(vocabulary, d_model) for _ in range(hops + 1))
        self.ages = nn.ParameterList(
            nn.Parameter(normal(sentences, d_model)) for _ in range(hops + 1)
        )
        self.hops, self.sentences = hops, sentences
        self.mixer = SoftmaxAttention(1.0, 0.0)

    def forward(
        self,
        story: Tensor,
        padding_mask: Tensor,
        question: Tensor,
        asked: Tensor,
        probe: Probe | None,
    ) -> Tensor:
        """story [B, N, S] and question [B, Q] with their `real` words → what is known at the end: [B, D]"""
        known = self._sum(0, question[:, None], asked[:, None])  # [B, 1, D]
        known = probe.through("embedded", known) if probe else known
        told = padding_mask.any(dim=-1)  # [B, N]
        places = torch.arange(story.shape[1], device=story.device)
        attention_mask = AttentionMask(PaddingMask(told), places[:1], places, len(story))
        # The last sentence that was told is the youngest.
        ages = (told.sum(dim=1, keepdim=True) - 1 - places).clamp(0, self.sentences - 1)
        keys = self._memory(0, story, padding_mask, ages)
        for hop in range(self.hops):
            values = self._memory(hop + 1, story, padding_mask, ages)
            call = (
                known[:, None],
                keys[:, None],
                values[:, None],
                attention_mask,
            )  # [B, 1, 1 or N, D]
            look = probe.scope(str(hop)).scope("cross") if probe else None
            if look is not None:
                look.attended(AttentionCall(self.mixer, *call))
            found = self.mixer(*call)
            known = known + (look.through("mixed", found) if look else found)[:, 0]
            known = probe.through(f"{hop}.residual", known) if probe else known
            keys = values
        return probe.through("output", known[:, 0]) if probe else known[:, 0]

    @property
    def layers(self) -> int:
        return self.hops

    @property
    def heads(self) -> int:
        """Each hop looks once."""
        return 1

    @property
    def out_weight(self) -> Tensor:
        """[D, D]: what a hop finds is added as it is."""
        return torch.eye(self.ages[0].shape[-1], device=self.ages[0].device)

    def attentions(self) -> dict[str, HasHeads]:
        """Every hop, by its name inside."""
        return {f"{hop}.cross": self for hop in range(self.hops)}

    def _memory(self, number: int, story: Tensor, padding_mask: Tensor, ages: Tensor) -> Tensor:
        return self._sum(number, story, padding_mask) + functional.embedding(
            ages, self.ages[number]
        )

    def _sum(self, number: int, words: Tensor, padding_mask: Tensor) -> Tensor:
        """[..., S] words → [..., D], each sentence one vector. How much each dimension of a word counts depends on its place
        (their l_kj), so that the order of words matters."""
        table = self.tables[number].weight
        assert isinstance(table, Tensor)
        x = functional.embedding(words, table)
        counts = padding_mask.sum(dim=-1, keepdim=True).clamp_min(1)  # [..., 1]
        j = (torch.arange(1, words.shape[-1] + 1, device=words.device) / counts).to(x.dtype)[
            ..., None
        ]
        k = (torch.arange(1, x.shape[-1] + 1, device=words.device) / x.shape[-1]).to(x.dtype)
        weight = ((1 - j) - k * (1 - 2 * j)).masked_fill(~padding_mask[..., None], 0.0)
        return (x * weight).sum(dim=-2)
