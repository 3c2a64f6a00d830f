"""Base of the objectives that learn from recordings: batches of similar lengths."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec
from regard.data.audio import Samples
from regard.data.batching import Batch, BatchSampler, Rows, batch_indices
from regard.data.log_mel import HOP
from regard.errors import SettingError
from regard.models import Model, SpectrogramClassifier, SpeechToText
from regard.models.waveform_model import WaveformModel
from regard.training.data.sound_augmentation import LengthLimits, SoundAugmentation
from regard.training.data.sound_files import RecordedSpeech
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup

Vocabulary = TypeVar("Vocabulary")


@dataclass(frozen=True)
class SoundData(Generic[Vocabulary]):
    """Recordings by split, and what turns their texts into labels."""

    sets: dict[str, RecordedSpeech]
    vocabulary: Vocabulary


@dataclass(frozen=True)
class LabelledSound:
    """A split with the labels of its recordings.

    `lengths` [recordings, columns] are the positions that a recording takes in a batch.
    """

    speech: RecordedSpeech
    labels: list[list[int]]
    lengths: NDArray[Any]


class SoundObjective(Objective, Generic[Vocabulary]):
    """Batches of recordings of similar lengths; a subclass says what their labels and loss are."""

    data: SoundData[Vocabulary]

    def __init__(self, model: Model, data: SoundData[Vocabulary], setup: Setup) -> None:
        super().__init__(model, data, setup)
        settings = self.settings
        self.augmentation = SoundAugmentation(
            settings.seed,
            settings.speed_perturbation,
            settings.time_shift,
            settings.noise_snr,
            settings.time_masks,
            settings.time_mask_width,
            settings.frequency_masks,
            settings.frequency_mask_width,
        )
        self.splits = {name: self.label(name, speech) for name, speech in data.sets.items()}
        self.train_split = self.splits["train"]

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def check_kind(cls, description: Any, kinds: tuple[type[spec.ModelSpec], ...]) -> None:
        super().check_kind(description, kinds)
        is_spectrogram = description.main_input_name == "input_features"
        if is_spectrogram and description.spectrogram.max_length is None:
            raise SettingError(
                "the spec does not say how long a window of sound is",
                "give its Spectrogram positions of a length, such as FixedPosition(1500)",
            )

    # --- what a subclass defines ------------------------------------------------------------------

    @abstractmethod
    def label(self, name: str, speech: RecordedSpeech) -> LabelledSound:
        """A split with its labels; what the model cannot learn from is refused."""

    @abstractmethod
    def collate(
        self, split: LabelledSound, rows: Rows, position: tuple[int, int] = (0, 0)
    ) -> Batch:
        """The tensors of some recordings.

        `position` is the epoch and the number of the batch in it: whatever is drawn follows from it
        and the seed.
        """

    def length_limits(self, split: LabelledSound, row: int) -> LengthLimits:
        """The samples that an augmented recording may have."""
        return LengthLimits()

    @property
    def max_evaluation_rows(self) -> int | None:
        """How many recordings a validation batch may have; None for any number."""
        return None

    # --- recordings -------------------------------------------------------------------------------

    def _samples(self, split: LabelledSound, row: int, epoch: int) -> Samples:
        samples = split.speech[row]
        if split is not self.train_split:
            return samples
        return self.augmentation.samples(samples, row, epoch, self.length_limits(split, row))

    def waveform(self, split: LabelledSound, row: int, epoch: int) -> Samples:
        """A recording as models of waveforms read it, [samples]; augmented if it is to train on."""
        model: Any = self.trained_model
        assert isinstance(model, WaveformModel), "checked before"
        samples = self._samples(split, row, epoch)
        if split is self.train_split:
            samples = self.augmentation.mask_waveform(samples, row, epoch)
        return model.waveform(samples).numpy()

    def spectrogram(self, split: LabelledSound, row: int, epoch: int) -> Tensor:
        """A recording as models of log-mel spectrograms read it: [1, mels, frames].

        One of the training set is augmented.
        """
        model: Any = self.trained_model
        assert isinstance(model, SpeechToText | SpectrogramClassifier), "checked before"
        samples = self._samples(split, row, epoch)
        features = model.features(samples)
        if split is self.train_split:
            frames = -(-len(samples) // HOP)
            self.augmentation.mask_spectrogram(features, frames, row, epoch)
        return features

    # --- batches ----------------------------------------------------------------------------------

    def _order(self) -> BatchSampler:
        return BatchSampler(
            self.train_split.lengths, self.settings.batch_tokens, seed=self.settings.seed
        )

    def batches_per_epoch(self) -> int:
        return len(self._order().batches(0))

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, rows in self._order().iterate(epoch, index):
            # The position of the next batch comes with each: a checkpoint stores that.
            yield (now, i + 1), self.collate(self.train_split, rows, (now, i))

    def evaluation_batches(self, split: LabelledSound) -> Iterator[Batch]:
        """Once over the recordings of a split, on the device, with the model in eval mode."""
        self.model.eval()
        # Not shuffled: the same batches at every validation.
        batches = batch_indices(
            split.lengths,
            self.settings.batch_tokens,
            seed=0,
            epoch=0,
            shuffle=False,
            max_rows=self.max_evaluation_rows,
        )
        for number, rows in enumerate(batches):
            yield self.collate(split, rows, (0, number)).to(self.trained_model.device)

    def batch_nlls(
        self, split: LabelledSound, autocast: AbstractContextManager[Any]
    ) -> Iterator[tuple[Tensor, int]]:
        """−log p of the labels of each validation batch, and the units that it counts."""
        for batch in self.evaluation_batches(split):
            with torch.inference_mode(), autocast:
                _, nll = self.loss(batch.tensors)
            yield nll, batch.tokens

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        texts = self.train_split.speech.transcripts
        return [{"row": row, "transcript": texts[row]} for row in rows]
