"""Classification of recordings: by an encoder over waveforms, or over spectrograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.audio import Samples
from regard.encoder import Encoder
from regard.errors import DataError
from regard.models.base import Model
from regard.models.labels import Scores, label_names, label_scores, top_labels
from regard.models.sound import (
    Sound,
    check_spectrogram,
    read_recordings,
    spectrogram,
    spectrogram_image,
    window_seconds,
)
from regard.models.waveform_model import WaveformModel

if TYPE_CHECKING:
    from regard.look import MediaInput
    from regard.look.backdrop import Backdrop

_WINDOWS_AT_ONCE = 8


class SoundClassifier(WaveformModel):
    """Names what is heard: a keyword, a speaker, a language; made by `regard.load(folder)`."""

    evaluations = ("sounds",)

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the logits."""
        assert self.spec.labels is not None
        return label_names(self.config, self.spec.labels.count)

    @overload
    def classify(self, sound: list[Sound]) -> list[Scores]: ...
    @overload
    def classify(self, sound: Sound) -> Scores: ...
    def classify(self, sound: Sound | list[Sound]) -> Scores | list[Scores]:
        """Label → probability of a recording, likeliest first."""
        scores = _classify(self, sound if isinstance(sound, list) else [sound])
        return scores if isinstance(sound, list) else scores[0]

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        return _with_classes(self, backdrop, logits)


class SpectrogramClassifier(Model):
    """Whisper's encoder as a classifier of recordings; made by `regard.load(folder)`.

    It hears one window; shorter recordings are padded with silence.
    """

    evaluations = ("sounds",)
    model: Encoder
    spec: kinds.Encoder
    medium = "sound"

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the logits."""
        assert self.spec.labels is not None
        return label_names(self.config, self.spec.labels.count)

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

    @overload
    def classify(self, sound: list[Sound]) -> list[Scores]: ...
    @overload
    def classify(self, sound: Sound) -> Scores: ...
    def classify(self, sound: Sound | list[Sound]) -> Scores | list[Scores]:
        """Label → probability of a recording, likeliest first."""
        check_spectrogram(self)
        scores = _classify(self, sound if isinstance(sound, list) else [sound])
        return scores if isinstance(sound, list) else scores[0]

    def batches(self, sounds: Sequence[Sound]) -> Iterator[tuple[list[int], Tensor, None]]:
        """Recordings by eight: their numbers and spectrograms [B, mels, frames]."""
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

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        return _with_classes(self, backdrop, logits)


def _with_classes(
    model: SoundClassifier | SpectrogramClassifier, backdrop: Backdrop, logits: Tensor
) -> Backdrop:
    from regard.look.backdrop import SoundBackdrop

    assert isinstance(backdrop, SoundBackdrop), "recordings stand on sound"
    scores = label_scores(logits[0].float(), model.labels, model.config.get("problem_type"))
    return replace(backdrop, answer=top_labels(scores))


@torch.inference_mode()
def _classify(
    model: SoundClassifier | SpectrogramClassifier, sounds: Sequence[Sound]
) -> list[Scores]:
    problem_type = model.config.get("problem_type")
    model.model.eval()
    scores: list[Scores] = [{} for _ in sounds]
    for rows, inputs, padding_mask in model.batches(sounds):
        hidden, _ = model.model(inputs, padding_mask)
        logits = model.model.classes(hidden, padding_mask).float().cpu()  # [B, labels]
        require_finite(logits, model.model)
        for i, row in zip(rows, logits, strict=True):
            scores[i] = label_scores(row, model.labels, problem_type)
    return scores
