"""Contrastive pre-training head of wav2vec 2.0: quantized targets and projections of both sides."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.dropout import Dropout
from regard.core.heads.head import Head, Reading
from regard.core.linear import Linear
from regard.core.norm import BatchShare
from regard.core.output import Output, Outputs, asides
from regard.system.errors import SettingError

GUMBEL_TEMPERATURE = 2.0  # where its annealing begins (Section 4.2)


class Quantizer(nn.Module):
    """Product quantization by Gumbel-softmax (Baevski et al. 2020, equation 1)."""

    def __init__(self, part: spec.ContrastiveHead, inputs: int) -> None:
        super().__init__()
        self.groups = part.groups
        rows = part.groups * part.entries
        self.codes = nn.Parameter(torch.rand(rows, part.code_width // part.groups))
        self.choose = Linear(inputs, rows)
        self.share: BatchShare | None = None  # where several processes compute a batch

    def forward(
        self, latents: Tensor, masked: Tensor | None, temperature: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        """latents [B, T, C] → code vectors [B, T, width], and how many entries are in use.

        That is the perplexity of the mean choice, over the `masked` positions [B, T] if given. The
        `temperature` of the Gumbel softmax acts in training only.
        """
        logits = self.choose(latents).float().unflatten(-1, (self.groups, -1))  # [B, T, G, V]
        if self.training:
            # A tensor as temperature: a captured step reads another one each time.
            choice = functional.gumbel_softmax(logits / temperature, hard=True)
            shares = logits.softmax(dim=-1)
        else:
            choice = functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
            shares = choice
        codes = self.codes.unflatten(0, (self.groups, -1))  # [G, V, width / G]
        vectors = torch.einsum("btgv,gvd->btgd", choice.to(codes.dtype), codes)
        return vectors.flatten(-2), self._perplexity(shares, masked)

    def _perplexity(self, shares: Tensor, masked: Tensor | None) -> Tensor:
        """e^H of the mean of shares [B, T, G, V] over positions, summed over the groups.

        The positions are those of the whole batch, where others compute other rows of it.
        """
        if masked is None:
            mean = shares.mean(dim=(0, 1))  # [G, V]
        else:
            total = (shares * masked[..., None, None]).sum(dim=(0, 1))
            count = masked.sum()
            if self.share is not None:
                total = self.share.sum(total)
                count = self.share.sum(count.float())
            mean = total / count
        return torch.exp(-torch.xlogy(mean, mean).sum(dim=-1)).sum()


class ContrastiveOutput(NamedTuple):
    """Both sides in one space, and how many entries of the codebook are in use."""

    states: Tensor  # [B, T, width], of the encoder
    targets: Tensor  # [B, T, width], quantized
    perplexity: Tensor


class ContrastiveHead(Head):
    """Hidden states and quantized latents in one space, and the loss that tells them apart."""

    def __init__(self, part: spec.ContrastiveHead, d_model: int, latents: int) -> None:
        super().__init__()
        self.quantizer = Quantizer(part, latents)
        self.project_states = Linear(d_model, part.width)
        self.project_targets = Linear(part.code_width, part.width)
        self.codes = part.groups * part.entries
        self.temperature = part.temperature
        self.diversity = part.diversity
        self.dropout = Dropout(part.dropout)

    def forward(
        self,
        hidden: Tensor,
        latents: Tensor,
        masked: Tensor | None = None,
        temperature: Tensor | float = GUMBEL_TEMPERATURE,
    ) -> ContrastiveOutput:
        """hidden [B, T, D] and latents [B, T, C] of the same, `masked` positions [B, T]."""
        vectors, perplexity = self.quantizer(self.dropout(latents), masked, temperature)
        targets = self.project_targets(vectors)
        return ContrastiveOutput(self.project_states(hidden), targets, perplexity)

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        """Both sides under transformers' names, and the losses where negatives are given."""
        masked = reading.more.get("masked")
        negatives = reading.inputs.get("sampled_negative_indices")
        both = self(hidden, reading.more["latents"], masked)
        sides = {"projected_states": Output(both.states, reading.positions)} | asides(
            projected_quantized_states=both.targets, codevector_perplexity=both.perplexity
        )
        if negatives is None:
            return sides
        if masked is None:
            raise SettingError(
                "sampled_negative_indices needs mask_time_indices", "pass mask_time_indices"
            )
        contrastive, diversity = self.losses(both, masked, negatives.long())
        loss = contrastive + self.diversity * diversity
        losses = asides(contrastive_loss=contrastive, diversity_loss=diversity)
        return asides(loss=loss) | sides | losses

    def losses(
        self, output: ContrastiveOutput, masked: Tensor, negatives: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The contrastive and the diversity loss (equations 3 and 4), summed over masked positions.

        `negatives` [B, T, K] are positions of the flattened batch, whose targets are the wrong
        ones.
        """
        logits = self.logits(output, masked, negatives)
        right = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        contrastive = functional.cross_entropy(logits, right, reduction="sum")
        diversity = (self.codes - output.perplexity) / self.codes * masked.sum()
        return contrastive, diversity

    def logits(self, output: ContrastiveOutput, masked: Tensor, negatives: Tensor) -> Tensor:
        """Scaled cosines of each masked position with its candidates, the right one first:
        [masked, 1 + K]."""
        # Only where something is masked: candidates of all positions would fill the memory.
        targets = output.targets[masked]  # [masked, width]
        distractors = output.targets.flatten(0, 1)[negatives[masked]]  # [masked, K, width]
        candidates = torch.cat([targets[:, None], distractors], dim=1)
        states = output.states[masked][:, None].float()
        logits = functional.cosine_similarity(states, candidates.float(), dim=-1)
        # Where few entries are in use, a distractor may be the target itself: it does not compete.
        equal = functional.pad((distractors == targets[:, None]).all(dim=-1), (1, 0))
        return (logits / self.temperature).masked_fill(equal, float("-inf"))
