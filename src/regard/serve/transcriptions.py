"""`/v1/audio/transcriptions`: the text of a recording, with the times of its words.

An encoder–decoder hears windows of a fixed length, each a request to the engine; the times of its
words come from its cross-attention. A CTC model gives a letter to each frame.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from regard.data.audio import RATE
from regard.decode.strategy import returning, sampling
from regard.look.inspectable import Reading
from regard.look.spoken_words import (
    SpokenWord,
    cues,
    line,
    subtitles,
    words_of_attention,
    words_of_frames,
)
from regard.models.inputs.sound import read_recordings
from regard.serve.api import ApiError, ApiModel, NoValue, Request, blamed, unsupported
from regard.serve.completions import Speller, reason
from regard.serve.requests import Generation, LookRequest, Stream
from regard.serve.schema import Code
from regard.serve.service import EVENT_STREAM, Call, Endpoint, EventStream

_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}


class TranscriptionRequest(Request):
    """The fields of the form beside its `file`."""

    file: Annotated[bytes, Field(min_length=1)]
    language: Code | None = None
    prompt: NoValue = None
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    timestamp_granularities: list[Literal["word", "segment"]] = Field(default_factory=list)
    include: list[Literal["logprobs"]] = Field(default_factory=list)
    stream: bool = False
    chunking_strategy: NoValue = None

    def require_consistent(self) -> None:
        """Refuses what another field makes impossible."""
        form = self.response_format
        for field, forms, problem in (
            ("timestamp_granularities", ("verbose_json",), "needs response_format: verbose_json"),
            ("include", ("json",), "log-probabilities need response_format: json"),
            ("stream", ("json", "text"), "an answer with times is known at the end only"),
        ):
            if getattr(self, field) and form not in forms:
                raise ApiError(f"{field}: {problem}", field)


class Duration(ApiModel):
    type: Literal["duration"] = "duration"
    seconds: float


class LetterLogprob(ApiModel):
    token: str
    bytes: list[int]
    logprob: float


class Transcription(ApiModel):
    text: str
    logprobs: list[LetterLogprob] | None = None
    usage: Duration


class Word(ApiModel):
    word: str
    start: float
    end: float


class Segment(ApiModel):
    """A stretch of speech, long enough for a subtitle."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseTranscription(ApiModel):
    task: Literal["transcribe"] = "transcribe"
    language: str
    duration: float
    text: str
    segments: list[Segment] | None = None
    words: list[Word] | None = None
    usage: Duration


class TextDelta(ApiModel):
    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str
    logprobs: list[LetterLogprob] | None = None


class TextDone(ApiModel):
    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    logprobs: list[LetterLogprob] | None = None


@dataclass(frozen=True)
class Window:
    """What was heard in one window: its text, words where times were asked for, and silence."""

    text: str
    words: Sequence[SpokenWord] = ()
    tokens: Sequence[LetterLogprob] = ()
    no_speech: float = 0.0


# ------------------------------------------------------------------ the route


async def transcribe(call: Call) -> ApiModel | Response:
    """The text of a recording, WAV or FLAC."""
    request: TranscriptionRequest = call.request
    model = call.model
    if "transcribe" not in model.tasks:
        raise unsupported("this model transcribes nothing")
    request.require_consistent()
    with blamed("file"):
        [samples] = await run_in_threadpool(read_recordings, [request.file], model.say)
    seconds = len(samples) / RATE
    if not model.model.writes:
        return _answer(request, [await _letters(call, samples, seconds)], seconds, "")
    features = await run_in_threadpool(model.features, samples)  # [windows, mels, frames]
    with blamed("language"):
        special = await run_in_threadpool(model.prompt, features, request.language)
    generations = [_generation(call, window[None], special) for window in features]
    streams = call.submit(generations)

    async def windows_in_order() -> AsyncIterator[Window]:
        for i, (generation, stream) in enumerate(zip(generations, streams, strict=True)):
            yield await _window(call, generation, stream, i * model.seconds, seconds)

    if request.stream:
        return EventStream(_events(request, windows_in_order()), streams)

    async def all_windows() -> list[Window]:
        return [one async for one in windows_in_order()]

    heard = await call.unless_gone(streams, all_windows())
    return _answer(request, heard, seconds, request.language or _language(model, special))


def _generation(call: Call, window: Any, special: Any) -> Generation:
    request: TranscriptionRequest = call.request
    model = call.model
    start = special.start if isinstance(special.start, tuple) else (special.start,)
    room = call.engine.limits.max_new_tokens
    most = model.spec.target.max_length or room
    one = Generation(
        Reading(window.to(model.device, model.dtype), special_tokens=special),
        returning(sampling(temperature=request.temperature), 1),
        min(most - len(start), room),
    )
    if request.include or request.response_format == "verbose_json":
        one = replace(one, logprobs=0)
    if request.response_format in ("srt", "vtt", "verbose_json"):
        one = replace(one, look=LookRequest(alignment=True))
    return one


