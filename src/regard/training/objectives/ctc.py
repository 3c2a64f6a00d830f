"""Connectionist temporal classification: transcripts from an encoder over waveforms (Wav2Vec2).

Graves et al. 2006. The loss sums over all alignments of a transcript to the frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import disk, spec
from regard.builder import build
from regard.core.linear import Linear
from regard.core.waveform_frontend import Waveform
from regard.data.audio import Samples
from regard.data.batching import Batch, Rows
from regard.data.padding import pad_rows
from regard.decode.strategy import Strategy
from regard.errors import DataError, ModelError, SettingError
from regard.families import folder as folders
from regard.models import CTCModel, Model
from regard.models.saving import config_json
from regard.text.ctc import CTCDecoder
from regard.training import model_spec
from regard.training.data.sound_augmentation import LengthLimits
from regard.training.data.sound_files import RecordedSpeech, recorded_speech
from regard.training.objectives.sound_objective import LabelledSound, SoundData
from regard.training.objectives.speech_files import feature_extractor_config
from regard.training.objectives.speech_objective import SpeechObjective
from regard.training.setup import Setup

_WAVEFORM = "input_values"  # the main input of encoders over waveforms


class ConnectionistTemporalClassification(SpeechObjective[CTCDecoder]):
    """Trains an encoder with a character for each frame; the padding token is the blank.

    The characters are those of the training transcripts, or of the folder that is fine-tuned.
    """

    name = "ctc"
    unit = "characters"
    labels_are_classes = False  # the loss is of a whole transcript, over all its alignments
    # torch's ctc_loss reads the lengths on the host, which no captured step can wait for.
    cuda_graphs = False
    always_transcribes = True
    base_advice = "give an encoder over waveforms, such as Wav2Vec2"
    model_classes = (CTCModel,)
    spec_classes = (spec.Encoder,)
    input_names = (_WAVEFORM,)
    describes_head = True
    head_fields = "labels=ClassifierHead(CHARACTERS, 'transcribe')"
    trained_model: CTCModel

    def __init__(self, model: CTCModel, data: SoundData[CTCDecoder], setup: Setup) -> None:
        front_end = model.model.input
        assert isinstance(front_end, Waveform), "checked before"
        self.front_end = front_end
        super().__init__(model, data, setup)

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def check_base(cls, base: Model, setup: Setup) -> None:
        # A pretrained encoder has no head yet.
        if base.spec.main_input_name != _WAVEFORM:
            raise ModelError(
                f"{base.folder} holds no model for {setup.recipe.task} ({base.family})",
                cls.base_advice,
            )

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> SoundData[CTCDecoder]:
        sets = recorded_speech(setup)
        if base is not None and base.folder is not None and _has_vocabulary(base):
            return SoundData(sets, CTCDecoder.open(base.folder))
        return SoundData(sets, CTCDecoder.of_texts(sets["train"].transcripts))

    @classmethod
    def has_head(cls, description: spec.Encoder) -> bool:
        return description.task == "transcribe"

    @classmethod
    def describe(cls, setup: Setup, data: SoundData[CTCDecoder]) -> spec.Encoder:
        count = len(data.vocabulary.names)
        description: Any = model_spec.describe(setup.recipe, count)
        # Nothing is masked in training: a mask vector would keep its initial value.
        waves = replace(description.waves, masked=False)
        head = _head(description, count)
        encoder: spec.Encoder = replace(description, input=waves, labels=head)
        return encoder

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: SoundData[CTCDecoder], setup: Setup
    ) -> CTCModel:
        decoder = data.vocabulary
        _check_head(description, decoder)
        config = folders.describe(description, model_type=setup.recipe.model_name)
        # transformers takes the blank of its CTC loss from here.
        config["pad_token_id"] = decoder.blank
        return CTCModel(model, description, decoder, config)

    @classmethod
    def adapt(cls, base: Model, data: SoundData[CTCDecoder], setup: Setup) -> CTCModel:
        decoder = data.vocabulary
        if not _has_vocabulary(base):
            _write_vocabulary(decoder, setup)
        if isinstance(base, CTCModel):
            _check_head(base.spec, decoder)
            return base
        return with_ctc_head(base, decoder, setup.recipe.train.seed)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        assert isinstance(model, CTCModel)
        return {
            "config.json": model.config,
            **model.decoder.files(),
            "preprocessor_config.json": feature_extractor_config(model),
        }

    # --- labels and batches -----------------------------------------------------------------------

    def label(self, name: str, speech: RecordedSpeech) -> LabelledSound:
        # Characters that only occur in other splits cannot be learnt, but count as errors.
        is_train = name == "train"
        decoder = self.data.vocabulary
        labels = [decoder.labels(text, allow_unknown=not is_train) for text in speech.transcripts]
        frames = self.trained_model.frames(speech.lengths)
        # Checked for all splits before the first step: one infinite loss would skip an update.
        needed = np.array([alignment_length(row) for row in labels])
        _check_frames(name, speech, frames, needed)
        return LabelledSound(speech, labels, frames[:, None])

    def length_limits(self, split: LabelledSound, row: int) -> LengthLimits:
        # A recording that is played faster must still have a frame for each character.
        frames = alignment_length(split.labels[row])
        return LengthLimits(fewest=self.front_end.receptive_field(frames))

    @property
    def max_evaluation_rows(self) -> int | None:
        # A norm over time includes the padding: one at a time, as `transcribe` does.
        return 1 if self.trained_model.spec.waves.normalizes_over_time else None

    def collate(
        self, split: LabelledSound, rows: Rows, position: tuple[int, int] = (0, 0)
    ) -> Batch:
        """`waves` and `padding_mask` [B, samples]; `labels` [B, L] and `label_lengths` [B]."""
        epoch, _ = position
        waves, padding_mask = pad_rows([self.waveform(split, i, epoch) for i in rows], 0.0)
        selected = [split.labels[i] for i in rows]
        labels, _ = pad_rows(selected, self.data.vocabulary.blank)
        lengths = torch.tensor([len(row) for row in selected])
        tensors = {
            "waves": waves,
            "padding_mask": padding_mask,
            "labels": labels,
            "label_lengths": lengths,
        }
        return Batch(tensors, int(lengths.sum()), np.asarray(rows))

    # --- loss -------------------------------------------------------------------------------------

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        padding_mask = tensors["padding_mask"]
        hidden, auxiliary = self.trained_model.model(tensors["waves"], padding_mask)  # [B, T, D]
        logits = self.trained_model.model.classes(hidden)  # [B, T, characters]
        # Of all frames of the longest recording; those of padding are beyond `frame_lengths`.
        log_probs = logits.float().log_softmax(dim=-1).transpose(0, 1)  # [T, B, characters]
        lengths = tensors["label_lengths"]
        nll = functional.ctc_loss(
            log_probs,
            tensors["labels"],
            self.front_end.output_lengths(padding_mask.sum(dim=1)),
            lengths,
            blank=self.data.vocabulary.blank,
            reduction="sum",
        )
        return self.with_auxiliary(nll, auxiliary, lengths.sum()), nll.detach()

    def transcribe(self, recordings: list[Samples], strategy: Strategy) -> list[str]:
        # The best label of each frame, whatever the strategy: frames do not depend on each other.
        return self.trained_model.transcribe([*recordings])


# --- alignments -----------------------------------------------------------------------------------


def alignment_length(labels: Sequence[int]) -> int:
    """The fewest frames that a transcript can be aligned to.

    Two equal labels in a row need a blank between them.
    """
    repeated = sum(one == following for one, following in pairwise(labels))
    return len(labels) + repeated


def _check_frames(name: str, speech: RecordedSpeech, frames: Any, needed: Any) -> None:
    """Refuses recordings that are too short for their transcripts, whose loss is infinite."""
    too_short = np.flatnonzero(frames < needed)
    if not len(too_short):
        return
    row = int(too_short[0])
    raise DataError(
        f"{len(too_short):,} recordings of {name} are shorter than their transcripts: "
        f"{speech.transcripts[row]!r} needs {needed[row]} frames, and there are "
        f"{max(0, int(frames[row]))}",
        "correct the transcripts, or leave these recordings out",
    )


# --- heads and vocabularies -----------------------------------------------------------------------


def with_ctc_head(base: Model, decoder: CTCDecoder, seed: int) -> CTCModel:
    """The same encoder with a new head, normal with deviation 0.02, for these characters."""
    encoder: Any = base.spec
    head = _head(encoder, len(decoder.names))
    description = replace(encoder, pool=None, labels=head, contrastive=None)
    torch.manual_seed(seed)  # for the new head
    model = build(description)
    weights = base.model.state_dict()
    # Of pre-training, the codebook and its projections stay behind.
    missing = model.load_state_dict(
        {name: weight for name, weight in weights.items() if not name.startswith("labels.")},
        strict=False,
    ).missing_keys
    assert all(name.startswith("labels.") for name in missing), missing
    for module in model.labels.modules():
        if isinstance(module, Linear):
            torch.nn.init.normal_(module.weight, std=0.02)  # the bias is 0 already
    config = {**config_json(description, base.config), "pad_token_id": decoder.blank}
    adapted = CTCModel(model, description, decoder, config)
    adapted.folder = base.folder
    adapted.say = base.say
    return adapted


def _head(description: spec.Encoder, count: int) -> spec.ClassifierHead:
    if isinstance(description.labels, spec.ClassifierHead):
        return replace(description.labels, count=count, task="transcribe")
    return spec.ClassifierHead(count, "transcribe", dropout=description.stack.block.dropout)


def _check_head(description: Any, decoder: CTCDecoder) -> None:
    head = description.labels
    # Folders may have more outputs than characters, never fewer.
    if head is None or head.count <= max(decoder.names):
        count = 0 if head is None else head.count
        raise SettingError(
            f"the model has {count} labels, but there are {len(decoder.names)} characters",
            f"give it ClassifierHead({len(decoder.names)}, 'transcribe')",
        )


def _has_vocabulary(base: Model) -> bool:
    return base.folder is not None and (base.folder / "vocab.json").is_file()


def _write_vocabulary(decoder: CTCDecoder, setup: Setup) -> None:
    for name, content in decoder.files().items():
        disk.write_json(setup.run_folder.folder / name, content)
