"""Text to speech (FastSpeech 2, VITS): texts become spectrograms or latents, and these sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec as kinds
from regard.core.context import Context
from regard.core.finite_outputs import require_finite
from regard.core.heads.hifi_gan import HifiGan
from regard.core.heads.speech_head import SpectrogramHead
from regard.data.audio import HOP, RATE, Samples, resample
from regard.data.padding import pad_rows
from regard.data.speech import griffin_lim, wav_bytes, whole_log_mel, write_wav
from regard.models.base import TokenizerModel
from regard.models.labels import label_names
from regard.models.tasks import one_or_many
from regard.system.errors import DataError, ModelError, SettingError, did_you_mean
from regard.wirings.text_to_speech import Utterance

if TYPE_CHECKING:
    from regard.look import SpokenAlignment

_TEXTS_AT_ONCE = 16
_PUBLISHED_RATE = 22_050  # samples a second of the vocoders that are published
_MELS = 80  # of a spectrogram to look at


@dataclass(frozen=True, eq=False)
class Speech:
    """A spoken text: its samples, and what was decided on the way to them."""

    text: str  # without the name of the speaker
    rate: int  # samples a second
    seconds: float
    spectrogram: NDArray[Any] = field(repr=False)  # [frames, mels], on the scale of the model
    tokens: tuple[str, ...]  # letters, and those around the text
    durations: tuple[int, ...]  # of the tokens, in frames
    vocode: Callable[[], Samples] = field(repr=False)
    # Of the tokens, as the model was taught it; of none, if it knows neither.
    pitch: tuple[float, ...] = field(default=(), repr=False)
    energy: tuple[float, ...] = field(default=(), repr=False)

    @cached_property
    def samples(self) -> Samples:
        """The sound, between -1 and 1; made when it is first asked for."""
        return self.vocode()

    def save(self, path: str | Path) -> None:
        """Writes a WAV file."""
        write_wav(path, self.samples, self.rate)

    def wav(self) -> bytes:
        """The content of that file."""
        return wav_bytes(self.samples, self.rate)

    def look(self) -> SpokenAlignment:
        """Its tokens over its spectrogram; draws itself, as every analysis does."""
        from regard.look import spoken_alignment

        return spoken_alignment(self.tokens, self.durations, self.spectrogram, self.seconds)


class Manner(NamedTuple):
    """How a text is to be said."""

    slowness: float  # factor of all durations
    noise: float  # factor of what is drawn
    seed: int


class SpeechSynthesizer(TokenizerModel):
    """A model that speaks; made by `regard.load(folder)`.

    Without a vocoder (HiFi-GAN) in its folder, samples come from its spectrogram by Griffin–Lim.
    """

    evaluations = ("speak",)
    model: Any
    spec: kinds.TextToSpeech

    @cached_property
    def speakers(self) -> list[str]:
        """The names of those whom it can speak like; numbers where it knows no names."""
        return label_names(self.config, self.spec.speakers or 0)

    @one_or_many
    def speak(
        self,
        texts: list[str],
        speaker: str | None = None,
        slowness: float = 1.0,
        noise: float = 1.0,
        seed: int = 0,
    ) -> list[Speech]:
        """Each text as speech, as one of the `speakers` says it.

        A text may name its own speaker behind a tab. Durations are multiplied by the `slowness`,
        and by `noise` what a model such as VITS draws from the `seed`, for each text anew.
        """
        if not 0.1 <= slowness <= 10:
            raise SettingError(f"speech cannot be {slowness} times as slow", "set 0.1 to 10")
        # As pairs of texts are written everywhere: with a tab between.
        parts = [text.partition("\t") for text in texts]
        read = [" ".join(text.split()) for text, _, _ in parts]
        voices = [self._speaker(name or speaker) for _, _, name in parts]
        rows = [self.input_tokenizer.input_ids(text) for text in read]
        if not all(rows):
            raise DataError("a text has no letters that the model can say", "pass at least one")
        return self._say(read, rows, voices, Manner(slowness, noise, seed))

    def _say(
        self, texts: list[str], rows: list[list[int]], voices: list[int], manner: Manner
    ) -> list[Speech]:
        """Texts, whose tokens and speakers are these."""
        if manner.noise != 1:
            raise SettingError("this model draws nothing at random", "remove `noise`")
        results: list[Speech] = []
        for begin in range(0, len(texts), _TEXTS_AT_ONCE):
            part = slice(begin, begin + _TEXTS_AT_ONCE)
            utterance, spectrograms = self._frames(rows[part], voices[part], manner.slowness)
            for i, text in enumerate(texts[part]):
                vocode = partial(self._samples, spectrograms[i], manner.seed)
                ids = rows[begin + i]
                results.append(self._speech(text, ids, utterance, i, spectrograms[i], vocode))
        return results

    def _speaker(self, name: str | None) -> int:
        if not self.speakers:
            if name:
                raise SettingError(f"this model has one voice, and no {name!r}", "name no speaker")
            return 0
        if not name:
            return 0
        if name not in self.speakers:
            raise SettingError(
                f"this model has no speaker {name!r}", did_you_mean(name, self.speakers)
            )
        return self.speakers.index(name)

    @torch.inference_mode()
    def _frames(
        self, rows: Sequence[Sequence[int]], voices: Sequence[int], slowness: float
    ) -> tuple[Utterance, list[Tensor]]:
        """What the model makes of some texts, and the spectrogram of each [frames, mels]."""
        self.model.eval()
        tokens, mask = pad_rows(rows, 0)  # [B, S]
        voice = {"speaker_ids": torch.tensor(voices, device=self.device)}
        utterance = self.model.utter(
            tokens.to(self.device), mask.to(self.device), Context(), voice, slowness=slowness
        )
        _, spectrogram = self.model.require(SpectrogramHead)(utterance.hidden, utterance.is_frame)
        spectrogram = require_finite(spectrogram, self.model)
        steps = spectrogram.shape[1] // utterance.hidden.shape[1]
        counts = (utterance.is_frame.sum(dim=1) * steps).tolist()
        return utterance, [one[:count] for one, count in zip(spectrogram, counts, strict=True)]

    def _speech(
        self,
        text: str,
        ids: Sequence[int],
        utterance: Utterance,
        row: int,
        spectrogram: Tensor,
        vocode: Callable[[], Samples],
    ) -> Speech:
        count = len(ids)
        vocoder = self.model.part(HifiGan)
        hop = HOP if vocoder is None else vocoder.hop
        return Speech(
            text,
            self._rate,
            len(spectrogram) * hop / self._rate,
            spectrogram.float().cpu().numpy(),
            tuple(self.input_tokenizer.tokens(ids)),
            tuple(utterance.durations[row, :count].tolist()),
            vocode,
            tuple(utterance.predicted.pitch[row, :count, 0].tolist()),
            tuple(utterance.predicted.energy[row, :count, 0].tolist()),
        )

    @torch.inference_mode()
    def _samples(self, spectrogram: Tensor, seed: int) -> Samples:
        """The samples of a spectrogram [frames, mels]."""
        vocoder = self.model.part(HifiGan)
        if vocoder is None:
            return griffin_lim(spectrogram.T, seed=seed)
        samples: Samples = vocoder(spectrogram[None])[0].float().cpu().numpy()
        return samples

    @cached_property
    def _rate(self) -> int:
        """Samples a second: of the vocoder, or of the spectrograms that models here learn."""
        if self.model.part(HifiGan) is not None:
            return int(self.config.get("sampling_rate") or _PUBLISHED_RATE)
        features = self.read_json("preprocessor_config.json")
        if self.folder is not None and features.get("hop_length") != HOP:
            raise ModelError(
                "this model has no vocoder, and does not say what its spectrograms are of",
                "load a folder with a vocoder (FastSpeech2ConformerWithHifiGan)",
            )
        return RATE


class VariationalSynthesizer(SpeechSynthesizer):
    """A model such as VITS, which draws how it says a text; made by `regard.load(folder)`.

    `model.model.noise_scale` and `noise_scale_duration` may be set, as in `transformers`.
    """

    spec: kinds.VariationalTextToSpeech  # type: ignore[assignment]

    def _say(
        self, texts: list[str], rows: list[list[int]], voices: list[int], manner: Manner
    ) -> list[Speech]:
        """Texts, whose tokens and speakers are these; one after the other, each as it is alone."""
        self.model.eval()
        romanized = self.read_json("tokenizer_config.json").get("is_uroman")
        if romanized and not all(map(str.isascii, texts)):
            raise DataError(
                "this model reads Latin letters, and would leave others out",
                "romanize the text first, as uroman does",
            )
        return [self._one(*one, manner) for one in zip(texts, rows, voices, strict=True)]

    @torch.inference_mode()
    def _one(self, text: str, ids: list[int], voice: int, manner: Manner) -> Speech:
        generator = torch.Generator().manual_seed(manner.seed)

        def draw(like: Tensor) -> Tensor:
            # On the CPU, so that every device says the same.
            return torch.randn(like.shape, generator=generator).to(like) * manner.noise

        inputs = {
            "speaker_id": torch.tensor([voice], device=self.device),
            "speaking_rate": torch.tensor(self.model.speaking_rate / manner.slowness),
        }
        tokens = torch.tensor([ids], device=self.device)
        latents = self.model.utter(tokens, None, Context(), inputs, draw)
        hidden = require_finite(latents.hidden, self.model)
        sound = self.model.require(HifiGan)(hidden, self.model.voice(inputs))[0]
        samples: Samples = sound.float().cpu().numpy()
        # It makes none: that of the sound, as recognisers hear it.
        spectrogram = whole_log_mel(resample(samples, self._rate), _MELS)
        return Speech(
            text,
            self._rate,
            len(samples) / self._rate,
            spectrogram.T.numpy(),
            tuple(self.input_tokenizer.tokens(ids)),
            tuple(latents.durations[0].tolist()),
            lambda: samples,
        )

    @cached_property
    def _rate(self) -> int:
        return int(self.config.get("sampling_rate") or RATE)
