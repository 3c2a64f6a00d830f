"""Classification of recordings, by the mean of an encoder's positions (Wav2Vec2, Whisper)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.builder import build
from regard.core.waveform_frontend import Waveform
from regard.data.audio import RATE, read_labelled_recordings
from regard.data.batching import Batch, Rows
from regard.data.padding import pad_rows
from regard.encoder import Encoder
from regard.errors import DataError, ModelError
from regard.families import folder as folders
from regard.families import presets
from regard.metrics.classification import RankingScore, ranking_score
from regard.metrics.perplexity import corpus_nll
from regard.metrics.scores import AnyScore
from regard.models import Model, SoundClassifier, SpectrogramClassifier
from regard.models.labels import label_config
from regard.models.saving import config_json
from regard.training import model_spec
from regard.training.data.sound_augmentation import LengthLimits
from regard.training.data.sound_files import RecordedSpeech, recorded_speech
from regard.training.objectives.head_objective import class_names, label_id
from regard.training.objectives.label_smoothed_cross_entropy import cross_entropy
from regard.training.objectives.sound_objective import LabelledSound, SoundData, SoundObjective
from regard.training.objectives.speech_files import POSITIONS_PER_SECOND, feature_extractor_config
from regard.training.setup import Setup

_SPECTROGRAM = "input_features"
_SOUND_INPUTS = ("input_values", _SPECTROGRAM)
_POOLED_WIDTH = 256  # transformers' classifier_proj_size, unless the model is narrower
Classifier = SoundClassifier | SpectrogramClassifier


class SoundClassification(SoundObjective[list[str]]):
    """The class of a recording: a keyword, a speaker, a language.

    The recordings of a new model of spectrograms have a window as long as the longest, in whole
    seconds.
    """

    name = "sounds"
    unit = "recordings"
    base_advice = "give an encoder of sound, such as Wav2Vec2 or Whisper"
    spec_classes = (spec.Encoder,)
    convertible_classes = (spec.EncoderDecoder,)
    input_names = _SOUND_INPUTS
    describes_head = True
    head_fields = "labels=ClassifierHead(CLASSES), and pool=Pool('mean', None)"
    trained_model: Classifier

    def __init__(self, model: Classifier, data: SoundData[list[str]], setup: Setup) -> None:
        self._label_ids = {name: i for i, name in enumerate(model.labels)}
        super().__init__(model, data, setup)

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def check_base(cls, base: Model, setup: Setup) -> None:
        # An encoder that has not learnt to classify yet has no class of its own.
        if base.spec.main_input_name not in _SOUND_INPUTS:
            raise ModelError(
                f"{base.folder} holds no model for {setup.recipe.task} ({base.family})",
                cls.base_advice,
            )

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> SoundData[list[str]]:
        sets = recorded_speech(setup, read_labelled_recordings)
        return SoundData(sets, class_names(sets["train"].transcripts))

    @classmethod
    def has_head(cls, description: spec.Encoder) -> bool:
        return description.task == "classify"

    @classmethod
    def describe(cls, setup: Setup, data: SoundData[list[str]]) -> spec.Encoder:
        recipe = setup.recipe
        changes = {}
        if recipe.model.spec is None and presets.about(recipe.preset_name).kind == "speech":
            longest = max(int(speech.lengths.max()) for speech in data.sets.values())
            changes["frames"] = -(-longest // RATE) * POSITIONS_PER_SECOND  # rounded up
        description: Any = model_spec.describe(recipe, len(data.vocabulary), **changes)
        return _with_classes(description, len(data.vocabulary))

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: SoundData[list[str]], setup: Setup
    ) -> Classifier:
        model_spec.check_classes(description, data.vocabulary)
        config = folders.describe(description, model_type=setup.recipe.model_name)
        return _classifier(model, description, config | label_config(data.vocabulary))

    @classmethod
    def adapt(cls, base: Model, data: SoundData[list[str]], setup: Setup) -> Classifier:
        """The same encoder with the classes of the data: its own head if they are the same."""
        if isinstance(base, Classifier) and set(base.labels) == set(data.vocabulary):
            return base
        description = _with_classes(base.spec, len(data.vocabulary))
        torch.manual_seed(setup.recipe.train.seed)  # for the new head
        model = build(description)
        assert isinstance(model, Encoder), "a spec.Encoder gives one"
        _copy_encoder(base, model)
        config = config_json(description, base.config) | label_config(data.vocabulary)
        classifier = _classifier(model, description, config)
        classifier.folder = base.folder
        classifier.say = base.say
        return classifier

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        return {
            "config.json": model.config,
            "preprocessor_config.json": feature_extractor_config(model),
        }

    # --- labels and batches -----------------------------------------------------------------------

    def label(self, name: str, speech: RecordedSpeech) -> LabelledSound:
        labels = [[label_id(text, self._label_ids)] for text in speech.transcripts]
        return LabelledSound(speech, labels, self._positions(name, speech)[:, None])

    def _positions(self, name: str, speech: RecordedSpeech) -> Any:
        """The positions of each recording: [recordings]."""
        model = self.trained_model
        if isinstance(model, SpectrogramClassifier):
            longest = int(speech.lengths.max()) / RATE
            if longest > model.seconds:
                raise DataError(
                    f"a recording has {longest:.1f} seconds, but the model hears {model.seconds:g}",
                    "cut such recordings into parts",
                )
            # The same for all: every recording is padded to the window with silence.
            return np.full(len(speech), round(model.seconds * POSITIONS_PER_SECOND))
        frames = model.frames(speech.lengths)
        if frames.min() < 1:
            row = int(frames.argmin())
            raise DataError(
                f"{int((frames < 1).sum()):,} recordings of {name} are too short to be heard: "
                f"number {row + 1} has {int(speech.lengths[row])} samples",
                "leave them out",
            )
        return frames

    def length_limits(self, split: LabelledSound, row: int) -> LengthLimits:
        model = self.trained_model
        if isinstance(model, SpectrogramClassifier):
            return LengthLimits(most=round(model.seconds * RATE))
        front_end = model.model.input
        assert isinstance(front_end, Waveform), "such models read waveforms"
        return LengthLimits(fewest=front_end.receptive_field(1))

    @property
    def max_evaluation_rows(self) -> int | None:
        # A norm over time includes the padding: one at a time, as `classify` does.
        model = self.trained_model
        if isinstance(model, SoundClassifier) and model.spec.waves.normalizes_over_time:
            return 1
        return None

    def collate(
        self, split: LabelledSound, rows: Rows, position: tuple[int, int] = (0, 0)
    ) -> Batch:
        """`inputs` [B, samples] with `padding_mask`, or [B, mels, frames]; `labels` [B]."""
        epoch, _ = position
        tensors = {"labels": torch.tensor([split.labels[i][0] for i in rows])}
        if isinstance(self.trained_model, SpectrogramClassifier):
            tensors["inputs"] = torch.cat([self.spectrogram(split, i, epoch) for i in rows])
        else:
            waves = [self.waveform(split, i, epoch) for i in rows]
            tensors["inputs"], tensors["padding_mask"] = pad_rows(waves, 0.0)
        return Batch(tensors, len(rows), np.asarray(rows))

    # --- loss and scores --------------------------------------------------------------------------

    def logits(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits of the classes [B, count], and auxiliary losses."""
        model = self.trained_model.model
        padding_mask = tensors.get("padding_mask")
        hidden, auxiliary = model(tensors["inputs"], padding_mask)  # [B, T, D]
        return model.classes(hidden, padding_mask), auxiliary

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits, auxiliary = self.logits(tensors)
        labels = tensors["labels"]
        loss, nll = cross_entropy(logits, labels, self.settings.label_smoothing)
        return self.with_auxiliary(loss, auxiliary, torch.tensor(len(labels))), nll

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        split = self.splits.get("valid")
        if split is None:
            return None
        nll, count = corpus_nll(self.batch_nlls(split, autocast))
        return {"loss": nll / count, **vars(self.score(split, autocast))}

    def score(self, split: LabelledSound, autocast: AbstractContextManager[Any]) -> RankingScore:
        rankings: list[list[int]] = []
        labels: list[int] = []
        for batch in self.evaluation_batches(split):
            with torch.inference_mode(), autocast:
                logits, _ = self.logits(batch.tensors)
            rankings += logits.float().argsort(dim=-1, descending=True, stable=True).tolist()
            labels += batch.tensors["labels"].tolist()
        return ranking_score(rankings, labels)

    def scores(self) -> dict[str, AnyScore]:
        results: dict[str, AnyScore] = {}
        for name, split in self.splits.items():
            if name == "train":
                continue
            score = self.score(split, nullcontext())
            results[name] = score
            self.setup.say(
                f"{name}: accuracy {score.accuracy:.2f}  top-5 {score.top_5:.2f}  "
                f"f1 {score.f1:.2f}  ({score.examples:,} recordings)"
            )
        return results


