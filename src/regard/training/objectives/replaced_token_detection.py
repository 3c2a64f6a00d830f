"""Replaced token detection (ELECTRA, Clark et al. 2020).

A generator fills in masked positions, and a discriminator says of every token whether it was
replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.frontends.embedding import Embedding
from regard.core.heads.head import LMHead
from regard.data.batching import Batch
from regard.data.corruption import MaskingRates
from regard.evaluation.corrupted_text import GENERATOR
from regard.evaluation.metrics.perplexity import perplexity
from regard.families import folder as folders
from regard.models import Model, TextEncoder
from regard.models.loading import load
from regard.system import disk
from regard.system.errors import SettingError
from regard.training import model_spec
from regard.training.data.plain_text import TextCorpora
from regard.training.data.source import text_model_files
from regard.training.objectives.corrupted_text import MaskedText
from regard.training.objectives.losses import LossSums, LossTerms, Tensors, cross_entropy
from regard.training.setup import Setup
from regard.wirings.encoder import Encoder

DISCRIMINATOR_WEIGHT = 50.0  # λ in the paper: its loss, over two classes, is small


@dataclass(frozen=True)
class _Output:
    generator_loss: Tensor
    generator_nll: Tensor
    logits: Tensor  # [B, T], of the discriminator; above 0: replaced
    replaced: Tensor  # [B, T], True where a token was replaced
    auxiliary: dict[str, Tensor]


class ReplacedTokenDetection(MaskedText):
    """Generator and discriminator learn together, with shared embeddings.

    The loss is the sum of theirs. What the generator fills in is sampled, and no gradient goes
    through sampling.
    """

    # Every chosen token is masked; none is kept or replaced at random.
    rates = MaskingRates(1.0, 0.0)

    name = "replaced"
    base_tasks = ("detect",)
    base_advice = "give a run of this objective, or ElectraForPreTraining"
    labels_are_classes = False  # those of the generator alone, which stays weak on purpose
    trained_model: TextEncoder  # the discriminator

    def __init__(self, model: TextEncoder, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.generator_model = _generator(model, data, setup)
        generator = self.generator_model.model
        share_embeddings(generator, model.model)
        self.both = nn.ModuleDict({"discriminator": model.model, "generator": generator})

    @classmethod
    def check_spec(cls, description: Any, from_file: bool = False) -> None:
        """Refuses every spec: the sizes of both models are those of one preset."""
        raise SettingError(
            f"the objective {cls.name!r} trains two models, which no one spec describes",
            "leave the spec out, and choose a size: --model electra:small",
        )

    @classmethod
    def describe(cls, setup: Setup, data: TextCorpora) -> spec.Model:
        discriminator, _ = model_spec.electra_specs(setup.recipe, len(data.tokenizer))
        return discriminator

    @property
    def model(self) -> nn.ModuleDict:
        return self.both

    def companions(self) -> dict[str, Model]:
        """The run folder is the discriminator's; the generator's is in it."""
        return {GENERATOR: self.generator_model}

    def loss(self, tensors: Tensors) -> LossSums:
        return self.total(replaced_loss(self.both, tensors), tensors["padding_mask"].sum())

    def likelihood(self, split: str) -> dict[str, Any]:
        """The discriminator's loss, accuracy and recall; the generator's loss."""
        # For sampling. Every training step seeds its own dropout, so nothing else depends on this.
        torch.manual_seed(self.settings.seed)
        total, nll, masked, tokens, correct, replaced, detected = self.totals(
            split, self._detections
        )
        loss = total / tokens
        return {
            "loss": loss,
            "perplexity": perplexity(loss, 1),
            "accuracy": 100.0 * correct / tokens,
            "recall": 100.0 * detected / max(1, replaced),
            "generator_loss": nll / masked,
            "tokens": int(tokens),
        }

    def _detections(self, batch: Batch) -> tuple[Tensor | float, ...]:
        padding_mask = batch.tensors["padding_mask"]
        output = _forward(self.both, batch.tensors)
        predicted = output.logits > 0  # a probability above ½
        tokens = padding_mask.sum()
        return (
            _binary_loss(output, padding_mask) * tokens,
            output.generator_nll,
            batch.tokens,
            tokens,
            ((predicted == output.replaced) & padding_mask).sum(),
            output.replaced.sum(),
            (predicted & output.replaced).sum(),
        )


def _generator(discriminator: TextEncoder, data: TextCorpora, setup: Setup) -> TextEncoder:
    """The generator: that beside a discriminator from a folder, otherwise a new one."""
    generator: Any
    folder = setup.run_folder.folder / GENERATOR
    folder.mkdir(exist_ok=True)  # a resumed run finds it
    if discriminator.folder is not None:
        generator = load(discriminator.folder / GENERATOR, TextEncoder, device=str(setup.device))
    else:
        description = _generator_spec(folder, data, setup)
        core = model_spec.build_initialized(description, setup.recipe).to(setup.device)
        generator = ReplacedTokenDetection.with_tokenizer(core, description, data, setup)
    for name, content in text_model_files(generator, setup).items():
        disk.write_json(folder / name, content)
    disk.write_file(folder / "tokenizer.json", data.tokenizer.to_json())
    return generator


def _generator_spec(folder: Path, data: TextCorpora, setup: Setup) -> spec.Model:
    if (folder / "config.json").is_file():  # of a run that is resumed
        return folders.peek(folder).spec
    return model_spec.electra_specs(setup.recipe, len(data.tokenizer))[1]


def share_embeddings(generator: Encoder, discriminator: Encoder) -> None:
    """Token, position and segment embeddings, and the generator's output, are one (Section 3.2)."""
    ours = generator.input
    theirs = discriminator.input
    assert isinstance(ours, Embedding)
    assert isinstance(theirs, Embedding)
    ours.table = theirs.table
    ours.position = theirs.position
    ours.segments = theirs.segments
    ours.norm = theirs.norm
    generator.require(LMHead).table = theirs.table


