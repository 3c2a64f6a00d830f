"""LibreTranslate's routes, for the plugins that speak them: translate, detect, languages.

A text is translated line by line, as `regard translate` does; empty lines stay empty. Of HTML, the
text between two tags is one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, RootModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest

from regard.serve.api import ApiError, ApiModel
from regard.serve.completions import cancel, reason
from regard.serve.generation import generation, read, require_writer, search
from regard.serve.languages import Pair, known_share, language_name
from regard.serve.openai_schema import Text
from regard.serve.service import Endpoint, Service, unless_gone

if TYPE_CHECKING:
    from regard.serve.engine import Engine

FORMS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
_SURE = 100.0  # LibreTranslate's confidence is in percent
_MOST_LINES = 1024
_SILENT_TAGS = ("script", "style", "code", "pre")
Code = Annotated[str, Field(min_length=1, max_length=40)]


class KeyRequest(ApiModel):
    """LibreTranslate's clients send the key of the server in the request itself."""

    api_key: Annotated[str, Field(max_length=1000)] | None = None


class TranslateRequest(KeyRequest):
    q: Text | Annotated[list[Text], Field(max_length=1 << 16)]
    source: Code
    target: Code
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=1 << 20)] = 0


class DetectRequest(KeyRequest):
    q: Text


class Detected(ApiModel):
    confidence: float
    language: str


class Translation(ApiModel):
    translatedText: str | list[str]  # LibreTranslate's names
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


class Language(ApiModel):
    code: str
    name: str
    targets: list[str]


class Languages(RootModel[list[Language]]):
    pass


class Detections(RootModel[list[Detected]]):
    pass


# ------------------------------------------------------------------ the routes


async def languages(service: Service, request: None, http: HttpRequest) -> Languages:
    """The source languages of the served translators, each with its targets."""
    targets: dict[str, set[str]] = {}
    for pair in service.languages.values():
        targets.setdefault(pair.source, set()).add(pair.target)
    return Languages(
        [
            Language(code=code, name=language_name(code), targets=sorted(targets[code]))
            for code in sorted(targets)
        ]
    )


async def detect(service: Service, request: DetectRequest, http: HttpRequest) -> Detections:
    """The source languages of the served translators, the one whose words a text has first."""
    if not request.q.strip():
        raise ApiError("q: the text is empty", "q")
    return Detections(await _detections(service, request.q))


async def _detections(service: Service, text: str) -> list[Detected]:
    shares: dict[str, float] = {}
    for name, pair in service.languages.items():
        engine = await service.engine(name)
        share = await run_in_threadpool(known_share, engine.model, text)
        shares[pair.source] = max(share, shares.get(pair.source, 0.0))
    if not shares:
        raise _no_translator()
    detections = [
        Detected(confidence=_SURE * share, language=code) for code, share in shares.items()
    ]
    return sorted(detections, key=lambda one: -one.confidence)


async def translate(service: Service, request: TranslateRequest, http: HttpRequest) -> Translation:
    """Translates a text, or several, as plain text or as HTML."""
    service.limits.require("beams", 1 + request.alternatives, "alternatives")
    if request.format == "html" and request.alternatives:
        raise ApiError("alternatives: of HTML there is one translation", "alternatives")
    texts = [request.q] if isinstance(request.q, str) else request.q
    service.limits.require("inputs", len(texts), "q")
    if not any(texts):
        raise ApiError("q: there is no text", "q")
    detected = [
        (await _detections(service, text))[0]
        for text in (texts if request.source == "auto" else ())
    ]
    sources = [one.language for one in detected] or [request.source] * len(texts)
    parts = [_parts(text, request.format) for text in texts]
    if sum(map(len, parts)) > _MOST_LINES:
        raise ApiError(f"q: there are more than {_MOST_LINES:,} lines", "q")
    translated: list[list[str]] = []  # of each text: the translation, and the alternatives
    for source, part in zip(sources, parts, strict=True):
        name = _translator(service, Pair(source, request.target))
        engine = await service.engine(name)
        n_best = await _lines(engine, [one.text for one in part], 1 + request.alternatives, http)
        translated.append(
            ["".join(one.write(line[k]) for one, line in zip(part, n_best, strict=True))
             for k in range(1 + request.alternatives)]
        )  # fmt: skip
    answer: dict[str, list[Any]] = {"translatedText": [one[0] for one in translated]}
    if request.alternatives:
        answer["alternatives"] = [one[1:] for one in translated]
    if detected:
        answer["detectedLanguage"] = detected
    if isinstance(request.q, str):  # one text, no list of one
        return Translation(**{name: values[0] for name, values in answer.items()})
    return Translation.model_validate(answer)