# --- classifiers ----------------------------------------------------------------------------------


def _classifier(model: Any, description: spec.Encoder, config: dict[str, Any]) -> Classifier:
    if description.main_input_name == _SPECTROGRAM:
        return SpectrogramClassifier(model, description, config)
    return SoundClassifier(model, description, config)


def _with_classes(description: Any, count: int) -> spec.Encoder:
    """The encoder of a model, with a head over the mean of its positions."""
    encoder: spec.Encoder = description
    if isinstance(description, spec.EncoderDecoder):
        encoder = spec.Encoder(description.d_model, description.source, description.encoder)
    if isinstance(encoder.input, spec.Waveform) and encoder.contrastive is None:
        # Nothing is masked in training: a new mask vector would keep its initial value.
        masked = encoder.input.masked and encoder.labels is None
        encoder = replace(encoder, input=replace(encoder.input, masked=masked))
    pool = spec.Pool("mean", None, width=min(_POOLED_WIDTH, encoder.d_model), bias=True)
    labels = spec.ClassifierHead(count)
    return replace(encoder, pool=pool, labels=labels, contrastive=None)


@torch.no_grad()
def _copy_encoder(base: Model, model: Encoder) -> None:
    """Copies front end and stack; what is new in `model` is drawn."""
    # An encoder–decoder calls them `source` and `encoder`.
    names = {"source": "input", "encoder": "stack"}
    old = {}
    for name, parameter in base.model.named_parameters():
        part, _, rest = name.partition(".")
        old[f"{names.get(part, part)}.{rest}"] = parameter
    for name, parameter in model.named_parameters():
        if not name.startswith(("labels.", "pool.")):
            parameter.copy_(old[name])
        elif parameter.ndim == 1:  # a bias
            parameter.zero_()
        else:
            parameter.normal_(std=0.02)  # BERT's initializer_range
