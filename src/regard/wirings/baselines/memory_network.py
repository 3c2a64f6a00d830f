"""End-to-end memory networks: a memory of sentences that is read in several hops (Sukhbaatar et al.
2015)."""

# Letters of shapes: B stories, N sentences, S words of a sentence, Q of the question, D d_model.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.frontends.embedding import Table
from regard.core.linear import normal
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import PaddingMask
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.output import Inputs, Output, OutputOptions, Outputs
from regard.core.probe import HasHeads
from regard.core.side import Side
from regard.wirings.core_model import CoreModel, bool_mask


class MemoryHops(Side):
    """Hops of attention to the sentences, with adjacent weight tying (Section 2.2 of the paper).

    The table of one hop's values (C) is that of the next hop's keys (A). The question is embedded
    with the first. `ages` are learned vectors of how long ago a sentence was (T_A, T_C).
    """

    kind = "memory"
    heads = 1  # each hop attends once

    def __init__(self, part: spec.MemoryNetwork) -> None:
        super().__init__()
        tables = [Table(part.vocabulary, part.d_model) for _ in range(part.hops + 1)]
        self.tables = nn.ModuleList(tables)
        ages = [nn.Parameter(normal(part.sentences, part.d_model)) for _ in tables]
        self.ages = nn.ParameterList(ages)
        self.layers = part.hops
        self.sentences = part.sentences
        self.mixer = SoftmaxAttention(1.0, 0.0)  # no scale, no dropout

    def extra_repr(self) -> str:
        return f"hops={self.layers}, sentences={self.sentences}"

    def forward(
        self,
        story: Tensor,
        story_mask: Tensor,
        question: Tensor,
        question_mask: Tensor,
        context: Context,
    ) -> Tensor:
        """story [B, N, S] and question [B, Q], with padding masks → the answer's vector [B, D]"""
        answer = self._sentence_vectors(0, question[:, None], question_mask[:, None])  # [B, 1, D]
        answer = context.probe.through("embedded", answer)
        is_sentence = story_mask.any(dim=-1)  # [B, N]
        positions = torch.arange(story.shape[1], device=story.device)
        mask = AttentionMask(PaddingMask(is_sentence), positions[:1], positions, len(story))
        # The last sentence of a story is the youngest.
        ages = is_sentence.sum(dim=1, keepdim=True) - 1 - positions
        ages = ages.clamp(0, self.sentences - 1)
        keys = self._memory(0, story, story_mask, ages)  # m_i, [B, N, D]
        for hop in range(self.layers):
            layer = context.layer(hop)
            inner = layer.probe.scope("cross")
            values = self._memory(hop + 1, story, story_mask, ages)  # c_i, [B, N, D]
            qkv = (answer[:, None], keys[:, None], values[:, None])  # [B, 1, 1 or N, D]
            inner.attention(self.mixer, qkv, mask)
            mixed = inner.through("mixed", self.mixer(*qkv, mask))
            # Equation 4: u of the next hop is u + o.
            answer = context.layer_done(layer, answer + mixed[:, 0])
            keys = values
        return context.probe.through("output", answer[:, 0])

    @property
    def out_weight(self) -> Tensor:
        """What a hop finds is added as it is: [D, D]."""
        return torch.eye(self.ages[0].shape[-1], device=self.ages[0].device)

    def attentions(self) -> dict[str, HasHeads]:
        """Every hop, by its name inside."""
        return {f"{hop}.cross": self for hop in range(self.layers)}

    def _memory(self, number: int, story: Tensor, story_mask: Tensor, ages: Tensor) -> Tensor:
        """[B, N, D]: the sentences of a story, each with its age."""
        vectors = self._sentence_vectors(number, story, story_mask)
        return vectors + functional.embedding(ages, self.ages[number])

    def _sentence_vectors(self, number: int, tokens: Tensor, padding_mask: Tensor) -> Tensor:
        """Sentence vectors with position encoding: [..., S] tokens → [..., D] (Section 4.1).

        Each dimension k of word j is weighed by l_kj = (1 − j/J) − (k/d)(1 − 2j/J), so that the
        order of words matters.
        """
        table = self.tables[number].weight
        assert isinstance(table, Tensor)
        x = functional.embedding(tokens, table)  # [..., S, D]
        lengths = padding_mask.sum(dim=-1, keepdim=True).clamp_min(1)  # [..., 1]
        words = torch.arange(1, tokens.shape[-1] + 1, device=tokens.device)
        # As fractions, j/J and k/d.
        j = (words / lengths).to(x.dtype)[..., None]
        k = (torch.arange(1, x.shape[-1] + 1, device=tokens.device) / x.shape[-1]).to(x.dtype)
        weight = ((1 - j) - k * (1 - 2 * j)).masked_fill(~padding_mask[..., None], 0.0)
        return (x * weight).sum(dim=-2)


class MemoryNetwork(CoreModel):
    """Sentences and a question in, logits of the word that answers out."""

    def __init__(self, hops: MemoryHops) -> None:
        super().__init__()
        self.hops = hops

    def stacks(self) -> dict[str, Side]:
        return {"memory": self.hops}

    @property
    def lm_head(self) -> Callable[[Tensor], Tensor]:
        return self.head

    def forward(
        self,
        story: Tensor,
        question: Tensor,
        story_mask: Tensor | None = None,
        question_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The answer's vector [B, D], and auxiliary losses (none here).

        story is [B, N, S], the oldest sentence first, and question [B, Q]; masks are True at words.
        """
        context = (context or Context()).scope("memory")
        if story_mask is None:
            story_mask = torch.ones_like(story, dtype=torch.bool)
        if question_mask is None:
            question_mask = torch.ones_like(question, dtype=torch.bool)
        return self.hops(story, story_mask, question, question_mask, context), {}

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        """The answer's vector [B, D]; a story may hold its question, as in `split_inputs`."""
        if "question" in inputs:
            masks = (bool_mask(inputs, "story_mask"), bool_mask(inputs, "question_mask"))
            hidden, _ = self(inputs["story"], inputs["question"], *masks, context)
        else:
            hidden, _ = self(*self.split_inputs(inputs["story"]), context)
        return hidden

    def head_output(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        return self.head(hidden)

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        return {"logits": Output(self.head(self.hidden_states(inputs, options.context)))}

    @staticmethod
    def split_inputs(joined: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments of `forward` from one tensor [B, N + 1, S].

        Its last sentence is the question, and −1 is padding.
        """
        mask = joined >= 0
        words = joined.clamp_min(0)
        return words[:, :-1], words[:, -1], mask[:, :-1], mask[:, -1]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of all words, by the table from which the last hop took what it found."""
        return functional.linear(hidden, self.hops.tables[-1].weight)  # type: ignore[arg-type]
