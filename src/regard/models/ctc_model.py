"""Speech recognition by an encoder over waveforms with a CTC head (Wav2Vec2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.audio import RATE, log_mel, read_wav
from regard.data.padding import pad_rows
from regard.decode.batch_decoding import batch_by_length
from regard.errors import DataError, ModelError
from regard.model import Encoder
from regard.models.base import Model
from regard.models.sound import (
    Sound,
    read_folder_json,
    read_recordings,
    read_samples,
    spectrogram_image,
)
from regard.text.ctc import CTCDecoder

if TYPE_CHECKING:
    from regard.look import MediaInput

_BATCH_SAMPLES = 60 * RATE  # a minute of sound, padding included
_LOOK_SECONDS = 10  # of a recording that `regard.look` shows: this model has no window
_LOOK_MELS = 80  # Whisper's number, for a picture only


class CTCModel(Model):
    """An encoder that transcribes speech letter by letter; made by `regard.load(folder)`.

    Connectionist temporal classification: Graves et al. 2006.
    """

    model: Encoder
    spec: kinds.Encoder
    medium = "sound"

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
                    "this model has no letters",
                    "give them when it is made, or open it from a folder",
                )
            self._decoder = CTCDecoder.open(self.folder)
        return self._decoder

    def files(self) -> Mapping[str, str | dict[str, Any]]:
        if self._decoder is None:
            return {}
        return self._decoder.files()

    @cached_property
    def do_normalize(self) -> bool:
        """Whether samples are scaled to mean 0 and variance 1, by preprocessor_config.json."""
        config = read_folder_json(self, "preprocessor_config.json")
        if config.get("sampling_rate", RATE) != RATE:
            raise ModelError(
                f"this model expects {config['sampling_rate']} samples a second",
                f"only {RATE} are understood",
            )
        return bool(config.get("do_normalize", True))

    @overload
    def transcribe(self, sound: list[Sound]) -> list[str]: ...
    @overload
    def transcribe(self, sound: Sound) -> str: ...
    def transcribe(self, sound: Sound | list[Sound]) -> str | list[str]:
        """The text of a recording, by greedy CTC decoding.

        The likeliest letter of each frame; repeated ones are merged, then blanks removed.
        """
        sounds = sound if isinstance(sound, list) else [sound]
        waveforms = [self.waveform(one) for one in read_recordings(sounds, self.say)]
        texts = [self.decoder.text(ids) for ids in self._frame_labels(waveforms)]
        return texts if isinstance(sound, list) else texts[0]

    def read_medium(self, data: bytes) -> MediaInput:
        """The first seconds of a recording."""
        from regard.look import MediaInput

        samples = read_wav(data)[: _LOOK_SECONDS * RATE]
        seconds = max(0.1, len(samples) / RATE)
        mels = log_mel(samples, _LOOK_MELS, seconds)[0]  # [mels, frames]
        inputs = self.waveform(samples)[None].to(self.device, self.dtype)  # [1, samples]
        return MediaInput(inputs, spectrogram_image(mels))

    @torch.inference_mode()
    def _frame_labels(self, waveforms: list[Tensor]) -> list[list[int]]:
        """The likeliest label of each frame of each waveform."""
        # A norm over time includes the padding: such models take one recording at a time.
        batch_samples = 1 if self.spec.waves.normalizes_over_time else _BATCH_SAMPLES
        self.model.eval()
        results: list[list[int]] = [[] for _ in waveforms]
        for rows in batch_by_length([len(waveform) for waveform in waveforms], batch_samples):
            batch = [waveforms[i] for i in rows]
            inputs, padding_mask = pad_rows([waveform.numpy() for waveform in batch], 0.0)  # [B, S]
            inputs = inputs.to(self.device, self.dtype)
            padding_mask = padding_mask.to(self.device)
            # A batch of one has no padding: the faster path without a mask.
            hidden, _ = self.model(inputs, padding_mask if len(rows) > 1 else None)
            logits = require_finite(self.model.classes(hidden, None), self.model)
            labels = logits.argmax(dim=-1).cpu()  # [B, T]
            frame_mask = self.model.input.output_padding_mask(padding_mask)  # [B, T]
            assert frame_mask is not None
            for i, row_labels, is_frame in zip(rows, labels, frame_mask.cpu(), strict=True):
                results[i] = row_labels[is_frame].tolist()
        return results

    def waveform(self, sound: Sound) -> Tensor:
        """The samples of a recording as the model expects them: [samples]."""
        waveform = torch.from_numpy(read_samples(sound))
        if not self.do_normalize:
            return waveform
        # The constant and the biased variance of Hugging Face's feature extractor.
        return (waveform - waveform.mean()) / (waveform.var(correction=0) + 1e-7).sqrt()
