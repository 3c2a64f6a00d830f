"""LibreTranslate's routes, for the plugins that speak them: translate, detect, languages.

A text is translated line by line, as `regard translate` does; empty lines stay empty. Of HTML, the
text between two tags is one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, RootModel
from starlette.concurrency import run_in_threadpool

from regard.data.text.markup import parts_of_html, parts_of_lines
from regard.serve.api import ApiError, ApiModel
from regard.serve.bodies import KeyRequest
from regard.serve.completions import reason
from regard.serve.generation import generation, read, require_writer, search
from regard.serve.requests import Text
from regard.serve.schema import Code
from regard.serve.service import Call, Endpoint
from regard.training.translation_languages import Pair, known_share, language_name

if TYPE_CHECKING:
    from regard.serve.engine import Engine

FORMS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
_SURE = 100.0  # LibreTranslate's confidence is in percent
_MOST_LINES = 1024


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


async def languages(call: Call) -> Languages:
    """The source languages of the served translators, each with its targets."""
    targets: dict[str, set[str]] = {}
    for pair in call.service.languages.values():
        targets.setdefault(pair.source, set()).add(pair.target)
    return Languages(
        [
            Language(code=code, name=language_name(code), targets=sorted(targets[code]))
            for code in sorted(targets)
        ]
    )


async def detect(call: Call) -> Detections:
    """The source languages of the served translators, the one whose words a text has first."""
    if not call.request.q.strip():
        raise ApiError("q: the text is empty", "q")
    return Detections(await _detections(call, call.request.q))


async def _detections(call: Call, text: str) -> list[Detected]:
    shares: dict[str, float] = {}
    for name, pair in call.service.languages.items():
        engine = await call.service.engine(name)
        share = await run_in_threadpool(known_share, engine.model, text)
        shares[pair.source] = max(share, shares.get(pair.source, 0.0))
    if not shares:
        raise _no_translator()
    detections = [
        Detected(confidence=_SURE * share, language=code) for code, share in shares.items()
    ]
    return sorted(detections, key=lambda one: -one.confidence)


async def translate(call: Call) -> Translation:
    """Translates a text, or several, as plain text or as HTML."""
    request: TranslateRequest = call.request
    count = 1 + request.alternatives
    call.limits.require("beams", count, "alternatives")
    if request.format == "html" and request.alternatives:
        raise ApiError("alternatives: of HTML there is one translation", "alternatives")
    texts = [request.q] if isinstance(request.q, str) else request.q
    call.limits.require("inputs", len(texts), "q")
    if not any(texts):
        raise ApiError("q: there is no text", "q")
    detected = [
        (await _detections(call, text))[0] for text in (texts if request.source == "auto" else ())
    ]
    sources = [one.language for one in detected] or [request.source] * len(texts)
    in_parts = parts_of_html if request.format == "html" else parts_of_lines
    parts = [in_parts(text) for text in texts]
    if sum(map(len, parts)) > _MOST_LINES:
        raise ApiError(f"q: there are more than {_MOST_LINES:,} lines", "q")
    translated: list[list[str]] = []  # of each text: the translation, and the alternatives
    for source, part in zip(sources, parts, strict=True):
        engine = await call.service.engine(_translator(call, Pair(source, request.target)))
        n_best = await _lines(call, engine, [one.text for one in part], count)
        pairs = [*zip(part, n_best, strict=True)]
        translated.append(
            ["".join(one.write(lines[k]) for one, lines in pairs) for k in range(count)]
        )
    answer: dict[str, list[Any]] = {"translatedText": [one[0] for one in translated]}
    if request.alternatives:
        answer["alternatives"] = [one[1:] for one in translated]
    if detected:
        answer["detectedLanguage"] = detected
    if isinstance(request.q, str):  # one text, no list of one
        return Translation(**{name: values[0] for name, values in answer.items()})
    return Translation.model_validate(answer)


def _translator(call: Call, pair: Pair) -> str:
    for name, other in call.service.languages.items():
        if pair == other:
            return name
    sources = {one.source for one in call.service.languages.values()}
    if not sources:
        raise _no_translator()
    field = "target" if pair.source in sources else "source"
    raise ApiError(f"{field}: {pair.source} to {pair.target} is not served: see /languages", field)


def _no_translator() -> ApiError:
    return ApiError(
        "no served model has a known pair of languages: serve it with --languages NAME=en-de",
        "source",
    )


async def _lines(call: Call, engine: Engine, lines: Sequence[str], count: int) -> list[list[str]]:
    """The best translations of each line; of one without a word, the line itself."""
    require_writer(engine.model)
    options: dict[str, Any] = {} if count == 1 else {"beam": max(4, count)}
    strategy = search(engine.model, options, count)
    rows = [i for i, line in enumerate(lines) if line.strip()]
    readings = [await run_in_threadpool(read, engine, lines[i], "q") for i in rows]
    generations = [generation(engine, one, None, strategy) for one in readings]
    results = await call.results(call.submit(generations, engine))
    n_best = [[line] * count for line in lines]
    for i, result in zip(rows, results, strict=True):
        texts = [choice.text for choice in result.choices if reason(choice)]
        # A search over few tokens may end with fewer hypotheses than were asked for.
        n_best[i] = (texts * count)[:count]
    return n_best


_POSTED: Any = {"forms": FORMS, "dialect": "libretranslate"}
ENDPOINTS = (
    Endpoint("/languages", languages, Languages, **_POSTED),
    Endpoint("/translate", translate, Translation, TranslateRequest, **_POSTED),
    Endpoint("/detect", detect, Detections, DetectRequest, **_POSTED),
)
