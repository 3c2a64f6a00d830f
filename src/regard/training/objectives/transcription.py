"""Transcription of recordings: by CTC from an encoder, or by an encoder–decoder.

Connectionist temporal classification (Graves et al. 2006, Wav2Vec2) sums over all alignments of a
transcript to the frames. An encoder–decoder (Whisper, Radford et al. 2022) learns by teacher
forcing: after a prompt each next token of the transcript, and its end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.frontends.waveform_frontend import Waveform
from regard.data.audio import RATE, Samples
from regard.decode.strategy import BeamSearch, Greedy, Strategy
from regard.evaluation.metrics.perplexity import perplexity
from regard.evaluation.metrics.texts import WordErrorRate
from regard.evaluation.scores import Score, scored
from regard.families import folder as folders
from regard.models import Model
from regard.models.saving import config_json
from regard.training import model_spec
from regard.training.data.sound_sources import (
    POSITIONS_PER_SECOND,
    SPECTROGRAM,
    WAVEFORM,
    PromptedTranscripts,
    SoundData,
    SpelledTranscripts,
)
from regard.training.objectives.heads import rebuilt
from regard.training.objectives.losses import (
    LossTerms,
    linear_cross_entropy,
)
from regard.training.objectives.objective import ScoredObjective
from regard.training.objectives.sequence_to_sequence import teacher_forced_loss
from regard.training.setup import Setup

_TRANSCRIBED_AT_ONCE = 64  # recordings whose samples are in memory


class SpeechObjective(ScoredObjective):
    """Transcripts and their error rates; a subclass says how a model learns and writes them."""

    # Whether each validation transcribes all recordings, or only if the metric asks for it.
    always_transcribes: ClassVar[bool]

    def __init__(self, model: Model, data: SoundData, setup: Setup) -> None:
        WordErrorRate()  # a missing package is reported before hours of training
        super().__init__(model, data, setup)

    @abstractmethod
    def transcribe(self, recordings: list[Samples], strategy: Strategy) -> list[str]:
        """The transcripts that the model writes, where it decodes by that strategy."""

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """Loss and perplexity for each label, word and character error rate, and some samples."""
        speech = self.source.splits.get("valid")
        if speech is None:
            return None
        nll, count = self.nll("valid", autocast)
        metrics: dict[str, Any] = {"loss": nll / count, "perplexity": perplexity(nll, count)}
        samples = self.settings.samples
        is_scored = self.always_transcribes or self.settings.metric != "loss"
        # Greedy: fast, and good enough to compare checkpoints; the final score uses the beam.
        rows = len(speech) if is_scored else min(samples, len(speech))
        texts = self._transcripts("valid", rows, Greedy())
        if is_scored:
            score = scored("transcribe", texts, speech.transcripts)
            metrics |= {"wer": score.wer, "cer": score.cer}
        metrics["samples"] = [
            {"transcript": text, "reference": reference}
            for text, reference in zip(texts[:samples], speech.transcripts, strict=False)
        ]
        return metrics

    def _transcripts(self, split: str, count: int, strategy: Strategy) -> list[str]:
        """What the model writes for the first recordings of a split."""
        self.model.eval()
        speech = self.source.splits[split]
        texts: list[str] = []
        for start in range(0, count, _TRANSCRIBED_AT_ONCE):
            end = min(start + _TRANSCRIBED_AT_ONCE, count)
            texts += self.transcribe([speech[row] for row in range(start, end)], strategy)
        return texts

    def score(self, split: str, autocast: AbstractContextManager[Any]) -> Score:
        """By the recipe's beam search."""
        recipe = self.setup.recipe
        strategy = BeamSearch(recipe.decode.beam, recipe.length_penalty)
        speech = self.source.splits[split]
        texts = self._transcripts(split, len(speech), strategy)
        return scored("transcribe", texts, speech.transcripts)


