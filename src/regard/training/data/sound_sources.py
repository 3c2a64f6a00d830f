"""Sources of recordings: waveforms or spectrograms, with classes, with transcripts, or alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.core.frontends.waveform_frontend import Waveform
from regard.data.audio import HOP, RATE, SECONDS, Samples, read_wav_and_rate, resample
from regard.data.batching import Batch, Rows
from regard.data.labelled import (
    Recording,
    read_labelled_recordings,
    read_transcripts,
    read_unlabelled_recordings,
)
from regard.data.padding import pad_rows
from regard.data.text.ctc import CTCDecoder
from regard.models import CTCModel, Model, SoundClassifier, SpectrogramClassifier, SpeechToText
from regard.models.inputs.sound import read_samples, say_resampled
from regard.models.sound_models import WaveformModel
from regard.system import disk
from regard.system.errors import DataError, SettingError
from regard.training.data.sound_augmentation import LengthLimits, SoundAugmentation
from regard.training.data.source import ModelInputs, Position
from regard.training.data.stored_items import ItemData, ItemSource, LabelledItems, StoredItems
from regard.training.data.written_texts import WrittenTexts
from regard.training.setup import Setup

WAVEFORM = "input_values"  # the main inputs of models of sound
SPECTROGRAM = "input_features"
# Of an encoder over 100 frames a second, of which its front end keeps every other.
POSITIONS_PER_SECOND = 50


def stored_recording(recording: Recording, rates: set[int]) -> tuple[Samples, str]:
    """Samples at 16 kHz and the text of a recording, whose file's rate is added to `rates`."""
    name: str | Path = "a recording"
    if isinstance(recording.audio, Path):
        name = recording.audio
        samples, rate = read_wav_and_rate(name)
        rates.add(rate)
        if not len(samples):
            raise DataError(f"{name} contains no audio", "leave it out of the table")
        samples = resample(samples, rate)
    else:
        samples = read_samples(recording.audio)
    # As text comes out of a model: one space between words, none at the ends.
    text = " ".join(recording.text.split())
    if not text:
        raise DataError(f"{name} has no transcript or label", "write what is heard in it")
    return samples.astype("<f4"), text  # little endian on every machine: run folders travel


