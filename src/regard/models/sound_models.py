"""Encoders of sound: over waveforms (Wav2Vec2, HuBERT) or spectrograms (Whisper's), by their heads.

Recordings are classified, or transcribed letter by letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.core.frontends.waveform_frontend import Waveform
from regard.data.audio import RATE, Samples, log_mel
from regard.data.padding import pad_rows
from regard.data.text.ctc import CTCDecoder, forced_alignment
from regard.decode.batch_decoding import SpecialTokens, batch_by_length
from regard.models.base import Files, Model
from regard.models.inputs.sound import Sound, read_recordings, spectrogram_image
from regard.models.labels import Scores
from regard.models.tasks import one_or_many
from regard.system.errors import DataError, ModelError
from regard.wirings.encoder import Encoder

if TYPE_CHECKING:
    from regard.look import MediaInput

_BATCH_SAMPLES = 60 * RATE  # a minute of sound, padding included
_WINDOWS_AT_ONCE = 8  # of spectrograms
_LOOK_SECONDS = 10  # of a recording that `regard.look` shows: a model of waveforms has no window
_LOOK_MELS = 80  # Whisper's number, for a picture only

# The only spectrogram that is implemented: frames of 25 ms every 10 ms.
_FEATURES = {"sampling_rate": RATE, "n_fft": 400, "hop_length": 160}

# The numbers of some recordings, their inputs, and the padding mask, if anything is padded.
Batch = tuple[list[int], Tensor, Tensor | None]


class SoundModel(Model):
    """A model that reads recordings."""

    medium = "sound"

    def _shown(
        self, inputs: Tensor, mels: Tensor, seconds: float, prompt: SpecialTokens | None = None
    ) -> MediaInput:
        """An input [1, …] for `regard.look`, on its spectrogram [mels, frames]."""
        from regard.look import MediaInput
        from regard.look.backdrop import SoundBackdrop

        picture = spectrogram_image(mels)
        backdrop = SoundBackdrop(picture, seconds)
        inputs = inputs.to(self.device, self.dtype)
        return MediaInput(inputs, None, {}, backdrop, prompt, picture=picture)


# ------------------------------------------------------------------ what they read


class WaveformModel(SoundModel):
    """An encoder that reads samples of sound; base class of those with a head."""

    model: Encoder
    spec: kinds.Encoder

    @cached_property
    def do_normalize(self) -> bool:
        """Whether samples are scaled to mean 0 and variance 1, by preprocessor_config.json."""
        config = self.read_json("preprocessor_config.json")
        if config.get("sampling_rate", RATE) != RATE:
            raise ModelError(
                f"this model expects {config['sampling_rate']} samples per second",
                f"use a model with a sampling_rate of {RATE}",
            )
        return bool(config.get("do_normalize", True))

    def read_medium(self, data: bytes) -> MediaInput:
        """The first seconds of a recording."""
        samples = read_recordings([data], self.say)[0][: _LOOK_SECONDS * RATE]
        seconds = max(0.1, len(samples) / RATE)
        mels = log_mel(samples, _LOOK_MELS, seconds)[0]  # [mels, frames]
        return self._shown(self.waveform(samples)[None], mels, seconds)  # [1, samples]

    def batches(self, sounds: Sequence[Sound], sampling_rate: int | None = None) -> Iterator[Batch]:
        """Recordings of similar length: their numbers, samples [B, S] and padding mask [B, S].

        A batch of one has no padding and no mask: attention then takes the faster path.
        """
        waveforms = [self.waveform(one) for one in read_recordings(sounds, self.say, sampling_rate)]
        # A norm over time includes the padding: such models take one recording at a time.
        batch_samples = 1 if self.spec.waves.normalizes_over_time else _BATCH_SAMPLES
        for rows in batch_by_length([len(waveform) for waveform in waveforms], batch_samples):
            inputs, padding_mask = pad_rows([waveforms[i].numpy() for i in rows], 0.0)  # [B, S]
            inputs = inputs.to(self.device, self.dtype)
            yield rows, inputs, padding_mask.to(self.device) if len(rows) > 1 else None

    def frames(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions that the convolutions make of so many samples: [recordings]."""
        front_end = self.model.input
        assert isinstance(front_end, Waveform), "such models read waveforms"
        return front_end.output_lengths(torch.from_numpy(lengths)).numpy()

    def waveform(self, samples: Samples) -> Tensor:
        """The samples of a recording as the model expects them: [samples]."""
        waveform = torch.from_numpy(samples)
        if not self.do_normalize:
            return waveform
        # The constant and the biased variance of Hugging Face's feature extractor.
        return (waveform - waveform.mean()) / (waveform.var(correction=0) + 1e-7).sqrt()


