"""Models of speech: what is said in a recording, as text.

A recording is a WAV file of 16000 samples a second, its contents, or an array of such samples between -1 and 1; one, or a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec as kinds
from regard.data.audio import RATE, Samples, log_mel, read_wav
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, batch_by_length, decode
from regard.decode.strategy import Greedy, Limit, Strategy
from regard.disk import read_json_object
from regard.errors import DataError, ModelError, SettingError
from regard.families import folder as folders
from regard.model import Encoder, EncoderDecoder
from regard.models.base import Model, no_tokenizer
from regard.models.with_tokenizer import WithText
from regard.text.ctc import CTCDecoder
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.look import MediaInput

Sound = str | Path | bytes | Samples
LOOKED = 10  # seconds of a recording that are looked at, where a model has no window of its own
_FRAMES = {"sampling_rate": RATE, "n_fft": 400, "hop_length": 160}
_ENGLISH_ONLY = 51864  # tokens: one fewer than the models that know languages have
BEGIN, BARE = "<|startoftranscript|>", "<|notimestamps|>"


class SpeechToText(WithText):
    """Writes down what it hears (Whisper); made by `regard.load(folder)`."""

    model: EncoderDecoder
    spec: kinds.EncoderDecoder

    def __init__(
        self,
        model: EncoderDecoder,
        description: kinds.EncoderDecoder,
        ids: folders.SpecialTokenIds,
        text: Tokenizer | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, description, text, config)
        self.ids = ids

    @cached_property
    def generation(self) -> dict[str, Any]:
        """generation_config.json, or what config.json says in its place."""
        said = read_settings(self, "generation_config.json")
        return said or self.config

    @property
    def seconds(self) -> float:
        """How long a window is; longer recordings are heard window by window."""
        assert isinstance(self.spec.source.position, kinds.FixedPosition)
        return self.spec.source.position.length * 2 * _FRAMES["hop_length"] / RATE

    @property
    def languages(self) -> list[str]:
        """The codes of the languages that it can be told; none where it knows one only."""
        known = self.generation.get("lang_to_id")
        if not self.generation.get("is_multilingual", self.spec.target.vocabulary != _ENGLISH_ONLY):
            return []
        return (
            sorted(token.strip("<|>") for token in known)
            if isinstance(known, dict)
            else self._codes()
        )

    def _codes(self) -> list[str]:
        """Where no file lists them: they stand between the beginning and the tasks, and are two or three letters long."""
        first, last = self.text.token_to_id(BEGIN), self.text.token_to_id("<|translate|>")
        between = range(first + 1, last) if first is not None and last is not None else range(0)
        return sorted(self.text.id_to_token(i).strip("<|>") for i in between)

    @overload
    def transcribe(
        self,
        sound: list[Sound],
        language: str | None = None,
        task: Literal["transcribe", "translate"] = "transcribe",
        strategy: Strategy | None = None,
    ) -> list[str]: ...
    @overload
    def transcribe(
        self,
        sound: Sound,
        language: str | None = None,
        task: Literal["transcribe", "translate"] = "transcribe",
        strategy: Strategy | None = None,
    ) -> str: ...
    def transcribe(
        self,
        sound: Sound | list[Sound],
        language: str | None = None,
        task: Literal["transcribe", "translate"] = "transcribe",
        strategy: Strategy | None = None,
    ) -> str | list[str]:
        """What is said, in the language spoken, or in English (task "translate"). The language is heard from the first window
        if it is not given. Windows of a long recording are heard one by one, and their texts follow each other."""
        self._check()
        recordings = [
            self._features(one) for one in (sound if isinstance(sound, list) else [sound])
        ]
        prompts = [self._prompt(windows, language, task) for windows in recordings]
        texts = ["" for _ in recordings]
        for prompt in dict.fromkeys(prompts):
            alike = [i for i, other in enumerate(prompts) if other == prompt]
            for i, text in zip(
                alike, self._written([recordings[i] for i in alike], prompt, strategy), strict=True
            ):
                texts[i] = text
        return texts if isinstance(sound, list) else texts[0]

    # ------------------------------------------------------------------ for `regard.look`
    # Sound goes in and text comes out: the tokenizer is of the target alone.

    medium = "sound"

    @cached_property
    def special_tokens(self) -> SpecialTokens:  # type: ignore[override]
        return self._ends((self.ids.start,))

    @property
    def accepts_text(self) -> bool:
        return False

    @property
    def input_tokenizer(self) -> Tokenizer:
        raise no_tokenizer()

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.text

    def read_medium(self, data: bytes) -> MediaInput:
        """The first window of a recording, and the decoder prompt of its language."""
        from regard.look import MediaInput

        self._check()
        features = self._features(data)[:1]
        special_tokens = self._ends(self._prompt(features, None, "transcribe"))
        return MediaInput(features.to(self.device), pictured(features[0]), special_tokens)

    def _written(
        self, recordings: list[Tensor], prompt: tuple[int, ...], strategy: Strategy | None
    ) -> list[str]:
        """The windows of several recordings that begin alike, decoded together."""
        windows = [window for recording in recordings for window in recording]
        place = self.spec.target.position
        limit = Limit(
            0.0, place.length - len(prompt) if isinstance(place, kinds.LearnedPosition) else 448
        )
        settings = DecodingSettings(
            strategy or Greedy(), limit, batch_tokens=8 * windows[0].shape[-1]
        )
        found = iter(decode(self.model, windows, self._ends(prompt), settings))
        parts = [[self._said(next(found)[0].tokens) for _ in recording] for recording in recordings]
        return [" ".join(part for part in texts if part) for texts in parts]

    def _said(self, tokens: Sequence[int]) -> str:
        """The text without what marks times, which comes last in the vocabulary."""
        bare = self.text.token_to_id(BARE)
        return self.text.decode(i for i in tokens if bare is None or i <= bare).strip()

    def _ends(self, prompt: tuple[int, ...]) -> SpecialTokens:
        never = [i for i in self.generation.get("suppress_tokens") or () if i >= 0]
        first = [i for i in self.generation.get("begin_suppress_tokens") or () if i >= 0]
        return SpecialTokens(
            self.ids.pad, prompt, self.ids.end, tuple(never), begin_suppressed=tuple(first)
        )

    def _prompt(self, windows: Tensor, language: str | None, task: str) -> tuple[int, ...]:
        """What a target begins with: the language, the task, and that no times are wanted, as far as there are tokens for
        these."""
        begin, bare = self.text.token_to_id(BEGIN), self.text.token_to_id(BARE)
        if begin is None:
            if language is not None or task != "transcribe":
                raise SettingError(
                    "this model cannot be told a language or a task", "leave them out"
                )
            return (self.ids.start,)
        prompt = [begin]
        if self.languages:
            prompt += [self._language(windows, language), self._task(task)]
        elif language not in (None, "en") or task != "transcribe":
            raise SettingError("this model knows English only", "leave language and task out")
        return (*prompt, *([] if bare is None else [bare]))

    def _task(self, task: str) -> int:
        found = self.text.token_to_id(f"<|{task}|>")
        if found is None or task not in ("transcribe", "translate"):
            raise SettingError(f"there is no task {task!r}", "known: transcribe, translate")
        return found

    @torch.inference_mode()
    def _language(self, windows: Tensor, language: str | None) -> int:
        codes = self.languages
        if language is not None and language not in codes:
            raise SettingError(
                f"this model knows no language {language!r}", f"known: {', '.join(codes)}"
            )
        if language is not None:
            return int(self.text.token_to_id(f"<|{language}|>") or 0)
        ids = torch.tensor(
            [i for i in (self.text.token_to_id(f"<|{code}|>") for code in codes) if i is not None]
        )
        begin = torch.tensor([[self.text.token_to_id(BEGIN)]], device=self.device)
        encoded = self.model.encode(windows[:1].to(self.device))
        logits = self.model.head(self.model.decode(begin, encoded))[0, -1].cpu()
        return int(ids[logits[ids].argmax()])

    def _features(self, sound: Sound) -> Tensor:
        """[windows, mels, frames]"""
        assert isinstance(self.spec.source, kinds.Spectrogram)
        return log_mel(_samples(sound), self.spec.source.mels, self.seconds)

    def _check(self) -> None:
        """The features are computed in one way; a folder that asks for another is refused."""
        said = read_settings(self, "preprocessor_config.json")
        for key, value in _FRAMES.items():
            if said.get(key, value) != value:
                raise ModelError(
                    f"preprocessor_config.json: {key} is {said[key]}, but only {value} is understood",
                    "this model hears otherwise and cannot be used here; correct the key if it is wrong",
                )


class CTCModel(Model):
    """Spells what it hears letter by letter (Wav2Vec2 with connectionist temporal classification)."""

    model: Encoder
    spec: kinds.Encoder

    def __init__(
        self,
        model: Encoder,
        description: kinds.Encoder,
        letters: CTCDecoder | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, description, config)
        self._letters = letters

    @property
    def letters(self) -> CTCDecoder:
        if self._letters is None:
            if self.folder is None:
                raise DataError(
                    "this model has no letters",
                    "give them when it is made, or open it from a folder",
                )
            self._letters = CTCDecoder.open(self.folder)
        return self._letters

    @overload
    def transcribe(self, sound: list[Sound]) -> list[str]: ...
    @overload
    def transcribe(self, sound: Sound) -> str: ...
    def transcribe(self, sound: Sound | list[Sound]) -> str | list[str]:
        """The likeliest letter at each moment; repeated ones are one, and the blank stands between."""
        waves = [self._wave(one) for one in (sound if isinstance(sound, list) else [sound])]
        texts = [self.letters.text(ids) for ids in self._heard(waves)]
        return texts if isinstance(sound, list) else texts[0]

    @torch.inference_mode()
    def _heard(self, waves: list[Tensor]) -> list[list[int]]:
        """Recordings of like lengths together, where padding changes nothing; a norm over time would hear it."""
        assert isinstance(self.spec.input, kinds.Waveform)
        alone = any(
            isinstance(layer.norm, kinds.TimeNorm) for layer in self.spec.input.convolutions
        )
        budget = 1 if alone else 60 * RATE
        self.model.eval()
        results: list[list[int]] = [[] for _ in waves]
        for rows in batch_by_length([len(wave) for wave in waves], budget):
            given = torch.nn.utils.rnn.pad_sequence([waves[i] for i in rows], batch_first=True).to(
                self.device
            )
            lengths = torch.tensor([len(waves[i]) for i in rows], device=self.device)
            padding_mask = torch.arange(given.shape[1], device=self.device) < lengths[:, None]
            hidden, _ = self.model(given, padding_mask if len(rows) > 1 else None)
            best = self.model.classes(hidden, None).argmax(dim=-1).cpu()
            places = self.model.input.output_padding_mask(padding_mask)
            assert places is not None
            for i, ids, here in zip(rows, best, places.cpu(), strict=True):
                results[i] = ids[here].tolist()
        return results

    @cached_property
    def normalize(self) -> bool:
        """Whether a recording is brought to mean 0 and variance 1, as preprocessor_config.json says."""
        said = read_settings(self, "preprocessor_config.json")
        if said.get("sampling_rate", RATE) != RATE:
            raise ModelError(
                f"this model hears {said['sampling_rate']} samples a second",
                f"only {RATE} are understood",
            )
        return bool(said.get("do_normalize", True))

    medium = "sound"

    def read_medium(self, data: bytes) -> MediaInput:
        """The first seconds of a recording."""
        from regard.look import MediaInput

        samples = read_wav(data)[: LOOKED * RATE]
        seconds = max(0.1, len(samples) / RATE)
        mels = log_mel(samples, 80, seconds)[0]
        return MediaInput(self._wave(samples)[None].to(self.device), pictured(mels))

    def _wave(self, sound: Sound) -> Tensor:
        wave = torch.from_numpy(_samples(sound))
        if not self.normalize:
            return wave
        return (wave - wave.mean()) / (wave.var(correction=0) + 1e-7).sqrt()


def read_settings(model: Model, name: str) -> dict[str, Any]:
    """The content of a JSON file of the model's folder, empty without a folder or file."""
    return {} if model.folder is None else read_json_object(model.folder / name, DataError)


def pictured(features: Tensor) -> NDArray[np.uint8]:
    """Energies [mels, frames] as grey, low frequencies in the first row."""
    low, high = features.amin(), features.amax()
    return ((features - low) / (high - low).clamp_min(1e-9) * 255).round().to(torch.uint8).numpy()


def _samples(sound: Sound) -> Samples:
    samples = (
        read_wav(sound) if isinstance(sound, str | Path | bytes) else np.asarray(sound, np.float32)
    )
    if samples.ndim != 1 or not len(samples) or not np.isfinite(samples).all():
        raise DataError(
            f"a recording of the shape {samples.shape} is no row of finite samples",
            "give one channel of sound",
        )
    return samples
