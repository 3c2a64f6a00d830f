"""Speech recognition by an encoder–decoder over log-mel spectrograms (Whisper)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Literal, Unpack

import torch
from torch import Tensor

from regard import spec as kinds
from regard.decode.batch_decoding import SpecialTokens
from regard.decode.strategy import DecodingOptions, Strategy, choose_strategy
from regard.models.inputs.sound import Sound, read_recordings
from regard.models.medium_to_text import MediumToText
from regard.models.sound_models import SpectrogramModel
from regard.models.tasks import one_or_many
from regard.system.errors import SettingError
from regard.wirings.encoder_decoder import EncoderDecoder

_ENGLISH_ONLY_VOCABULARY = 51864  # one token fewer than the multilingual models have
_START = "<|startoftranscript|>"
_NO_TIMESTAMPS = "<|notimestamps|>"
_NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # of newer and of older folders
_WINDOWS_AT_ONCE = 8  # 12,000 encoder positions

Task = Literal["transcribe", "translate"]


class SpeechToText(SpectrogramModel, MediumToText):
    """An encoder–decoder that transcribes speech (Whisper); made by `regard.load(folder)`."""

    evaluations = ("transcribe",)
    repair_of_length = (
        "use shorter recordings: the decoder has no more positions, so their ends are missing"
    )
    model: EncoderDecoder
    spec: kinds.EncoderDecoder

    @property
    def languages(self) -> list[str]:
        """The language codes that it knows; none for an English-only model."""
        multilingual = self.spec.target_tokens.vocabulary != _ENGLISH_ONLY_VOCABULARY
        if not self.generation_config.get("is_multilingual", multilingual):
            return []
        # Newer files list the languages; for the first ones they follow from the vocabulary.
        tokens = self.generation_config.get("lang_to_id")
        if not isinstance(tokens, dict):
            # They stand between the start token and the tasks.
            start = self.tokenizer.token_to_id(_START)
            translate = self.tokenizer.token_to_id("<|translate|>")
            if start is None or translate is None:
                return []
            tokens = map(self.tokenizer.id_to_token, range(start + 1, translate))
        return sorted(token.strip("<|>") for token in tokens)

    @one_or_many
    def transcribe(
        self,
        sounds: list[Sound],
        language: str | None = None,
        task: Task = "transcribe",
        strategy: Strategy | None = None,
        *,
        sampling_rate: int | None = None,
        **options: Unpack[DecodingOptions],
    ) -> list[str]:
        """The text of a recording, in its language, or in English (task "translate").

        Without a `language`, it is detected in the first window. Windows of a long recording are
        decoded one by one, and their texts are joined. Decoding is greedy without a `strategy`, or
        keywords that stand for one (`beam=5`). `sampling_rate` is that of arrays; files say their
        own.
        """
        strategy = choose_strategy(strategy, options, ("language", "task", "sampling_rate"))
        samples = read_recordings(sounds, self.say, sampling_rate)
        recordings = [self.features(one) for one in samples]  # each [windows, mels, frames]
        prompts = [self.decoder_prompt(windows, language, task) for windows in recordings]
        texts: dict[int, str] = {}
        # Recordings with the same decoder prompt are decoded in one batch.
        for prompt in {*prompts}:
            rows = [i for i, other in enumerate(prompts) if other == prompt]
            decoded = self._decode([recordings[i] for i in rows], prompt, strategy)
            texts |= zip(rows, decoded, strict=True)
        return [texts[i] for i in range(len(recordings))]

    # ------------------------------------------------------------------ for `regard.look`

    def prompt(self, features: Tensor, language: str | None = None) -> SpecialTokens:
        return self._special_tokens(self.decoder_prompt(features, language, "transcribe"))

    # ------------------------------------------------------------------ decoding

    def _decode(
        self, recordings: list[Tensor], prompt: tuple[int, ...], strategy: Strategy | None
    ) -> list[str]:
        """The texts of recordings with one decoder prompt; their windows form one batch."""
        # [mels, frames] each; windows of one recording are decoded independently of each other.
        windows = [window for recording in recordings for window in recording]
        frames = windows[0].shape[-1]
        written = self._written(windows, prompt, strategy, _WINDOWS_AT_ONCE * frames)
        texts = iter(written)
        return [" ".join(filter(None, islice(texts, len(windows)))) for windows in recordings]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of a hypothesis without timestamps, which are the last ids of the vocabulary."""
        last_text_id = self.tokenizer.token_to_id(_NO_TIMESTAMPS)
        if last_text_id is not None:
            tokens = [i for i in tokens if i <= last_text_id]
        return self.tokenizer.decode(tokens).strip()

    # ------------------------------------------------------------------ decoder prompt

    def decoder_prompt(
        self, windows: Tensor | None, language: str | None, task: str = "transcribe"
    ) -> tuple[int, ...]:
        """The decoder prompt: start, language, task, no timestamps, as far as they are tokens."""
        start = self.tokenizer.token_to_id(_START)
        if start is None:
            if language is not None or task != "transcribe":
                raise SettingError(
                    "this model does not take a language or a task", "remove `language` and `task`"
                )
            return (self.ids.start,)
        # Radford et al. 2022, figure 1: the multitask format.
        prompt = [start]
        if self.languages:
            prompt.append(self._language_id(windows, language))
            prompt.append(self._task_id(task))
        elif language not in (None, "en") or task != "transcribe":
            raise SettingError("this model supports English only", "remove `language` and `task`")
        no_timestamps = self.tokenizer.token_to_id(_NO_TIMESTAMPS)
        if no_timestamps is not None:
            prompt.append(no_timestamps)
        return tuple(prompt)

    def _task_id(self, task: str) -> int:
        token_id = self.tokenizer.token_to_id(f"<|{task}|>")
        if token_id is None or task not in ("transcribe", "translate"):
            raise SettingError(f"unknown task {task!r}", "use transcribe or translate")
        return token_id

    def _language_id(self, windows: Tensor | None, language: str | None) -> int:
        if language is None:
            if windows is None:
                raise SettingError(
                    f"this model supports {len(self.languages)} languages",
                    "set `languages` to the language of the transcripts",
                )
            return self._detect_language(windows)
        if language not in self.languages:
            raise SettingError(
                f"this model does not support the language {language!r}",
                f"use one of: {', '.join(self.languages)}",
            )
        return int(self.tokenizer.token_to_id(f"<|{language}|>") or 0)

    def _detect_language(self, windows: Tensor) -> int:
        """The likeliest language token after the start token, given the first window."""
        candidates = [self.tokenizer.token_to_id(f"<|{code}|>") for code in self.languages]
        ids = torch.tensor([i for i in candidates if i is not None])
        return int(ids[self._first_logits(windows)[ids].argmax()])

    def no_speech_probability(self, windows: Tensor) -> float:
        """How likely nobody speaks in the first window; 0 for a model without a token for it."""
        ids = map(self.tokenizer.token_to_id, _NO_SPEECH)
        token = next((i for i in ids if i is not None), None)
        if token is None or self.tokenizer.token_to_id(_START) is None:
            return 0.0
        return float(self._first_logits(windows).float().softmax(dim=-1)[token])

    @torch.inference_mode()
    def _first_logits(self, windows: Tensor) -> Tensor:
        """The logits behind the start token alone, given the first window: [V]."""
        start = torch.tensor([[self.tokenizer.token_to_id(_START)]], device=self.device)
        encoded = self.model.encode(windows[:1].to(self.device, self.dtype))
        return self.model.head(self.model.decode(start, encoded))[0, -1].cpu()
