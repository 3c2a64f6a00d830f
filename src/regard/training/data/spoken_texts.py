"""A source of texts and how they were said: spectrograms, durations, pitch and energy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.audio import HOP, RATE, Samples
from regard.data.batching import Batch, Rows
from regard.data.labelled import Recording, read_spoken_texts
from regard.data.padding import pad_rows
from regard.data.speech import (
    energy_of_frames,
    means_of_tokens,
    pitch_of_frames,
    whole_log_mel,
)
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import train_tokenizer
from regard.families import folder as folders
from regard.models import CTCModel, Model, SpeechSynthesizer, load
from regard.models.inputs.sound import say_resampled
from regard.system.errors import DataError
from regard.training import model_spec
from regard.training.data.labelled_text import stored_tokenizer
from regard.training.data.sound_sources import feature_extractor_config, stored_recording
from regard.training.data.source import Position
from regard.training.data.stored_items import ItemData, ItemSource
from regard.training.setup import Setup


class SpokenText(NamedTuple):
    """A text as a run stores it: its characters end after these frames of its recording."""

    text: str
    speaker: str
    ends: tuple[int, ...]

    @classmethod
    def parse(cls, line: str) -> SpokenText:
        text, speaker, ends = line.split("\t")
        return cls(text, speaker, tuple(map(int, ends.split())))

    def __str__(self) -> str:
        return f"{self.text}\t{self.speaker}\t{' '.join(map(str, self.ends))}"


class Spoken(NamedTuple):
    """A row as it is learnt from."""

    tokens: list[int]
    speaker: int  # its number among those of the training data
    spectrogram: Tensor  # [frames, mels]
    durations: Tensor  # [tokens], in frames
    pitch: Tensor  # [tokens]
    energy: Tensor  # [tokens]


class SpokenTexts(ItemSource):
    """Batches of texts with the spectrograms of their recordings."""

    unit = "recordings"
    model_class = SpeechSynthesizer
    read = staticmethod(read_spoken_texts)

    def __init__(self, model: SpeechSynthesizer, data: ItemData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.mels = model.spec.spectrogram.mels
        # A spectrogram is computed once: a row is the same in every epoch.
        self.rows = {
            split: [self._row(items[i], items.texts[i]) for i in range(len(items))]
            for split, items in data.sets.items()
        }

    # --- preparing a run --------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> ItemData:
        rates: set[int] = set()
        aligner = None
        is_new = not (setup.run_folder.data / "train").is_dir()
        if setup.recipe.data.aligner is not None and is_new:
            aligner = load(setup.recipe.data.aligner, CTCModel, say=setup.say)

        def item(recording: Recording) -> tuple[Samples, str]:
            text, _, speaker = recording.text.partition("\t")
            samples, text = stored_recording(Recording(recording.audio, text), rates)
            return samples, str(SpokenText(text, speaker.strip(), _ends(samples, text, aligner)))

        sets = cls.stored(setup, item)
        say_resampled(rates, setup.say)
        counts = ", ".join(f"{len(speech):,} {name}" for name, speech in sets.items())
        setup.say(f"data: {counts} recordings")
        texts = [SpokenText.parse(line).text for line in sets["train"].texts]

        def learn(kind: str) -> str:
            return train_tokenizer(texts, kind, setup.recipe.tokens.vocabulary).to_json()

        # A model that is fine-tuned keeps its letters.
        if isinstance(base, SpeechSynthesizer):
            return ItemData(sets, base.tokenizer)
        return ItemData(sets, stored_tokenizer(setup, "characters", learn))

    @classmethod
    def speakers(cls, data: ItemData) -> list[str]:
        """Who speaks in the training data, if it says so."""
        names = {SpokenText.parse(line).speaker for line in data.sets["train"].texts}
        return sorted(names - {""})

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: ItemData) -> Model:
        tokenizer: Tokenizer = data.vocabulary
        model_spec.check_vocabulary("source", description.source, len(tokenizer))
        return SpeechSynthesizer(model, description, tokenizer, config)

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        tokens = model.tokenizer.special_tokens
        return {
            "config.json": model.config,
            "preprocessor_config.json": feature_extractor_config(model.spec),
            "tokenizer_config.json": folders.tokenizer_config(
                tokens["pad"], tokens["bos"], tokens["eos"], tokens.get("unk")
            ),
        }

    # --- rows -------------------------------------------------------------------------------------

    def _row(self, samples: Samples, line: str) -> Spoken:
        spoken = SpokenText.parse(line)
        tokenizer = self.model.tokenizer
        tokens = tokenizer.input_ids(spoken.text)
        spectrogram = whole_log_mel(samples, self.mels)
        # Special tokens stand at no characters, and last no time.
        ends = (0, *spoken.ends)
        spans = tokenizer.input_offsets(spoken.text)
        durations = torch.tensor([ends[end] - ends[begin] for begin, end in spans])
        # Means over the frames of a token, of those that are voiced.
        pitch = means_of_tokens(pitch_of_frames(samples), durations)
        energy = means_of_tokens(energy_of_frames(spectrogram), durations)
        speaker = self.model.speakers.index(spoken.speaker) if self.model.speakers else 0
        return Spoken(tokens, speaker, spectrogram.T.contiguous(), durations, pitch, energy)

    def lengths(self, split: str) -> NDArray[Any]:
        return np.array([[len(row.spectrogram)] for row in self.rows[split]])

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        """`tokens`, `padding_mask`, `durations`, `pitch` and `energy` [B, S], `speakers` [B], and
        the `spectrogram` [B, T, mels]."""
        chosen = [self.rows[split][row] for row in rows]
        tokens, mask = pad_rows([row.tokens for row in chosen], 0)
        tensors = {"tokens": tokens, "padding_mask": mask}
        tensors["durations"], _ = pad_rows([row.durations.numpy() for row in chosen], 0)
        tensors["pitch"], _ = pad_rows([row.pitch.numpy() for row in chosen], 0.0)
        tensors["energy"], _ = pad_rows([row.energy.numpy() for row in chosen], 0.0)
        tensors["speakers"] = torch.tensor([row.speaker for row in chosen])
        spectrograms = [row.spectrogram for row in chosen]
        tensors["spectrogram"] = torch.nn.utils.rnn.pad_sequence(spectrograms, batch_first=True)
        return Batch(tensors, sum(map(len, spectrograms)), np.asarray(rows))

    def example(self, row: int) -> dict[str, Any]:
        return SpokenText.parse(self.splits["train"].texts[row])._asdict()


def _ends(samples: Samples, text: str, aligner: CTCModel | None) -> tuple[int, ...]:
    """The frames of a recording after which its characters end: by forced alignment, or evenly."""
    frames = len(samples) // HOP
    if frames < len(text):
        raise DataError(
            f"the recording of {text!r} has {frames} frames of 10 ms, fewer than characters",
            "leave it out of the table",
        )
    shares = [i / len(text) for i in range(1, len(text))]
    if aligner is not None:
        [shares] = aligner.align([samples], [text], RATE)
    return (*(round(share * frames) for share in shares), frames)
