"""`/v1/audio/transcriptions`: the text of a recording, with the times of its words.

An encoder–decoder hears windows of a fixed length, each a request to the engine; the times of its
words come from its cross-attention. A CTC model gives a letter to each frame.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from regard.data.audio import RATE
from regard.decode.strategy import returning, sampling
from regard.look.alignments import monotonic_spans
from regard.look.inspectable import Reading
from regard.models.inputs.sound import read_recordings
from regard.serve.api import ApiError, ApiModel, NoValue, Request, api_error
from regard.serve.completions import Speller, reason
from regard.serve.requests import Generation, LookRequest, Stream
from regard.serve.service import Endpoint, EventStream, Service, ask, unless_gone

if TYPE_CHECKING:
    from regard.serve.engine import Engine

_CUE_SECONDS = 7.0  # a subtitle is shown for so long at most
_CUE_CHARACTERS = 84  # two lines


class TranscriptionRequest(Request):
    """The fields of the form beside its `file`."""

    file: Annotated[bytes, Field(min_length=1)]
    language: Annotated[str, Field(max_length=40)] | None = None
    prompt: NoValue = None
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    timestamp_granularities: list[Literal["word", "segment"]] = Field(default_factory=list)
    include: list[Literal["logprobs"]] = Field(default_factory=list)
    stream: bool = False
    chunking_strategy: NoValue = None

    @property
    def needs_times(self) -> bool:
        return self.response_format in ("srt", "vtt", "verbose_json")


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


@dataclass(frozen=True)
class Heard:
    """A word of a recording, with its tokens and their mean log-probability."""

    text: str
    start: float
    end: float
    ids: tuple[int, ...] = ()
    logprob: float = 0.0


@dataclass(frozen=True)
class Window:
    """What was heard in one window: its text, words where times were asked for, and silence."""

    text: str
    words: tuple[Heard, ...] = ()
    tokens: tuple[LetterLogprob, ...] = ()
    no_speech: float = 0.0


# ------------------------------------------------------------------ the route


async def transcribe(
    service: Service, request: TranscriptionRequest, http: HttpRequest
) -> ApiModel | Response:
    """The text of a recording, WAV or FLAC."""
    engine = await service.engine(request.model)
    model: Any = engine.model
    if "transcribe" not in model.tasks:
        raise ApiError("this model transcribes nothing", "model", code="unsupported_by_model")
    if request.timestamp_granularities and request.response_format != "verbose_json":
        raise ApiError(
            "timestamp_granularities needs response_format: verbose_json", "timestamp_granularities"
        )
    if request.include and request.response_format != "json":
        raise ApiError("include: log-probabilities need response_format: json", "include")
    if request.stream and request.response_format not in ("json", "text"):
        raise ApiError("stream: an answer with times is known at the end only", "stream")
    [samples] = await run_in_threadpool(read_recordings, [request.file], model.say)
    seconds = len(samples) / RATE
    if not model.model.writes:
        return await _letters(request, engine, samples, seconds, http)
    features = await run_in_threadpool(model.features, samples)  # [windows, mels, frames]
    special = await run_in_threadpool(model.prompt, features, request.language)
    language = request.language or _language(model, special)
    generations = [_generation(engine, window[None], special, request) for window in features]
    streams: list[Stream] = []
    for one in generations:
        streams.append(engine.submit(one))

    async def windows_in_order() -> AsyncIterator[Window]:
        for i, (generation, stream) in enumerate(zip(generations, streams, strict=True)):
            yield await _window(engine, generation, stream, i * model.seconds, seconds)

    if request.stream:
        return EventStream(_events(request, windows_in_order(), seconds), streams)

    async def all_windows() -> list[Window]:
        return [one async for one in windows_in_order()]

    heard = await unless_gone(http, streams, all_windows())
    return _answer(request, heard, seconds, language)


def _generation(
    engine: Engine, window: Any, special: Any, request: TranscriptionRequest
) -> Generation:
    model: Any = engine.model
    start = special.start if isinstance(special.start, tuple) else (special.start,)
    most = model.spec.target.max_length or engine.limits.max_new_tokens
    one = Generation(
        Reading(window.to(model.device, model.dtype), special_tokens=special),
        returning(sampling(temperature=request.temperature), 1),
        min(most - len(start), engine.limits.max_new_tokens),
    )
    if request.include or request.response_format == "verbose_json":
        one = replace(one, logprobs=0)
    if request.needs_times:
        one = replace(one, look=LookRequest(alignment=True))
    return one


def _language(model: Any, special: Any) -> str:
    """The language that the decoder is told, where it is told one."""
    for id in special.start if isinstance(special.start, tuple) else ():
        code = model.tokenizer.id_to_token(id).strip("<|>")
        if code in model.languages:
            return code
    return ""


# ------------------------------------------------------------------ words and their times


async def _letters(
    request: TranscriptionRequest, engine: Engine, samples: Any, seconds: float, http: HttpRequest
) -> ApiModel | Response:
    """The answer of a CTC model."""
    for field in ("language", "temperature", "include", "stream"):
        if getattr(request, field):
            raise ApiError(f"{field}: a model that hears letters does without it", field)
    [ids] = await ask(http, engine.call(partial(_frame_labels, samples=samples)))
    decoder = engine.model.decoder
    frame = seconds / max(1, len(ids))
    words = [Heard(word, begin * frame, end * frame) for word, begin, end in decoder.words(ids)]
    return _answer(request, [Window(decoder.text(ids), tuple(words))], seconds, "")


async def _window(
    engine: Engine, generation: Generation, stream: Stream, begin: float, seconds: float
) -> Window:
    model: Any = engine.model
    speller = Speller(model)
    pieces: list[str] = []  # the text of each token
    async for token in stream:
        speller.add(token)
        pieces += [token.text, *[""] * (len(token.ids) - 1)]
    result = await stream.result()
    [choice] = result.choices
    reason(choice)
    text = model.text(choice.ids)
    rows = [
        LetterLogprob(token=row.text, bytes=[*row.text.encode()], logprob=row.logprob)
        for row in speller.rows
        if row.logprob is not None
    ]
    if generation.look is None or result.look is None:
        return Window(text, tokens=tuple(rows))
    weights = np.asarray(result.look["alignment"]["weights"])[: len(choice.ids)]  # [tokens, frames]
    frame = model.seconds / weights.shape[1]
    # What follows the end of the recording in its window is silence that nobody has spoken.
    frames = max(1, min(weights.shape[1], math.ceil((seconds - begin) / frame)))
    spans = monotonic_spans(weights[:, :frames]) if choice.ids else []
    logprobs = [row.logprob for row in rows] or [0.0] * len(choice.ids)
    words: list[Heard] = []
    for numbers in _by_words(pieces[: len(choice.ids)]):
        start, end = (begin + frame * one for one in (spans[numbers[0]][0], spans[numbers[-1]][1]))
        word = "".join(pieces[i] for i in numbers).strip()
        tokens = tuple(choice.ids[i] for i in numbers)
        mean = sum(logprobs[i] for i in numbers) / len(numbers)
        words.append(Heard(word, start, min(end, seconds), tokens, mean))
    silence = 0.0
    if generation.logprobs is not None:
        silence = await engine.call(partial(_silence, reading=generation.reading)).result()
    return Window(text, tuple(words), tuple(rows), silence)


def _frame_labels(model: Any, samples: Any) -> list[list[int]]:
    return model.frame_labels([samples], RATE)


def _silence(model: Any, reading: Reading) -> float:
    return model.no_speech_probability(reading.inputs)


def _by_words(pieces: Sequence[str]) -> list[list[int]]:
    """The numbers of the tokens of each word, by the texts of all tokens."""
    words: list[list[int]] = []
    ends = True
    for i, piece in enumerate(pieces):
        if piece.strip() and (ends or piece[0].isspace()):
            words.append([])
        if words:
            words[-1].append(i)
        ends = piece[-1:].isspace() or (ends and not piece)
    return words


def cues(words: Sequence[Heard]) -> list[list[Heard]]:
    """Words as subtitles: to the end of a sentence, or as long as one can be read."""
    groups: list[list[Heard]] = []
    for word in words:
        last = groups[-1] if groups else []
        characters = sum(len(one.text) + 1 for one in last) + len(word.text)
        if (
            not last
            or last[-1].text.endswith((".", "?", "!"))
            or characters > _CUE_CHARACTERS
            or word.end - last[0].start > _CUE_SECONDS
        ):
            groups.append([])
        groups[-1].append(word)
    return groups


# ------------------------------------------------------------------ the answer


def _answer(
    request: TranscriptionRequest, windows: Sequence[Window], seconds: float, language: str
) -> ApiModel | Response:
    text = " ".join(one.text for one in windows if one.text)
    words = [word for one in windows for word in one.words]
    usage = Duration(seconds=seconds)
    match request.response_format:
        case "text":
            return PlainTextResponse(text + "\n")
        case "json":
            tokens = [token for one in windows for token in one.tokens]
            return Transcription(
                text=text, logprobs=tokens if request.include else None, usage=usage
            )
        case "srt":
            blocks = [
                f"{i}\n{_span(cue, ',')}\n{_line(cue)}\n" for i, cue in enumerate(cues(words), 1)
            ]
            return PlainTextResponse("\n".join(blocks), media_type="application/x-subrip")
        case "vtt":
            blocks = [f"{_span(cue, '.')}\n{_line(cue)}\n" for cue in cues(words)]
            return PlainTextResponse("\n".join(["WEBVTT\n", *blocks]), media_type="text/vtt")
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


def _segment(number: int, cue: Sequence[Heard], temperature: float, no_speech: float) -> Segment:
    text = _line(cue)
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


def _line(cue: Sequence[Heard]) -> str:
    return " ".join(word.text for word in cue)


def _span(cue: Sequence[Heard], point: str) -> str:
    return f"{_time(cue[0].start, point)} --> {_time(cue[-1].end, point)}"


def _time(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


async def _events(
    request: TranscriptionRequest, windows: AsyncIterator[Window], seconds: float
) -> AsyncIterator[bytes]:
    """The text window by window, as OpenAI's events."""
    text = ""
    tokens: list[dict[str, Any]] = []
    try:
        async for window in windows:
            delta = window.text
            if text and delta:
                delta = f" {delta}"
            text += delta
            event: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
            if request.include and window.tokens:
                event["logprobs"] = [one.model_dump() for one in window.tokens]
                tokens += event["logprobs"]
            yield _event(event)
        done: dict[str, Any] = {"type": "transcript.text.done", "text": text}
        if tokens:
            done["logprobs"] = tokens
        yield _event(done)
    except Exception as failure:
        yield _event(api_error(failure).body())
    yield b"data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


ENDPOINTS = (
    Endpoint(
        "/v1/audio/transcriptions",
        transcribe,
        "Transcribe a recording",
        Transcription | VerboseTranscription,
        TranscriptionRequest,
        forms=("multipart/form-data",),
    ),
)
