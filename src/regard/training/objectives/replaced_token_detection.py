"""The task of ELECTRA: a generator fills hidden places, a discriminator says of every token whether it was replaced."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.embedding import Embedding
from regard.data.text_corruption import Fate
from regard.model import Encoder
from regard.training.data.plain_text import Texts
from regard.training.engine.optimizer import perplexity
from regard.training.objectives.loss import beside, cross_entropy
from regard.training.objectives.masked_lm import Hiding
from regard.training.recipe.schema import Recipe

WEIGHT = 50.0  # of the discriminator's loss, which is of two classes only (Clark et al. 2020)


class ReplacedTokenDetection(Hiding):
    """Both are trained together on the sum of their losses, with the same embeddings. What the generator puts in is drawn by
    chance, through which no gradient goes."""

    fate = Fate(1.0, 0.0)

    def __init__(
        self,
        discriminator: Encoder,
        generator: Encoder,
        data: Texts,
        recipe: Recipe,
        device: torch.device,
        multiple: int,
    ) -> None:
        super().__init__(data, recipe, device, multiple)
        self.discriminator, self.generator = discriminator, generator
        ours, theirs = generator.input, discriminator.input
        assert isinstance(ours, Embedding)
        assert isinstance(theirs, Embedding)
        assert generator.head is not None
        ours.table, ours.position, ours.segments, ours.norm = (
            theirs.table,
            theirs.position,
            theirs.segments,
            theirs.norm,
        )
        generator.head.table = theirs.table
        self.model = nn.ModuleDict({"discriminator": discriminator, "generator": generator})

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The mean over guessed tokens plus 50 times the mean over all; as a sum over guessed ones, as the step divides."""
        guesses, nll, scores, replaced, others = self._forward(tensors)
        judged = {"judged": WEIGHT * _mean(scores, replaced, tensors["padding_mask"])}
        return beside(guesses, judged | others, (tensors["labels"] >= 0).sum()), nll

    def _forward(
        self, tensors: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The generator's loss and −log p, the discriminator's scores [B, T], and where it should say yes; and the losses
        beside, of both."""
        tokens, labels, padding_mask = tensors["tokens"], tensors["labels"], tensors["padding_mask"]
        hidden, ours = self.generator(tokens, padding_mask)
        assert self.generator.head is not None
        logits = self.generator.head(hidden)
        loss, nll = cross_entropy(logits, labels)
        with torch.no_grad():
            noise = -torch.log(
                -torch.log(torch.rand_like(logits, dtype=torch.float32).clamp_(1e-9, 1 - 1e-7))
            )
            drawn = (logits.float() + noise).argmax(dim=-1)
            shown = torch.where(labels >= 0, drawn, tokens)
            replaced = (labels >= 0) & (drawn != labels)
        hidden, theirs = self.discriminator(shown, padding_mask)
        others = {f"generator {name}": part for name, part in ours.items()} | theirs
        return loss, nll, self.discriminator.classes(hidden, padding_mask)[..., 0], replaced, others

    @torch.inference_mode()
    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any]:
        """Of the held-out rows: the discriminator's loss, how often it is right, how many replaced tokens it finds; and the
        generator's loss."""
        self.model.eval()
        torch.manual_seed(
            self.settings.seed
        )  # every step seeds its own chance, so nothing else depends on this
        total, guessed = torch.zeros(2, dtype=torch.float64), 0
        cells = right = fakes = found = 0
        for batch in self.held_out_batches():
            padding_mask = batch.tensors["padding_mask"]
            with precision:
                _, nll, scores, replaced, _ = self._forward(batch.tensors)
            total += (
                torch.stack([_mean(scores, replaced, padding_mask) * padding_mask.sum(), nll])
                .double()
                .cpu()
            )
            said = scores > 0
            cells, right = (
                cells + int(padding_mask.sum()),
                right + int(((said == replaced) & padding_mask).sum()),
            )
            fakes, found = fakes + int(replaced.sum()), found + int((said & replaced).sum())
            guessed += batch.tokens
        loss = total[0].item() / cells
        return {
            "loss": loss,
            "perplexity": perplexity(loss, 1),
            "accuracy": 100.0 * right / cells,
            "found": 100.0 * found / max(1, fakes),
            "generator_loss": total[1].item() / guessed,
            "tokens": cells,
        }


def _mean(scores: Tensor, replaced: Tensor, padding_mask: Tensor) -> Tensor:
    each = functional.binary_cross_entropy_with_logits(
        scores.float(), replaced.float(), reduction="none"
    )
    return torch.where(padding_mask, each, 0.0).sum() / padding_mask.sum()