def _language(model: Any, special: Any) -> str:
    """The language that the decoder is told, where it is told one."""
    for id in special.start if isinstance(special.start, tuple) else ():
        code = model.tokenizer.id_to_token(id).strip("<|>")
        if code in model.languages:
            return code
    return ""


async def _letters(call: Call, samples: Any, seconds: float) -> Window:
    """What a CTC model hears."""
    for field in ("language", "temperature", "include", "stream"):
        if getattr(call.request, field):
            raise ApiError(f"{field}: a model that hears letters does without it", field)
    heard = methodcaller("frame_labels", [samples], RATE)
    [ids] = await call.run(heard, field="file")
    decoder = call.model.decoder
    return Window(decoder.text(ids), words_of_frames(decoder, ids, seconds))


async def _window(
    call: Call, generation: Generation, stream: Stream, begin: float, seconds: float
) -> Window:
    """What an encoder–decoder hears in the window that begins there."""
    model = call.model
    speller = Speller(model)
    pieces: list[str] = []  # the text of each token
    async for token in stream:
        speller.add(token)
        pieces += [token.text, *[""] * (len(token.ids) - 1)]
    result = await stream.result()
    [choice] = result.choices
    reason(choice)
    text = model.text(choice.ids)
    tokens = [
        LetterLogprob(token=row.text, bytes=[*row.text.encode()], logprob=row.logprob)
        for row in speller.rows
        if row.logprob is not None
    ]
    if result.look is None:
        return Window(text, tokens=tokens)
    weights = np.asarray(result.look["alignment"]["weights"])[: len(choice.ids)]  # [tokens, frames]
    logprobs = [row.logprob for row in tokens] or [0.0] * len(choice.ids)
    pieces = pieces[: len(choice.ids)]
    window = (begin, begin + model.seconds)
    words = words_of_attention(weights, choice.ids, pieces, logprobs, window, seconds)
    silence = 0.0
    if generation.logprobs is not None:
        asked = methodcaller("no_speech_probability", generation.reading.inputs)
        silence = await call.run(asked, field="file")
    return Window(text, words, tokens, silence)


# ------------------------------------------------------------------ the answer


def _answer(
    request: TranscriptionRequest, windows: Sequence[Window], seconds: float, language: str
) -> ApiModel | Response:
    text = " ".join(one.text for one in windows if one.text)
    words = [word for one in windows for word in one.words]
    usage = Duration(seconds=seconds)
    match request.response_format:
        case "json":
            tokens = [token for one in windows for token in one.tokens]
            return Transcription(
                text=text, logprobs=tokens if request.include else None, usage=usage
            )
        case "text":
            return PlainTextResponse(f"{text}\n", media_type=_TYPES["text"])
        case "srt" | "vtt" as form:
            return PlainTextResponse(subtitles(words, form), media_type=_TYPES[form])
    asked = request.timestamp_granularities or ["segment"]
    parts: dict[str, Any] = {}
    if "segment" in asked:
        spoken = [(cue, one.no_speech) for one in windows for cue in cues(one.words)]
        parts["segments"] = [
            _segment(i, cue, request.temperature, silence)
            for i, (cue, silence) in enumerate(spoken)
        ]
    if "word" in asked:
        parts["words"] = [Word(word=one.text, start=one.start, end=one.end) for one in words]
    return VerboseTranscription(
        language=language, duration=seconds, text=text, usage=usage, **parts
    )


def _segment(
    number: int, cue: Sequence[SpokenWord], temperature: float, no_speech: float
) -> Segment:
    text = line(cue)
    content = text.encode()
    return Segment(
        id=number,
        seek=round(cue[0].start * 100),  # in frames of a spectrogram
        start=cue[0].start,
        end=cue[-1].end,
        text=text,
        tokens=[id for word in cue for id in word.ids],
        temperature=temperature,
        avg_logprob=sum(word.logprob for word in cue) / len(cue),
        compression_ratio=len(content) / len(zlib.compress(content)),
        no_speech_prob=no_speech,
    )


async def _events(
    request: TranscriptionRequest, windows: AsyncIterator[Window]
) -> AsyncIterator[TextDelta | TextDone]:
    """The text window by window, as OpenAI's events."""
    text = ""
    tokens: list[LetterLogprob] = []
    async for window in windows:
        delta = window.text
        if text and delta:
            delta = f" {delta}"
        text += delta
        new = [*window.tokens] if request.include else []
        tokens += new
        yield TextDelta(delta=delta, logprobs=new or None)
    yield TextDone(text=text, logprobs=tokens or None)


ENDPOINTS = (
    Endpoint(
        "/v1/audio/transcriptions",
        transcribe,
        Transcription | VerboseTranscription,
        TranscriptionRequest,
        forms=("multipart/form-data",),
        other_forms=(*_TYPES.values(), EVENT_STREAM),
        reads_files=True,
    ),
)