def replaced_loss(models: Any, tensors: Tensors) -> LossTerms:
    """The generator's loss + λ · the discriminator's, means, times the masked tokens."""
    output = _forward(models, tensors)
    discriminator_loss = _binary_loss(output, tensors["padding_mask"])
    auxiliary = {"discriminator": DISCRIMINATOR_WEIGHT * discriminator_loss} | output.auxiliary
    masked = (tensors["labels"] >= 0).sum()
    return LossTerms(output.generator_loss, output.generator_nll, auxiliary, masked)


def _forward(models: Any, tensors: Tensors) -> _Output:
    generator = models["generator"]
    discriminator = models["discriminator"]
    tokens = tensors["tokens"]
    labels = tensors["labels"]
    padding_mask = tensors["padding_mask"]
    hidden, generator_auxiliary = generator(tokens, padding_mask)  # [B, T, D]
    logits = generator.head(hidden)  # [B, T, V]
    generator_loss, generator_nll = cross_entropy(logits, labels)
    with torch.no_grad():
        # Sampled, not the likeliest: the discriminator would see too few kinds of mistakes.
        sampled = _sample(logits)
        corrupted = torch.where(labels >= 0, sampled, tokens)  # [B, T]
        # A token that was sampled right counts as original (Section 2 of the paper).
        replaced = (labels >= 0) & (sampled != labels)
    hidden, auxiliary = discriminator(corrupted, padding_mask)
    # Both stacks may have auxiliary losses of the same name.
    named = {f"generator {name}": part for name, part in generator_auxiliary.items()}
    return _Output(
        generator_loss,
        generator_nll,
        discriminator.classes(hidden, padding_mask)[..., 0],
        replaced,
        named | auxiliary,
    )


def _sample(logits: Tensor) -> Tensor:
    """Tokens [B, T] drawn from softmax(logits), by the Gumbel-max trick."""
    # Clamped: log(0) would be infinite.
    uniform = torch.rand_like(logits, dtype=torch.float32).clamp_(1e-9, 1 - 1e-7)
    gumbel = -torch.log(-torch.log(uniform))
    return (logits.float() + gumbel).argmax(dim=-1)


def _binary_loss(output: _Output, padding_mask: Tensor) -> Tensor:
    """The discriminator's mean binary cross-entropy over all tokens."""
    losses = functional.binary_cross_entropy_with_logits(
        output.logits.float(), output.replaced.float(), reduction="none"
    )  # [B, T]
    return torch.where(padding_mask, losses, 0.0).sum() / padding_mask.sum()