class SpectrogramModel(SoundModel):
    """A model that reads log-mel spectrograms, as Whisper does."""

    spec: kinds.Encoder | kinds.EncoderDecoder

    @cached_property
    def front_end(self) -> kinds.Spectrogram:
        """The spectrogram that it reads, which the folder must describe alike."""
        config = self.read_json("preprocessor_config.json")
        for key, value in _FEATURES.items():
            if config.get(key, value) != value:
                raise ModelError(
                    f"preprocessor_config.json: {key} is {config[key]}, but only {value} is "
                    "supported",
                    "use another model, or correct the key if it is wrong",
                )
        return self.spec.spectrogram

    @property
    def seconds(self) -> float:
        """The length of a window."""
        positions = self.spec.spectrogram.max_length
        assert positions is not None  # Whisper has a table of sinusoids
        # The second convolution of the front end has stride 2: two frames a position.
        return positions * 2 * _FEATURES["hop_length"] / RATE

    def features(self, samples: Samples) -> Tensor:
        """The log-mel spectrogram of a recording: [windows, mels, frames]."""
        return log_mel(samples, self.front_end.mels, self.seconds)

    def prompt(self, features: Tensor) -> SpecialTokens | None:
        """What the decoder is told of a recording, if there is one."""
        return None

    def read_medium(self, data: bytes) -> MediaInput:
        """The first window of a recording, and the decoder prompt of its language."""
        features = self.features(read_recordings([data], self.say)[0])[:1]
        return self._shown(features, features[0], self.seconds, self.prompt(features))


# ------------------------------------------------------------------ classification


class _Classifier(SoundModel):
    """A classifier of recordings, whatever it reads of them."""

    evaluations = ("sounds",)
    model: Encoder
    spec: kinds.Encoder

    batches: Callable[..., Iterator[Batch]]

    @one_or_many
    @torch.inference_mode()
    def classify(self, sounds: list[Sound], sampling_rate: int | None = None) -> list[Scores]:
        """Label → probability of a recording, likeliest first.

        `sampling_rate` is that of arrays; files say their own.
        """
        self.model.eval()
        scores: dict[int, Scores] = {}
        for rows, inputs, padding_mask in self.batches(sounds, sampling_rate):
            hidden, _ = self.model(inputs, padding_mask)
            logits = self.model.classes(hidden, padding_mask).float().cpu()  # [B, labels]
            scores |= zip(rows, self.scores(require_finite(logits, self.model)), strict=True)
        return [scores[i] for i in range(len(sounds))]


class SoundClassifier(WaveformModel, _Classifier):
    """Names what is heard: a keyword, a speaker, a language; made by `regard.load(folder)`."""


class SpectrogramClassifier(SpectrogramModel, _Classifier):
    """Whisper's encoder as a classifier of recordings; made by `regard.load(folder)`.

    It hears one window; shorter recordings are padded with silence.
    """

    spec: kinds.Encoder

    def features(self, samples: Samples) -> Tensor:
        """The log-mel spectrogram of a recording: [1, mels, frames]."""
        windows = super().features(samples)
        if len(windows) > 1:
            raise DataError(
                f"a recording is longer than the {self.seconds:g} seconds that this model reads",
                "split it into parts",
            )
        return windows

    def batches(self, sounds: Sequence[Sound], sampling_rate: int | None = None) -> Iterator[Batch]:
        """Recordings by eight: their numbers and spectrograms [B, mels, frames]."""
        samples = read_recordings(sounds, self.say, sampling_rate)
        for begin in range(0, len(samples), _WINDOWS_AT_ONCE):
            rows = [*range(len(samples))[begin : begin + _WINDOWS_AT_ONCE]]
            features = torch.cat([self.features(samples[row]) for row in rows])
            yield rows, features.to(self.device, self.dtype), None


