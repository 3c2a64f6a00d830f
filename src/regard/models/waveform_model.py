"""An encoder over waveforms (Wav2Vec2, HuBERT): how recordings become its batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec as kinds
from regard.core.frontends.waveform_frontend import Waveform
from regard.data.audio import RATE
from regard.data.log_mel import log_mel
from regard.data.padding import pad_rows
from regard.decode.batch_decoding import batch_by_length
from regard.models.base import Model
from regard.models.inputs.sound import (
    Sound,
    read_folder_json,
    read_recordings,
    read_samples,
    spectrogram_image,
)
from regard.system.errors import ModelError
from regard.wirings.encoder import Encoder

if TYPE_CHECKING:
    from regard.look import MediaInput

_BATCH_SAMPLES = 60 * RATE  # a minute of sound, padding included
_LOOK_SECONDS = 10  # of a recording that `regard.look` shows: this model has no window
_LOOK_MELS = 80  # Whisper's number, for a picture only


class WaveformModel(Model):
    """An encoder that reads samples of sound; base class of those with a head."""

    model: Encoder
    spec: kinds.Encoder
    medium = "sound"

    @cached_property
    def do_normalize(self) -> bool:
        """Whether samples are scaled to mean 0 and variance 1, by preprocessor_config.json."""
        config = read_folder_json(self, "preprocessor_config.json")
        if config.get("sampling_rate", RATE) != RATE:
            raise ModelError(
                f"this model expects {config['sampling_rate']} samples per second",
                f"use a model with a sampling_rate of {RATE}",
            )
        return bool(config.get("do_normalize", True))

    def read_medium(self, data: bytes) -> MediaInput:
        """The first seconds of a recording."""
        from regard.look import MediaInput
        from regard.look.backdrop import SoundBackdrop

        samples = read_recordings([data], self.say)[0][: _LOOK_SECONDS * RATE]
        seconds = max(0.1, len(samples) / RATE)
        mels = log_mel(samples, _LOOK_MELS, seconds)[0]  # [mels, frames]
        inputs = self.waveform(samples)[None].to(self.device, self.dtype)  # [1, samples]
        picture = spectrogram_image(mels)
        return MediaInput(inputs, picture, backdrop=SoundBackdrop(picture, seconds))

    def batches(self, sounds: Sequence[Sound]) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
        """Recordings of similar length: their numbers, samples [B, S] and padding mask [B, S].

        A batch of one has no padding and no mask: attention then takes the faster path.
        """
        waveforms = [self.waveform(one) for one in read_recordings(sounds, self.say)]
        # A norm over time includes the padding: such models take one recording at a time.
        batch_samples = 1 if self.spec.waves.normalizes_over_time else _BATCH_SAMPLES
        for rows in batch_by_length([len(waveform) for waveform in waveforms], batch_samples):
            batch = [waveforms[i].numpy() for i in rows]
            inputs, padding_mask = pad_rows(batch, 0.0)  # [B, S]
            inputs = inputs.to(self.device, self.dtype)
            yield rows, inputs, padding_mask.to(self.device) if len(rows) > 1 else None

    def frames(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions that the convolutions make of so many samples: [recordings]."""
        front_end = self.model.input
        assert isinstance(front_end, Waveform), "such models read waveforms"
        return front_end.output_lengths(torch.from_numpy(lengths)).numpy()

    def waveform(self, sound: Sound) -> Tensor:
        """The samples of a recording as the model expects them: [samples]."""
        waveform = torch.from_numpy(read_samples(sound))
        if not self.do_normalize:
            return waveform
        # The constant and the biased variance of Hugging Face's feature extractor.
        return (waveform - waveform.mean()) / (waveform.var(correction=0) + 1e-7).sqrt()
