"""Classification of recordings: by an encoder over waveforms, or over spectrograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.audio import Samples
from regard.models.base import Model
from regard.models.inputs.sound import (
    Sound,
    check_spectrogram,
    read_recordings,
    spectrogram,
    spectrogram_image,
    window_seconds,
)
from regard.models.labels import Scores, label_names, label_scores, top_labels
from regard.models.tasks import one_or_many
from regard.models.waveform_model import WaveformModel
from regard.system.errors import DataError
from regard.wirings.encoder import Encoder

if TYPE_CHECKING:
    from regard.look import MediaInput
    from regard.look.backdrop import Backdrop

_WINDOWS_AT_ONCE = 8


class _Classifier(Model):
    """What both kinds of classifiers share: labels, and the probability of each."""

    evaluations = ("sounds",)
    model: Encoder
    spec: kinds.Encoder

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the logits."""
        assert self.spec.labels is not None
        return label_names(self.config, self.spec.labels.count)

    def batches(self, sounds: Sequence[Sound]) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
        """Recordings as tensors: their numbers, the inputs and the padding mask of each batch."""
        raise NotImplementedError

    @one_or_many
    @torch.inference_mode()
    def classify(self, sounds: list[Sound]) -> list[Scores]:
        """Label → probability of a recording, likeliest first."""
        self.model.eval()
        scores: list[Scores] = [{} for _ in sounds]
        for rows, inputs, padding_mask in self.batches(sounds):
            hidden, _ = self.model(inputs, padding_mask)
            logits = self.model.classes(hidden, padding_mask).float().cpu()  # [B, labels]
            require_finite(logits, self.model)
            for i, row in zip(rows, logits, strict=True):
                scores[i] = self._scores(row)
        return scores

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        from regard.look.backdrop import SoundBackdrop

        assert isinstance(backdrop, SoundBackdrop), "recordings stand on sound"
        return replace(backdrop, answer=top_labels(self._scores(logits[0].float())))

    def _scores(self, logits: Tensor) -> Scores:
        return label_scores(logits, self.labels, self.config.get("problem_type"))


class SoundClassifier(WaveformModel, _Classifier):
    """Names what is heard: a keyword, a speaker, a language; made by `regard.load(folder)`."""


class SpectrogramClassifier(_Classifier):
    """Whisper's encoder as a classifier of recordings; made by `regard.load(folder)`.

    It hears one window; shorter recordings are padded with silence.
    """

    medium = "sound"

    @property
    def seconds(self) -> float:
        """The length of the window that is heard."""
        return window_seconds(self.spec.spectrogram)

    def features(self, samples: Samples) -> Tensor:
        """The log-mel spectrogram of a recording: [1, mels, frames]."""
        windows = spectrogram(samples, self.spec.spectrogram)
        if len(windows) > 1:
            raise DataError(
                f"a recording is longer than the {self.seconds:g} seconds that this model reads",
                "split it into parts",
            )
        return windows

    def batches(self, sounds: Sequence[Sound]) -> Iterator[tuple[list[int], Tensor, None]]:
        """Recordings by eight: their numbers and spectrograms [B, mels, frames]."""
        check_spectrogram(self)
        samples = read_recordings(sounds, self.say)
        for begin in range(0, len(samples), _WINDOWS_AT_ONCE):
            rows = list(range(begin, min(begin + _WINDOWS_AT_ONCE, len(samples))))
            features = torch.cat([self.features(samples[row]) for row in rows])
            yield rows, features.to(self.device, self.dtype), None

    def read_medium(self, data: bytes) -> MediaInput:
        """A recording of at most one window."""
        from regard.look import MediaInput
        from regard.look.backdrop import SoundBackdrop

        check_spectrogram(self)
        features = self.features(read_recordings([data], self.say)[0])
        picture = spectrogram_image(features[0])
        backdrop = SoundBackdrop(picture, self.seconds)
        return MediaInput(features.to(self.device, self.dtype), picture, backdrop=backdrop)
