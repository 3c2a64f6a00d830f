"""Speech recognition by an encoder over waveforms with a CTC head (Wav2Vec2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.text.ctc import CTCDecoder
from regard.models.inputs.sound import Sound
from regard.models.tasks import one_or_many
from regard.models.waveform_model import WaveformModel
from regard.system.errors import DataError
from regard.wirings.encoder import Encoder

if TYPE_CHECKING:
    from regard.look.backdrop import Backdrop


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

    def files(self) -> Mapping[str, str | dict[str, Any]]:
        if self._decoder is None:
            return {}
        return self._decoder.files()

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

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        from regard.look.backdrop import SoundBackdrop

        assert isinstance(backdrop, SoundBackdrop), "recordings stand on sound"
        try:
            text = self.decoder.text(logits[0].argmax(dim=-1).tolist())
        except DataError:  # without letters, its attention can be looked at all the same
            return backdrop
        return replace(backdrop, answer=f"“{text}”")

    @one_or_many
    def transcribe(self, sounds: list[Sound]) -> list[str]:
        """The text of a recording, by greedy CTC decoding.

        The likeliest letter of each frame; repeated ones are merged, then blanks removed.
        """
        return [self.decoder.text(ids) for ids in self._frame_labels(sounds)]

    @torch.inference_mode()
    def _frame_labels(self, sounds: list[Sound]) -> list[list[int]]:
        """The likeliest label of each frame of each recording."""
        self.model.eval()
        results: list[list[int]] = [[] for _ in sounds]
        for rows, inputs, padding_mask in self.batches(sounds):
            hidden, _ = self.model(inputs, padding_mask)
            logits = require_finite(self.model.classes(hidden, None), self.model)
            labels = logits.argmax(dim=-1).cpu()  # [B, T]
            frame_mask = self.model.input.output_padding_mask(padding_mask)  # [B, T]
            for row, i in enumerate(rows):
                row_labels = labels[row]
                if frame_mask is not None:
                    row_labels = row_labels[frame_mask[row].cpu()]
                results[i] = row_labels.tolist()
        return results