def _translator(service: Service, pair: Pair) -> str:
    for name, other in service.languages.items():
        if pair == other:
            return name
    sources = {one.source for one in service.languages.values()}
    if not sources:
        raise _no_translator()
    field = "target" if pair.source in sources else "source"
    raise ApiError(f"{field}: {pair.source} to {pair.target} is not served: see /languages", field)


def _no_translator() -> ApiError:
    return ApiError(
        "no served model has a known pair of languages: serve it with --languages NAME=en-de",
        "source",
    )


async def _lines(
    engine: Engine, lines: Sequence[str], count: int, http: HttpRequest
) -> list[list[str]]:
    """The best translations of each line; of one without a word, the line itself."""
    model = engine.model
    require_writer(model)
    options: dict[str, Any] = {} if count == 1 else {"beam": max(4, count)}
    strategy = search(model, options, count)
    n_best = {i: [line] * count for i, line in enumerate(lines) if not line.strip()}
    rows = [i for i in range(len(lines)) if i not in n_best]
    readings = [await run_in_threadpool(read, engine, lines[i], "q", None) for i in rows]
    streams = []
    client = "" if http.client is None else http.client.host
    try:
        for reading in readings:
            one = generation(engine, reading, None, strategy)
            streams.append(engine.submit(replace(one, client=client)))

        async def results() -> list[Any]:
            return [await one.result() for one in streams]

        done = await unless_gone(http, streams, results())
    finally:
        cancel(streams)
    for i, result in zip(rows, done, strict=True):
        texts = [choice.text for choice in result.choices if reason(choice)]
        # A search over few tokens may end with fewer hypotheses than were asked for.
        n_best[i] = (texts * count)[:count]
    return [n_best[i] for i in range(len(lines))]


# ------------------------------------------------------------------ what stands around the text


@dataclass(frozen=True)
class Part:
    """A stretch of text that is translated by itself, and what stands before and behind it."""

    text: str
    before: str = ""
    after: str = ""
    is_markup: bool = False

    def write(self, translation: str) -> str:
        text = escape(translation, quote=False) if self.is_markup else translation
        return self.before + text + self.after


def _parts(text: str, form: str) -> list[Part]:
    if form == "html":
        markup = _Markup()
        markup.feed(text)
        markup.close()
        return [*markup.parts, Part("", before=markup.rest)]
    *lines, last = text.split("\n")
    return [*(Part(line, after="\n") for line in lines), Part(last)]


class _Markup(HTMLParser):
    """The texts of HTML, each with the markup before it as it was written."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[Part] = []
        self.rest = ""
        self.silent = 0

    def handle_data(self, data: str) -> None:
        text = data.strip()
        if self.silent or not text:
            self.rest += data if self.silent else escape(data, quote=False)
            return
        begin = data.index(text)
        before = self.rest + data[:begin]
        self.parts.append(Part(" ".join(text.split()), before, is_markup=True))
        self.rest = data[begin + len(text) :]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.silent += tag in _SILENT_TAGS
        self.rest += self.get_starttag_text() or ""

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.rest += self.get_starttag_text() or ""

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in _SILENT_TAGS and self.silent > 0
        self.rest += f"</{tag}>"

    def handle_comment(self, data: str) -> None:
        self.rest += f"<!--{data}-->"

    def handle_decl(self, decl: str) -> None:
        self.rest += f"<!{decl}>"


_POSTED: Any = {"forms": FORMS, "dialect": "libretranslate"}
ENDPOINTS = (
    Endpoint("/languages", languages, "Languages", Languages, **_POSTED),
    Endpoint("/translate", translate, "Translate", Translation, TranslateRequest, **_POSTED),
    Endpoint("/detect", detect, "Detect a language", Detections, DetectRequest, **_POSTED),
)
