"""Objectives of speech: transcription by CTC or by an encoder–decoder, contrastive pre-training.

Connectionist temporal classification (Graves et al. 2006, Wav2Vec2) sums over all alignments of a
transcript to the frames. An encoder–decoder (Whisper, Radford et al. 2022) learns by teacher
forcing: after a prompt each next token of the transcript, and its end. Contrastive pre-training
(wav2vec 2.0, Baevski et al. 2020) needs no transcripts: spans of positions are masked, and for each
of them the encoder is to tell the quantized latent that stood there from those of others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.frontends.waveform_frontend import Waveform
from regard.core.heads.contrastive_head import (
    GUMBEL_TEMPERATURE,
    ContrastiveHead,
    ContrastiveOutput,
)
from regard.data.audio import RATE
from regard.data.batching import Batch, Rows
from regard.decode.strategy import Strategy
from regard.evaluation.metrics.texts import WordErrorRate
from regard.evaluation.scores import Score
from regard.models import Model, WaveformModel
from regard.training import model_spec
from regard.training.data.sound_sources import (
    POSITIONS_PER_SECOND,
    SPECTROGRAM,
    WAVEFORM,
    PromptedTranscripts,
    Recordings,
    SpelledTranscripts,
)
from regard.training.data.source import Position
from regard.training.data.stored_items import ItemData
from regard.training.objectives.losses import LossSums, LossTerms, Tensors
from regard.training.objectives.medium_to_text import MediumToText
from regard.training.objectives.objective import ScoredObjective
from regard.training.setup import Setup


class SpeechObjective(MediumToText):
    """Transcripts and their error rates; a subclass says how a model learns and writes them."""

    task = "transcribe"

    def __init__(self, model: Model, data: ItemData, setup: Setup) -> None:
        WordErrorRate()  # a missing package is reported before hours of training
        super().__init__(model, data, setup)


class ConnectionistTemporalClassification(SpeechObjective):
    """Trains an encoder with a character for each frame; the padding token is the blank."""

    name = "ctc"
    unit = "characters"
    labels_are_classes = False  # the loss is of a whole transcript, over all its alignments
    # torch's ctc_loss reads the lengths on the host, which no captured step can wait for.
    cuda_graphs = False
    always_writes = True
    source_class = SpelledTranscripts
    base_advice = "give an encoder over waveforms, such as Wav2Vec2"
    spec_classes = (spec.Encoder,)
    input_names = (WAVEFORM,)
    describes_head = True
    head_task = "transcribe"
    head_fields = "heads=(ClassifierHead(CHARACTERS, 'transcribe'),)"

    def decoding(self, strategy: Strategy) -> dict[str, Any]:
        return {}  # the best label of each frame: frames do not depend on each other

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        count = len(data.vocabulary.names)
        description: Any = model_spec.describe(setup.recipe, count)
        # Nothing is masked in training: a mask vector would keep its initial value.
        waves = replace(description.waves, masked=False)
        heads = spec.heads(description.pool, _character_head(description, count))
        encoder: spec.Encoder = replace(description, input=waves, heads=heads)
        return encoder

    @classmethod
    def head_config(cls, data: ItemData) -> dict[str, Any]:
        # transformers takes the blank of its CTC loss from here.
        return {"pad_token_id": data.vocabulary.blank}

    @classmethod
    def adapt(cls, base: Any, data: ItemData, setup: Setup) -> Model:
        """The same encoder with a new head for these characters, unless it has one."""
        if cls.has_head(base.spec):
            cls.source_class.wrap(base.model, base.spec, base.config, data)  # only for its errors
            return base  # type: ignore[no-any-return]
        head = _character_head(base.spec, len(data.vocabulary.names))
        return cls.rebuilt(base, base.spec.with_heads(head), data, setup)

    # --- loss -------------------------------------------------------------------------------------

    def loss(self, tensors: Tensors) -> LossSums:
        return self.total(
            alignment_loss(self.trained_model.model, tensors, self.data.vocabulary.blank)
        )


def frames(data: ItemData) -> int:
    """The positions of a window as long as the longest recording, in whole seconds."""
    longest = max(int(speech.lengths.max()) for speech in data.sets.values())
    return -(-longest // RATE) * POSITIONS_PER_SECOND  # rounded up


def alignment_loss(model: Any, tensors: Tensors, blank: int) -> LossTerms:
    """−log p of transcripts, summed over all alignments to the frames."""
    front_end: Waveform = model.input
    padding_mask = tensors["padding_mask"]
    hidden, auxiliary = model(tensors["waves"], padding_mask)  # [B, T, D]
    logits = model.classes(hidden)  # [B, T, characters]
    # Of all frames of the longest recording; those of padding are beyond the lengths.
    log_probs = logits.float().log_softmax(dim=-1).transpose(0, 1)  # [T, B, characters]
    lengths = tensors["label_lengths"]
    nll = functional.ctc_loss(
        log_probs,
        tensors["labels"],
        front_end.output_lengths(padding_mask.sum(dim=1)),
        lengths,
        blank=blank,
        reduction="sum",
    )
    return LossTerms(nll, nll.detach(), auxiliary, lengths.sum())


def _character_head(description: spec.Encoder, count: int) -> spec.ClassifierHead:
    if isinstance(description.labels, spec.ClassifierHead):
        return replace(description.labels, count=count, task="transcribe")
    return spec.ClassifierHead(count, "transcribe", dropout=description.stack.block.dropout)


class Transcription(SpeechObjective):
    """Trains an encoder–decoder on recordings of at most one window.

    The window of a new model is as long as the longest recording, in whole seconds. Shorter ones
    are padded with silence, as `transcribe` does it.
    """

    name = "transcribe"
    source_class = PromptedTranscripts
    source: PromptedTranscripts
    base_tasks = ("transcribe",)
    base_advice = "give an encoder–decoder over spectrograms, such as Whisper"
    spec_classes = (spec.EncoderDecoder,)
    input_names = (SPECTROGRAM,)

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        return model_spec.describe(setup.recipe, len(data.vocabulary), frames=frames(data))

    def decoding(self, strategy: Strategy) -> dict[str, Any]:
        return {"language": self.source.language, **super().decoding(strategy)}


# --- contrastive pre-training ---------------------------------------------------------------------


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


def contrast(model: Any, tensors: Tensors) -> ContrastiveOutput:
    """Both sides of a batch of waveforms."""
    both: ContrastiveOutput = model.contrast(
        tensors["waves"],
        tensors["padding_mask"],
        masked=tensors["masked"],
        temperature=tensors["temperature"],
    )
    return both


def contrastive_loss(model: Any, tensors: Tensors, first_row: int = 0) -> LossSums:
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
    source_class = MaskableRecordings
    # The number of masked positions differs from batch to batch, and is read on the host.
    cuda_graphs = False
    base_advice = "give one that was pre-trained this way, such as Wav2Vec2ForPreTraining"
    spec_classes = (spec.Encoder,)
    input_names = (WAVEFORM,)
    describes_head = True
    head = "contrastive"
    head_fields = "heads=(ContrastiveHead(),)"
    trained_model: WaveformModel

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def can_tune(cls, base: Any) -> bool:
        return super().can_tune(base) and cls.has_head(base.spec)

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Encoder:
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

    def loss(self, tensors: Tensors) -> LossSums:
        first_row = self.setup.ranks.first_row
        return contrastive_loss(self.trained_model.model, tensors, first_row)

    # --- evaluation -------------------------------------------------------------------------------

    def likelihood(self, split: str) -> dict[str, Any]:
        return {}  # the score has the loss

    def score(self, split: str) -> Score:
        """The contrastive loss, with the masks and negatives of one seed."""
        loss, right, masked, codes, batches = self.totals(split, self._contrasts)
        examples = len(self.source.splits[split])
        accuracy = 100 * right / masked
        return Score(
            loss=loss / masked, accuracy=accuracy, codes=codes / batches, examples=examples
        )

    def _contrasts(self, batch: Batch) -> tuple[Tensor | float, ...]:
        masked = batch.tensors["masked"]
        negatives = batch.tensors["negatives"]
        head = self.model.require(ContrastiveHead)
        output = contrast(self.model, batch.tensors)
        loss, _ = head.losses(output, masked, negatives)
        right = head.logits(output, masked, negatives).argmax(dim=-1) == 0
        return loss, right.sum(), batch.tokens, output.perplexity, 1


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
