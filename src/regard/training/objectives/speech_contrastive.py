"""Contrastive pre-training on recordings without transcripts (wav2vec 2.0, Baevski et al. 2020).

Spans of positions are masked; for each of them the encoder is to tell the quantized latent that
stood there from those of other masked positions of the same recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec
from regard.core.heads.contrastive_head import (
    GUMBEL_TEMPERATURE,
    ContrastiveHead,
    ContrastiveOutput,
)
from regard.data.batching import Batch, Rows
from regard.evaluation.scores import Score
from regard.models import WaveformModel
from regard.training import model_spec
from regard.training.data.sound_sources import WAVEFORM, Recordings, SoundData
from regard.training.data.source import Position
from regard.training.objectives.objective import ScoredObjective
from regard.training.setup import Setup

# Section 4.2: each position begins a span of 10 with p = 0.065, which is 0.65 spans of 10 in ten
# positions; as spans overlap, 49 % are masked.
DEFAULT_MASK_SHARE = 0.65
NEGATIVES = 100
# Annealed by this factor a step, down to a floor (Section 4.2, the base model).
_TEMPERATURE_DECAY = 0.999995
_TEMPERATURE_FLOOR = 0.5
_FEWEST_MASKED = 2  # one of them is the other's negative
_VALIDATION_SEED = 0


class MaskableRecordings(Recordings):
    """Recordings that are long enough for a masked position and a negative."""

    fewest_frames = _FEWEST_MASKED


def contrastive_encoder(description: Any) -> spec.Encoder:
    """An encoder over waveforms with masks and the head that tells what they hide."""
    waves = replace(description.waves, masked=True)
    head = description.contrastive or spec.ContrastiveHead()
    encoder: spec.Encoder = replace(description, input=waves, heads=(head,))
    return encoder


def contrast(model: Any, tensors: Mapping[str, Tensor]) -> ContrastiveOutput:
    """Both sides of a batch of waveforms."""
    both: ContrastiveOutput = model.contrast(
        tensors["waves"],
        tensors["padding_mask"],
        masked=tensors["masked"],
        temperature=tensors["temperature"],
    )
    return both


def contrastive_loss(
    model: Any, tensors: Mapping[str, Tensor], first_row: int = 0
) -> tuple[Tensor, Tensor]:
    """Equation 2 and its contrastive part, summed over the masked positions."""
    head = model.require(ContrastiveHead)
    masked = tensors["masked"]
    # They count positions from the first row of the batch on: of those, a rank has some.
    negatives = tensors["negatives"] - first_row * masked.shape[1]
    contrastive, diversity = head.losses(contrast(model, tensors), masked, negatives)
    return contrastive + head.diversity * diversity, contrastive.detach()


class SpeechContrastive(ScoredObjective):
    """Contrastive pre-training of an encoder over waveforms, with its quantizer.

    Masks, negatives and the temperature follow from the seed and the position of a batch, so that a
    resumed run draws the same ones.
    """

    name = "speech_contrastive"
    unit = "masked positions"
    digits = 4
    source_class = MaskableRecordings
    # The number of masked positions differs from batch to batch, and is read on the host.
    cuda_graphs = False
    base_advice = "give one that was pre-trained this way, such as Wav2Vec2ForPreTraining"
    spec_classes = (spec.Encoder,)
    input_names = (WAVEFORM,)
    describes_head = True
    head_fields = "heads=(ContrastiveHead(),)"
    trained_model: WaveformModel

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def can_tune(cls, base: Any) -> bool:
        return super().can_tune(base) and base.spec.contrastive is not None

    @classmethod
    def has_head(cls, description: spec.Encoder) -> bool:
        return description.contrastive is not None

    @classmethod
    def describe(cls, setup: Setup, data: SoundData) -> spec.Encoder:
        return contrastive_encoder(model_spec.describe(setup.recipe, 1))  # nothing is spelled

    # --- batches ----------------------------------------------------------------------------------

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        """With `masked` [B, T], `negatives` [B, T, K], and the temperature."""
        tensors = super().collate(split, rows, position).tensors
        seed = self.settings.seed if split == "train" else _VALIDATION_SEED
        generator = np.random.default_rng((seed, *position))
        # Of what is heard now: another speed has other positions.
        samples = tensors["padding_mask"].sum(dim=1).numpy()
        lengths = self.trained_model.frames(samples).tolist()
        share = self.settings.mask_ratio or DEFAULT_MASK_SHARE
        masked = span_masks(lengths, share, round(self.setup.recipe.span_length), generator)
        tensors |= {
            "masked": torch.from_numpy(masked),
            "negatives": torch.from_numpy(sampled_negatives(masked, NEGATIVES, generator)),
            "temperature": torch.tensor(self._temperature(position)),
        }
        return Batch(tensors, int(masked.sum()), np.asarray(rows))

    def _temperature(self, position: tuple[int, int]) -> float:
        """The temperature of the Gumbel softmax, by how many updates came before."""
        epoch, index = position
        batches = epoch * self.batches_per_epoch() + index
        step = batches // self.settings.accumulate
        return max(_TEMPERATURE_FLOOR, GUMBEL_TEMPERATURE * _TEMPERATURE_DECAY**step)

    # --- loss -------------------------------------------------------------------------------------

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        first_row = self.setup.ranks.first_row
        return contrastive_loss(self.trained_model.model, tensors, first_row)

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if "valid" not in self.source.splits:
            return None
        return vars(self.score("valid", autocast))

    def score(self, split: str, autocast: AbstractContextManager[Any]) -> Score:
        """The contrastive loss, with the masks and negatives of one seed."""
        head = self.trained_model.model.require(ContrastiveHead)
        loss = 0.0
        right = 0
        count = 0
        codes = []
        for batch in self.evaluation_batches(split):
            masked = batch.tensors["masked"]
            with torch.inference_mode(), autocast:
                output = contrast(self.trained_model.model, batch.tensors)
                logits = head.logits(output, masked, batch.tensors["negatives"])
                contrastive, _ = head.losses(output, masked, batch.tensors["negatives"])
            loss += float(contrastive)
            right += int((logits.argmax(dim=-1) == 0).sum())
            count += batch.tokens
            codes.append(float(output.perplexity))
        examples = len(self.source.splits[split])
        return Score(
            loss=loss / count,
            accuracy=100 * right / count,
            codes=sum(codes) / len(codes),
            examples=examples,
        )


# --- masks and negatives --------------------------------------------------------------------------


def span_masks(
    lengths: list[int], share: float, span: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Masked positions of recordings with so many: [B, longest].

    `share` · length / span spans of `span` positions begin at different places, and may overlap.
    """
    masks = np.zeros((len(lengths), max(lengths)), np.bool_)
    for row, length in enumerate(lengths):
        # A short recording is not masked as a whole.
        width = min(span, max(1, length // 2))
        places = length - width + 1
        # Rounded at random, so that the mean is right.
        count = int(share * length / width + generator.random())
        fewest = -(-_FEWEST_MASKED // width)  # spans
        count = min(max(count, fewest), places)
        for begin in generator.choice(places, count, replace=False):
            masks[row, begin : begin + width] = True
    return masks


def sampled_negatives(
    masked: NDArray[np.bool_], count: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """For each masked position `count` others of its row, uniformly: [B, T, count].

    They are positions of the flattened batch; those of positions that are not masked are 0.
    """
    rows, longest = masked.shape
    negatives = np.zeros((rows, longest, count), np.int64)
    for row in range(rows):
        places = np.flatnonzero(masked[row])
        # One of the others: numbers from the own one on are shifted by one.
        drawn = generator.integers(0, len(places) - 1, (len(places), count))
        drawn += drawn >= np.arange(len(places))[:, None]
        negatives[row, places] = places[drawn] + row * longest
    return negatives