# ------------------------------------------------------------------ transcription


class CTCModel(WaveformModel):
    """An encoder that transcribes speech letter by letter; made by `regard.load(folder)`.

    Connectionist temporal classification: Graves et al. 2006.
    """

    evaluations = ("transcribe",)

    def __init__(
        self,
        model: Encoder,
        spec: kinds.Encoder,
        decoder: CTCDecoder | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, spec, config)
        self._decoder = decoder

    @property
    def decoder(self) -> CTCDecoder:
        """The alphabet and its blank, opened when it is first needed."""
        if self._decoder is None:
            if self.folder is None:
                raise DataError(
                    "this CTC model has no vocabulary",
                    "pass one to the constructor, or load the model from a folder",
                )
            self._decoder = CTCDecoder.open(self.folder)
        return self._decoder

    def files(self) -> Files:
        return self._decoder.files() if self._decoder else {}

    def label_name(self, index: int) -> str:
        """The letter of a logit; without an alphabet, its number."""
        try:
            decoder = self.decoder
        except DataError:
            return super().label_name(index)
        if index == decoder.blank:
            return "(blank)"
        letter = decoder.names.get(index) or super().label_name(index)
        return " " if letter == decoder.space else letter

    def short_answer(self, logits: Tensor) -> str:
        try:
            return f"“{self.decoder.text(logits[0].argmax(dim=-1).tolist())}”"
        except DataError:  # without letters, its attention can be looked at all the same
            return ""

    @one_or_many
    def transcribe(self, sounds: list[Sound], sampling_rate: int | None = None) -> list[str]:
        """The text of a recording, by greedy CTC decoding.

        The likeliest letter of each frame; repeated ones are merged, then blanks removed.
        `sampling_rate` is that of arrays; files say their own.
        """
        return [self.decoder.text(ids) for ids in self.frame_labels(sounds, sampling_rate)]

    def frame_labels(
        self, sounds: Sequence[Sound], sampling_rate: int | None = None
    ) -> list[list[int]]:
        """The likeliest label of each frame of some recordings, as `decoder` reads them."""
        each = self.frame_logits(sounds, sampling_rate)
        return [logits.argmax(dim=-1).tolist() for logits in each]

    def align(
        self, sounds: Sequence[Sound], texts: Sequence[str], sampling_rate: int | None = None
    ) -> list[list[float]]:
        """Where each character of a text but the first begins, as a share of its recording.

        By forced alignment: the likeliest of all alignments of this text.
        """
        results = []
        for logits, text in zip(self.frame_logits(sounds, sampling_rate), texts, strict=True):
            log_p = logits.float().log_softmax(dim=-1).numpy()
            labels = self.decoder.labels(text, allow_unknown=True)
            begins = forced_alignment(log_p, labels, self.decoder.blank)
            results.append([begin / len(log_p) for begin in begins])
        return results

    @torch.inference_mode()
    def frame_logits(
        self, sounds: Sequence[Sound], sampling_rate: int | None = None
    ) -> list[Tensor]:
        """The logits of the labels of each frame [T, V] of some recordings."""
        self.model.eval()
        results: dict[int, Tensor] = {}
        for rows, inputs, padding_mask in self.batches(sounds, sampling_rate):
            hidden, _ = self.model(inputs, padding_mask)
            logits = require_finite(self.model.classes(hidden, None), self.model)
            logits = logits.cpu()  # [B, T, V]
            frame_mask = self.model.input.output_padding_mask(padding_mask)  # [B, T]
            for row, i in enumerate(rows):
                frames = logits[row]
                if frame_mask is not None:
                    frames = frames[frame_mask[row].cpu()]
                results[i] = frames
        return [results[i] for i in range(len(sounds))]
