"""Classification of recordings by an encoder over waveforms (Wav2Vec2, HuBERT)."""

from __future__ import annotations

from typing import overload

import torch

from regard.core.finite_outputs import require_finite
from regard.models.labels import Scores, label_names, label_scores
from regard.models.sound import Sound
from regard.models.waveform_model import WaveformModel


class SoundClassifier(WaveformModel):
    """Names what is heard: a keyword, a speaker, a language; made by `regard.load(folder)`."""

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the logits."""
        assert self.spec.labels is not None
        return label_names(self.config, self.spec.labels.count)

    @overload
    def classify(self, sound: list[Sound]) -> list[Scores]: ...
    @overload
    def classify(self, sound: Sound) -> Scores: ...
    @torch.inference_mode()
    def classify(self, sound: Sound | list[Sound]) -> Scores | list[Scores]:
        """Label → probability of a recording, likeliest first."""
        sounds = sound if isinstance(sound, list) else [sound]
        problem_type = self.config.get("problem_type")
        self.model.eval()
        scores: list[Scores] = [{} for _ in sounds]
        for rows, inputs, padding_mask in self.batches(sounds):
            hidden, _ = self.model(inputs, padding_mask)
            logits = self.model.classes(hidden, padding_mask).float().cpu()  # [B, labels]
            require_finite(logits, self.model)
            for i, row in zip(rows, logits, strict=True):
                scores[i] = label_scores(row, self.labels, problem_type)
        return scores if isinstance(sound, list) else scores[0]
