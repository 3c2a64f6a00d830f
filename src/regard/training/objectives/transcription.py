"""Transcription by an encoder–decoder over log-mel spectrograms, by teacher forcing (Whisper).

Radford et al. 2022. The decoder reads a prompt (start, and language and task where the model has
such tokens) and the transcript, and learns each next token of the transcript and its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import disk, spec
from regard.data.audio import RATE, Samples
from regard.data.batching import Batch, Rows
from regard.data.padding import IGNORED, pad_rows
from regard.decode.strategy import Strategy
from regard.errors import DataError, SettingError
from regard.families import folder as folders
from regard.models import Model, SpeechToText
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import open_encoder_tokenizer
from regard.text.tokenizer_training import train_tokenizer
from regard.training import model_spec
from regard.training.data.sound_augmentation import LengthLimits
from regard.training.data.sound_files import RecordedSpeech, recorded_speech
from regard.training.objectives.label_smoothed_cross_entropy import linear_cross_entropy
from regard.training.objectives.sound_objective import LabelledSound, SoundData
from regard.training.objectives.speech_files import POSITIONS_PER_SECOND, feature_extractor_config
from regard.training.objectives.speech_objective import SpeechObjective
from regard.training.objectives.target_padding import target_context
from regard.training.setup import Setup

_SPECTROGRAM = "input_features"  # the main input of encoder–decoders over spectrograms


class Transcription(SpeechObjective[Tokenizer]):
    """Trains an encoder–decoder on recordings of at most one window.

    The window of a new model is as long as the longest recording, in whole seconds. Shorter ones
    are padded with silence, as `transcribe` does it.
    """

    name = "transcribe"
    always_transcribes = False
    base_advice = "give an encoder–decoder over spectrograms, such as Whisper"
    model_classes = (SpeechToText,)
    spec_classes = (spec.EncoderDecoder,)
    input_names = (_SPECTROGRAM,)
    trained_model: SpeechToText

    def __init__(self, model: SpeechToText, data: SoundData[Tokenizer], setup: Setup) -> None:
        self.language = setup.recipe.data.languages if model.languages else None
        self.prompt = model.decoder_prompt(None, self.language)
        super().__init__(model, data, setup)

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> SoundData[Tokenizer]:
        sets = recorded_speech(setup)
        if base is None:
            return SoundData(sets, _learnt_tokenizer(setup, sets["train"].transcripts))
        assert isinstance(base, SpeechToText), "checked before"
        return SoundData(sets, base.tokenizer)

    @classmethod
    def describe(cls, setup: Setup, data: SoundData[Tokenizer]) -> spec.Model:
        longest = max(int(speech.lengths.max()) for speech in data.sets.values())
        seconds = -(-longest // RATE)  # rounded up
        return model_spec.describe(
            setup.recipe, len(data.vocabulary), frames=seconds * POSITIONS_PER_SECOND
        )

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: SoundData[Tokenizer], setup: Setup
    ) -> SpeechToText:
        tokenizer = data.vocabulary
        model_spec.check_vocabulary("target", description.target, len(tokenizer))
        ids = folders.SpecialTokenIds(
            tokenizer.required_token_id("pad"),
            tokenizer.required_token_id("bos"),
            tokenizer.required_token_id("eos"),
            tokenizer.special_token_id("unk"),
        )
        config = folders.describe(description, ids, model_type=setup.recipe.model_name)
        return SpeechToText(model, description, ids, tokenizer, config)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        assert isinstance(model, SpeechToText)
        tokens = model.tokenizer.special_tokens
        positions = model.spec.target.max_length or setup.recipe.data.context
        return {
            "config.json": model.config,
            "generation_config.json": {
                **folders.generation_config(model.ids, max_length=positions),
                "is_multilingual": False,
            },
            "tokenizer_config.json": folders.tokenizer_config(
                tokens["pad"], tokens["bos"], tokens["eos"], tokens.get("unk"), positions=positions
            ),
            "preprocessor_config.json": feature_extractor_config(model),
        }

    # --- labels and batches -----------------------------------------------------------------------

    def label(self, name: str, speech: RecordedSpeech) -> LabelledSound:
        model = self.trained_model
        eos = model.ids.end
        labels = [[*ids, eos] for ids in self.data.vocabulary.encode_batch(speech.transcripts)]
        self._check_lengths(speech, labels)
        # − 1: the label of the prompt's last token is the first of the transcript.
        tokens = np.array([len(self.prompt) - 1 + len(row) for row in labels])
        # The same for all: every recording is padded to the window with silence.
        positions = np.full(len(speech), round(model.seconds * POSITIONS_PER_SECOND))
        return LabelledSound(speech, labels, np.stack([positions, tokens], axis=1))

    def _check_lengths(self, speech: RecordedSpeech, labels: list[list[int]]) -> None:
        model = self.trained_model
        longest = int(speech.lengths.max()) / RATE
        if longest > model.seconds:
            raise DataError(
                f"a recording has {longest:.1f} seconds, but the model hears {model.seconds:g}",
                "cut such recordings, and their transcripts, into parts",
            )
        limit = model.spec.target.max_length
        tokens = max(len(self.prompt) - 1 + len(row) for row in labels)
        if limit is not None and tokens > limit:
            raise DataError(
                f"a transcript has {tokens} tokens, and the model {limit} positions",
                "cut such recordings into parts; a new model has --context positions",
            )

    def length_limits(self, split: LabelledSound, row: int) -> LengthLimits:
        return LengthLimits(most=round(self.trained_model.seconds * RATE))

    def collate(
        self, split: LabelledSound, rows: Rows, position: tuple[int, int] = (0, 0)
    ) -> Batch:
        """`features` [B, mels, frames]; `target` and `labels` [B, T]."""
        model = self.trained_model
        epoch, _ = position
        # Each is one window: [1, mels, frames].
        features = torch.cat([self.spectrogram(split, i, epoch) for i in rows])
        selected = [split.labels[i] for i in rows]
        decoder_inputs = [[*self.prompt, *row[:-1]] for row in selected]
        # What stands in the prompt is given, not learnt.
        ignored = [IGNORED] * (len(self.prompt) - 1)
        multiple = self.pad_to_multiple_of
        target, _ = pad_rows(decoder_inputs, model.ids.pad, pad_to_multiple_of=multiple)
        labels, _ = pad_rows(
            [[*ignored, *row] for row in selected], IGNORED, pad_to_multiple_of=multiple
        )
        tensors = {"features": features, "target": target, "labels": labels}
        return Batch(tensors, sum(len(row) for row in selected), np.asarray(rows))

    # --- loss and transcripts ---------------------------------------------------------------------

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        model = self.trained_model.model
        labels = tensors["labels"]
        context = target_context(model, labels)
        # [B, T, D]
        hidden, auxiliary = model(tensors["features"], tensors["target"], None, context)
        loss, nll = linear_cross_entropy(model.head, hidden, labels, self.settings.label_smoothing)
        return self.with_auxiliary(loss, auxiliary, (labels >= 0).sum()), nll

    def transcribe(self, recordings: list[Samples], strategy: Strategy) -> list[str]:
        return self.trained_model.transcribe([*recordings], self.language, strategy=strategy)


def _learnt_tokenizer(setup: Setup, texts: list[str]) -> Tokenizer:
    """The tokenizer of a new model, learnt on the first call; of characters by default."""
    path = setup.run_folder.folder / "tokenizer.json"
    if not path.exists():
        tokens = setup.recipe.tokens
        kind = tokens.tokenizer if "tokenizer" in tokens.model_fields_set else "characters"
        if kind.endswith(".json"):
            content = disk.read_text(Path(kind), SettingError)
        else:
            content = train_tokenizer(texts, kind, tokens.vocabulary).to_json()
        disk.write_file(path, content)
    return open_encoder_tokenizer(setup.run_folder.folder)
