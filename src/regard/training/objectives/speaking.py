"""Text to speech (Ren et al. 2021, FastSpeech 2): spectrograms, durations, pitch and energy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from regard import spec
from regard.core.context import Context
from regard.core.frontends.variance_adaptor import Variances
from regard.core.heads.speech_head import SpectrogramHead
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.task import Outputs
from regard.models import Model
from regard.training import model_spec
from regard.training.data.spoken_texts import SpokenText, SpokenTexts
from regard.training.data.stored_items import ItemData
from regard.training.objectives.losses import LossSums, LossTerms, Tensors
from regard.training.objectives.objective import ScoredObjective
from regard.training.setup import Setup
from regard.wirings.text_to_speech import variance_losses


def spoken_loss(model: Any, tensors: Tensors) -> LossTerms:
    """The loss of a batch of `SpokenTexts`, summed over frames."""
    wanted = tensors["spectrogram"]  # [B, T, mels]
    mask = tensors["padding_mask"]
    truth = Variances(
        tensors["durations"], tensors["pitch"][..., None], tensors["energy"][..., None]
    )
    context = Context()
    voice = {"speaker_ids": tensors["speakers"]}
    utterance = model.utter(
        tensors["tokens"], mask, context, voice, truth=truth, frames=wanted.shape[1]
    )
    is_frame = utterance.is_frame
    before, after = model.require(SpectrogramHead)(utterance.hidden, is_frame)

    def distance(one: Tensor) -> Tensor:
        of_frames = (one.float() - wanted).abs().mean(dim=-1)  # [B, T]
        return (of_frames * is_frame).sum()

    errors = variance_losses(utterance.predicted, truth, mask)
    auxiliary = {**(context.losses or {}), **errors}
    # There is no likelihood: what validation shows is the distance after the postnet.
    nll = distance(after)
    return LossTerms(distance(before) + nll, nll.detach(), auxiliary, is_frame.sum())


class Speaking(ScoredObjective):
    """The L1 distance of spectrograms, before and after the postnet, and the squared errors of
    (logarithms of) durations, pitch and energy, which the decoder is given (teacher forcing)."""

    name = "speak"
    unit = "frames"
    labels_are_classes = False
    cuda_graphs = False  # the length of a batch follows from its durations
    source_class = SpokenTexts
    source: SpokenTexts
    spec_classes = (spec.TextToSpeech,)
    base_tasks = ("speak",)
    base_advice = "give a model that speaks, such as FastSpeech 2"

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        description: Any = model_spec.describe(setup.recipe, len(data.vocabulary))
        count = len(cls.source_class.speakers(data))
        voice = replace(description.voice, speakers=count if count > 1 else None)
        return replace(description, voice=voice)  # type: ignore[no-any-return]

    @classmethod
    def head_config(cls, data: ItemData) -> dict[str, Any]:
        names = cls.source_class.speakers(data)
        return {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }

    @classmethod
    def adapt(cls, base: Model, data: ItemData, setup: Setup) -> Model:
        return base

    # --- loss -------------------------------------------------------------------------------------

    def loss(self, tensors: Tensors) -> LossSums:
        return self.total(spoken_loss(self.model, tensors))

    # --- evaluation -------------------------------------------------------------------------------

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        """What the model says by itself, and the spectrograms of the recordings."""
        spoken = [SpokenText.parse(line) for line in self.data.sets[split].texts]
        utterances = self.trained_model.speak([f"{one.text}\t{one.speaker}" for one in spoken])
        references = [row.spectrogram.numpy() for row in self.source.rows[split]]
        return "prediction", Outputs([one.spectrogram for one in utterances], references)