class ConnectionistTemporalClassification(SpeechObjective):
    """Trains an encoder with a character for each frame; the padding token is the blank."""

    name = "ctc"
    unit = "characters"
    labels_are_classes = False  # the loss is of a whole transcript, over all its alignments
    # torch's ctc_loss reads the lengths on the host, which no captured step can wait for.
    cuda_graphs = False
    always_transcribes = True
    source_class = SpelledTranscripts
    base_advice = "give an encoder over waveforms, such as Wav2Vec2"
    spec_classes = (spec.Encoder,)
    input_names = (WAVEFORM,)
    describes_head = True
    head_fields = "heads=(ClassifierHead(CHARACTERS, 'transcribe'),)"

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def has_head(cls, description: spec.Encoder) -> bool:
        return description.task == "transcribe"

    @classmethod
    def describe(cls, setup: Setup, data: SoundData) -> spec.Model:
        count = len(data.vocabulary.names)
        description: Any = model_spec.describe(setup.recipe, count)
        # Nothing is masked in training: a mask vector would keep its initial value.
        waves = replace(description.waves, masked=False)
        heads = spec.heads(description.pool, _character_head(description, count))
        encoder: spec.Encoder = replace(description, input=waves, heads=heads)
        return encoder

    @classmethod
    def head_config(cls, data: SoundData) -> dict[str, Any]:
        # transformers takes the blank of its CTC loss from here.
        return {"pad_token_id": data.vocabulary.blank}

    @classmethod
    def adapt(cls, base: Any, data: SoundData, setup: Setup) -> Model:
        """The same encoder with a new head for these characters, unless it has one."""
        wrap = partial(cls.source_class.wrap, data=data)
        if base.spec.task == "transcribe":
            wrap(base.model, base.spec, base.config)  # only for its errors
            return base  # type: ignore[no-any-return]
        head = _character_head(base.spec, len(data.vocabulary.names))
        description = base.spec.with_heads(head)
        config = config_json(description, base.config) | cls.head_config(data)
        return rebuilt(base, description, config, setup.recipe.train.seed, wrap)

    # --- loss -------------------------------------------------------------------------------------

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.total(
            alignment_loss(self.trained_model.model, tensors, self.data.vocabulary.blank)
        )

    def transcribe(self, recordings: list[Samples], strategy: Strategy) -> list[str]:
        # The best label of each frame, whatever the strategy: frames do not depend on each other.
        texts: list[str] = self.trained_model.transcribe([*recordings])
        return texts


def alignment_loss(model: Any, tensors: Mapping[str, Tensor], blank: int) -> LossTerms:
    """−log p of transcripts, summed over all alignments to the frames."""
    front_end: Waveform = model.input
    padding_mask = tensors["padding_mask"]
    hidden, auxiliary = model(tensors["waves"], padding_mask)  # [B, T, D]
    logits = model.classes(hidden)  # [B, T, characters]
    # Of all frames of the longest recording; those of padding are beyond the lengths.
    log_probs = logits.float().log_softmax(dim=-1).transpose(0, 1)  # [T, B, characters]
    lengths = tensors["label_lengths"]
    nll = functional.ctc_loss(
        log_probs,
        tensors["labels"],
        front_end.output_lengths(padding_mask.sum(dim=1)),
        lengths,
        blank=blank,
        reduction="sum",
    )
    return LossTerms(nll, nll.detach(), auxiliary, lengths.sum())


def _character_head(description: spec.Encoder, count: int) -> spec.ClassifierHead:
    if isinstance(description.labels, spec.ClassifierHead):
        return replace(description.labels, count=count, task="transcribe")
    return spec.ClassifierHead(count, "transcribe", dropout=description.stack.block.dropout)


class Transcription(SpeechObjective):
    """Trains an encoder–decoder on recordings of at most one window.

    The window of a new model is as long as the longest recording, in whole seconds. Shorter ones
    are padded with silence, as `transcribe` does it.
    """

    name = "transcribe"
    always_transcribes = False
    source_class = PromptedTranscripts
    source: PromptedTranscripts
    base_tasks = ("transcribe",)
    base_advice = "give an encoder–decoder over spectrograms, such as Whisper"
    spec_classes = (spec.EncoderDecoder,)
    input_names = (SPECTROGRAM,)

    @classmethod
    def describe(cls, setup: Setup, data: SoundData) -> spec.Model:
        longest = max(int(speech.lengths.max()) for speech in data.sets.values())
        seconds = -(-longest // RATE)  # rounded up
        return model_spec.describe(
            setup.recipe, len(data.vocabulary), frames=seconds * POSITIONS_PER_SECOND
        )

    @classmethod
    def with_tokenizer(cls, model: Any, description: Any, data: SoundData, setup: Setup) -> Model:
        ids = cls.source_class.special_token_ids(data.vocabulary)
        config = folders.describe(description, ids, model_type=setup.recipe.model_name)
        return cls.source_class.wrap(model, description, config, data)

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        token_loss = partial(linear_cross_entropy, smoothing=self.settings.label_smoothing)
        model = self.trained_model.model
        return self.total(teacher_forced_loss(model, tensors["features"], tensors, token_loss))

    def transcribe(self, recordings: list[Samples], strategy: Strategy) -> list[str]:
        texts: list[str] = self.trained_model.transcribe(
            [*recordings], self.source.language, strategy=strategy
        )
        return texts
