"""What is asked of the server itself: its models, its health, its counters, its description."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict
from functools import cache
from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse, PlainTextResponse, Response

from regard import __version__
from regard.serve.api import ApiModel
from regard.serve.service import EVENT_STREAM, Call, Endpoint, Service


class Health(ApiModel):
    status: str


class ModelCard(ApiModel):
    """A served model. What stands in `description` is this server's own."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "regard"
    description: dict[str, Any] = Field(default_factory=dict)


class ModelList(ApiModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


async def models(call: Call) -> ModelList:
    """The served models."""
    return ModelList(data=[_card(call.service, name) for name in call.service.models.names()])


async def model(call: Call) -> ModelCard:
    """One served model."""
    name = call.http.path_params["model"]
    call.service.require_model(name)
    return _card(call.service, name)


def _card(service: Service, name: str) -> ModelCard:
    pair = service.languages.get(name)
    languages = {} if pair is None else asdict(pair)
    entry = service.models.describe(name)
    description = {**asdict(entry), "languages": languages}
    return ModelCard(id=name, created=int(entry.created), description=description)


async def health(call: Call) -> Response:
    """Whether the server takes up requests: 503 while it is shutting down."""
    if call.service.draining:
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ok"})


async def metrics(call: Call) -> Response:
    """Counters, in the text format of Prometheus."""
    lines = ["# TYPE regard_http_responses_total counter"]
    for (path, status), count in sorted(call.service.answers.items()):
        lines.append(f'regard_http_responses_total{{path="{path}",status="{status}"}} {count}')
    gauges = ("waiting", "running", "rows")
    values: dict[str, list[str]] = {}
    for name, engine in call.service.models.engines().items():
        label = name.translate(_ESCAPES)
        for field, value in asdict(engine.metrics()).items():
            full = f"regard_engine_{field}" if field in gauges else f"regard_engine_{field}_total"
            values.setdefault(full, []).append(f'{full}{{model="{label}"}} {value:g}')
    for full, rows in values.items():
        kind = "counter" if full.endswith("_total") else "gauge"
        lines += [f"# TYPE {full} {kind}", *rows]
    return PlainTextResponse("\n".join(lines) + "\n", media_type=_PROMETHEUS)


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_PROMETHEUS = "text/plain; version=0.0.4"


async def description(call: Call) -> Response:
    """This server as an OpenAPI document."""
    endpoints = call.http.app.state.endpoints
    return JSONResponse(openapi_document(endpoints, call.service.key is not None))


# ------------------------------------------------------------------ the OpenAPI document


@cache
def openapi_document(endpoints: tuple[Endpoint, ...], has_key: bool) -> dict[str, Any]:
    """The document, made of the types of requests and answers."""
    kinds: list[Any] = [(one.request, "validation") for one in endpoints if one.request]
    for one in endpoints:
        kinds += [(answer, "serialization") for answer in (*one.answers, _error_of(one))]
    names, definitions = models_json_schema(
        list(dict.fromkeys(kinds)), ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for one in endpoints:
        path = _PARAMETER.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, names)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "regard serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {})},
    }
    if has_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")  # of a path, as starlette writes it
_TEXT = {"type": "string"}
_EVENT = {"type": "object", "required": ["data"], "properties": {"data": _TEXT}}


class ErrorFields(ApiModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(ApiModel):
    error: ErrorFields


class LibreTranslateError(ApiModel):
    error: str


_ERRORS = {"libretranslate": LibreTranslateError}
_FAILURES = {
    "400": "a mistake in the request",
    "401": "the key is missing or wrong",
    "404": "there is no such model",
    "413": "the body is too large",
    "415": "the body is of another type",
    "429": "too many requests wait: try again after Retry-After seconds",
    "500": "the server failed",
    "503": "the server is shutting down",
    "504": "the request took too long",
}


def _error_of(endpoint: Endpoint) -> type[ApiModel]:
    return _ERRORS.get(endpoint.dialect, Error)


def _operation(endpoint: Endpoint, names: Any) -> dict[str, Any]:
    answers = [names[one, "serialization"] for one in endpoint.answers]
    content: dict[str, Any] = {}
    if answers:
        content["application/json"] = {
            "schema": answers[0] if len(answers) == 1 else {"anyOf": answers}
        }
    for form in endpoint.other_forms:
        content[form] = {"schema": _EVENT if form == EVENT_STREAM else _TEXT}
    error = {"application/json": {"schema": names[_error_of(endpoint), "serialization"]}}
    failures = {code: {"description": text, "content": error} for code, text in _FAILURES.items()}
    operation: dict[str, Any] = {
        "summary": endpoint.summary or inspect.getdoc(endpoint.handler),
        "tags": [endpoint.dialect],
        "operationId": _PARAMETER.sub(r"one", endpoint.path).strip("/").replace("/", "_"),
        "responses": {"200": {"description": "the answer", "content": content}, **failures},
    }
    if endpoint.request is not None:
        body = {"schema": names[endpoint.request, "validation"]}
        content = dict.fromkeys(endpoint.forms, body)
        operation["requestBody"] = {"required": True, "content": content}
    operation["parameters"] = [
        {"name": one, "in": "path", "required": True, "schema": _TEXT}
        for one in _PARAMETER.findall(endpoint.path)
    ]
    return operation


ENDPOINTS = (
    Endpoint("/v1/models", models, ModelList),
    Endpoint("/v1/models/{model:path}", model, ModelCard),
    Endpoint("/health", health, Health, dialect="libretranslate"),
    Endpoint("/metrics", metrics, other_forms=("text/plain",), dialect="regard"),
    Endpoint("/openapi.json", description, dialect="regard"),
)