class Recordings(ItemSource):
    """Batches of recordings of similar lengths, augmented; these have no labels."""

    unit = "recordings"
    model_class: ClassVar[Callable[..., Model]] = WaveformModel
    evaluation_factor = 1
    read: ClassVar[staticmethod[..., Any]] = staticmethod(read_unlabelled_recordings)
    fewest_frames: ClassVar[int] = 1  # of a recording

    def __init__(self, model: Any, data: ItemData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.augmentation = SoundAugmentation(self.settings)
        self.reads_waveforms = model.spec.main_input_name == WAVEFORM
        self.labels = {name: self.label(name, speech) for name, speech in data.sets.items()}
        # Checked for all splits before the first step.
        self._lengths = {name: self._positions(name) for name in data.sets}

    # --- preparing a run --------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> ItemData:
        rates: set[int] = set()
        sets = cls.stored(setup, partial(stored_recording, rates=rates))
        say_resampled(rates, setup.say)
        counts = ", ".join(f"{len(speech):,} {name}" for name, speech in sets.items())
        setup.say(f"data: {counts} recordings")
        return ItemData(sets, cls.vocabulary(setup, base, sets["train"].texts))

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        return {
            "config.json": model.config,
            "preprocessor_config.json": feature_extractor_config(model.spec),
        }

    # --- labels -----------------------------------------------------------------------------------

    def label(self, name: str, speech: StoredItems) -> list[list[int]]:
        """The labels of the recordings of a split; what cannot be learnt is refused."""
        return [[] for _ in range(len(speech))]

    def frames_needed(self, split: str, row: int) -> int:
        """The fewest positions of a model of waveforms that a recording must have."""
        return self.fewest_frames

    def _positions(self, name: str) -> NDArray[Any]:
        """[recordings, columns]: what each takes, which must be neither too short nor too long."""
        speech = self.splits[name]
        if not self.reads_waveforms:
            longest = int(speech.lengths.max()) / RATE
            if longest > self.model.seconds:
                raise DataError(
                    f"a recording has {longest:.1f} seconds, but the model hears "
                    f"{self.model.seconds:g}",
                    "cut such recordings, and their transcripts, into parts",
                )
            # The same for all: every recording is padded to the window with silence.
            return np.full((len(speech), 1), round(self.model.seconds * POSITIONS_PER_SECOND))
        frames: NDArray[Any] = self.model.frames(speech.lengths)
        needed = np.array([self.frames_needed(name, row) for row in range(len(speech))])
        too_short = np.flatnonzero(frames < needed)
        if len(too_short):
            row = int(too_short[0])
            raise DataError(
                f"{len(too_short):,} recordings of {name} are too short: "
                f"{speech.texts[row]!r} needs {needed[row]} frames, and there are "
                f"{max(0, int(frames[row]))}",
                "correct the transcripts, or leave these recordings out",
            )
        return frames[:, None]

    # --- batches ----------------------------------------------------------------------------------

    def lengths(self, split: str) -> NDArray[Any]:
        return self._lengths[split]

    @property
    def max_evaluation_rows(self) -> int | None:
        # A norm over time includes the padding: one at a time, as models do outside of training.
        is_alone = self.reads_waveforms and self.model.spec.waves.normalizes_over_time
        return 1 if is_alone else None

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        """`waves` and `padding_mask` [B, samples], or `features` [B, mels, frames]; and labels."""
        epoch, _ = position
        tensors = {}
        if self.reads_waveforms:
            waves = [self.waveform(split, row, epoch) for row in rows]
            tensors["waves"], tensors["padding_mask"] = pad_rows(waves, 0.0)
        else:
            tensors["features"] = torch.cat([self.spectrogram(split, row, epoch) for row in rows])
        tensors |= self.targets(split, rows)
        # Recordings without labels, or with a class each, count themselves.
        labels = sum(len(self.labels[split][row]) for row in rows)
        return Batch(tensors, labels or len(rows), np.asarray(rows))

    def model_inputs(self, tensors: Mapping[str, Tensor]) -> ModelInputs:
        inputs = tensors["waves" if self.reads_waveforms else "features"]
        return ModelInputs(inputs, tensors.get("padding_mask"))

    def _samples(self, split: str, row: int, epoch: int) -> Samples:
        samples: Samples = self.splits[split][row]
        if split != "train":
            return samples
        return self.augmentation.samples(samples, row, epoch, self.length_limits(split, row))

    def length_limits(self, split: str, row: int) -> LengthLimits:
        """The samples that an augmented recording may have."""
        if not self.reads_waveforms:
            return LengthLimits(most=round(self.model.seconds * RATE))
        front_end = self.model.model.input
        assert isinstance(front_end, Waveform), "such models read waveforms"
        # A recording that is played faster must still have a frame for each character.
        return LengthLimits(fewest=front_end.receptive_field(self.frames_needed(split, row)))

    def waveform(self, split: str, row: int, epoch: int) -> Samples:
        """A recording as models of waveforms read it, [samples]; augmented if it is to train on."""
        samples = self._samples(split, row, epoch)
        if split == "train":
            samples = self.augmentation.mask_waveform(samples, row, epoch)
        waveform: Samples = self.model.waveform(samples).numpy()
        return waveform

    def spectrogram(self, split: str, row: int, epoch: int) -> Tensor:
        """A recording as a log-mel spectrogram, [1, mels, frames]; augmented as a waveform is."""
        samples = self._samples(split, row, epoch)
        features: Tensor = self.model.features(samples)
        if split == "train":
            self.augmentation.mask_spectrogram(features, -(-len(samples) // HOP), row, epoch)
        return features

    def describe(self) -> str:
        return ""  # said when the recordings were opened


class LabelledRecordings(LabelledItems, Recordings):
    """Recordings of one class each: a keyword, a speaker, a language."""

    read = staticmethod(read_labelled_recordings)

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: ItemData) -> Model:
        if description.main_input_name == SPECTROGRAM:
            return SpectrogramClassifier(model, description, config)
        return SoundClassifier(model, description, config)


class SpelledTranscripts(Recordings):
    """Transcripts as characters: those of the training data, or of the folder that is fine-tuned.

    The padding token is the blank of CTC.
    """

    read = staticmethod(read_transcripts)

    @classmethod
    def vocabulary(cls, setup: Setup, base: Any, texts: list[str]) -> CTCDecoder:
        if base is not None and (base.folder / "vocab.json").is_file():
            return CTCDecoder.open(base.folder)
        decoder = CTCDecoder.of_texts(texts)
        if base is not None:
            for name, content in decoder.files().items():
                disk.write_json(setup.run_folder.folder / name, content)
        return decoder

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: ItemData) -> Model:
        decoder: CTCDecoder = data.vocabulary
        head = description.labels
        # Folders may have more outputs than characters, never fewer.
        if head is None or head.count <= max(decoder.names):
            raise SettingError(
                f"the model has {0 if head is None else head.count} labels, but there are "
                f"{len(decoder.names)} characters",
                f"give it ClassifierHead({len(decoder.names)}, 'transcribe')",
            )
        return CTCModel(model, description, decoder, config)

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        return super().files(model, setup) | model.decoder.files()

    def label(self, name: str, speech: StoredItems) -> list[list[int]]:
        # Characters that only occur in other splits cannot be learnt, but count as errors.
        allow = name != "train"
        decoder = self.data.vocabulary
        return [decoder.labels(text, allow_unknown=allow) for text in speech.texts]

    def frames_needed(self, split: str, row: int) -> int:
        # One infinite loss would skip an update.
        return alignment_length(self.labels[split][row])

    def targets(self, split: str, rows: Rows) -> dict[str, Tensor]:
        """`labels` [B, L] and `label_lengths` [B]."""
        selected = [self.labels[split][i] for i in rows]
        labels, _ = pad_rows(selected, self.data.vocabulary.blank)
        return {"labels": labels, "label_lengths": torch.tensor([len(row) for row in selected])}


class PromptedTranscripts(WrittenTexts, Recordings):
    """Transcripts as tokens after a prompt: start, perhaps language and task."""

    read = staticmethod(read_transcripts)
    model_class = SpeechToText
    model: SpeechToText

    def __init__(self, model: SpeechToText, data: ItemData, setup: Setup) -> None:
        self.language = setup.recipe.data.languages if model.languages else None
        self.prompt = model.decoder_prompt(None, self.language)
        super().__init__(model, data, setup)

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        files = super().files(model, setup)
        files["generation_config.json"]["is_multilingual"] = False
        return files

    def _positions(self, name: str) -> NDArray[Any]:
        return np.column_stack([super()._positions(name), self.token_counts(name)])


def alignment_length(labels: Sequence[int]) -> int:
    """The fewest frames that a transcript can be aligned to.

    Two equal labels in a row need a blank between them.
    """
    repeated = sum(one == following for one, following in pairwise(labels))
    return len(labels) + repeated


def feature_extractor_config(description: Any) -> dict[str, Any]:
    """preprocessor_config.json, as transformers' feature extractors read it."""
    if description.main_input_name == WAVEFORM:
        return {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "feature_size": 1,
            "sampling_rate": RATE,
            "padding_side": "right",
            "padding_value": 0.0,
            "do_normalize": True,
            # Norms over time count the padding: such models were pretrained without a mask.
            "return_attention_mask": not description.waves.normalizes_over_time,
        }
    # What a model that speaks makes has no window.
    positions = getattr(description.spectrogram, "max_length", None) or 0
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": description.spectrogram.mels,
        "sampling_rate": RATE,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": round(positions / POSITIONS_PER_SECOND) or SECONDS,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
