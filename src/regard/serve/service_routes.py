"""What is asked of the server itself: its models, its health, its counters, its description."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from regard import __version__
from regard.serve.api import ApiModel
from regard.serve.openai_schema import ModelCard, ModelList
from regard.serve.service import Endpoint, Service


class Health(ApiModel):
    status: str


async def models(service: Service, request: None, http: HttpRequest) -> ModelList:
    """The served models."""
    return ModelList(data=[_card(service, name) for name in service.models.names()])


async def model(service: Service, request: None, http: HttpRequest) -> ModelCard:
    """One served model."""
    name = http.path_params["model"]
    service.require_model(name)
    return _card(service, name)


def _card(service: Service, name: str) -> ModelCard:
    pair = service.languages.get(name)
    languages = {} if pair is None else {"source": pair.source, "target": pair.target}
    entry = service.models.describe(name)
    description = {**asdict(entry), "languages": languages}
    return ModelCard(id=name, created=int(entry.created), description=description)


async def health(service: Service, request: None, http: HttpRequest) -> Response:
    """Whether the server takes up requests: 503 while it is shutting down."""
    if service.draining:
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ok"})


async def metrics(service: Service, request: None, http: HttpRequest) -> Response:
    """Counters, in the text format of Prometheus."""
    lines = ["# TYPE regard_http_responses_total counter"]
    for (path, status), count in sorted(service.answers.items()):
        lines.append(f'regard_http_responses_total{{path="{path}",status="{status}"}} {count}')
    gauges = ("waiting", "running", "rows")
    values: dict[str, list[str]] = {}
    for name, engine in service.models.engines().items():
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


async def description(service: Service, request: None, http: HttpRequest) -> Response:
    """This server as an OpenAPI document."""
    return JSONResponse(openapi_document(http.app.state.endpoints, service.key is not None))


# ------------------------------------------------------------------ the OpenAPI document


def openapi_document(endpoints: tuple[Endpoint, ...], has_key: bool) -> dict[str, Any]:
    """The document, made of the types of requests and answers."""
    kinds: list[Any] = [(one.request, "validation") for one in endpoints if one.request]
    for one in endpoints:
        kinds += [(answer, "serialization") for answer in one.answers]
    names, definitions = models_json_schema(
        list(dict.fromkeys(kinds)), ref_template="#/components/schemas/{model}"
    )
    schemas = definitions.get("$defs", {}) | {"Error": _ERROR, "LibreTranslateError": _SHORT_ERROR}
    paths: dict[str, Any] = {}
    for one in endpoints:
        path = _PARAMETER.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, names)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "regard serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if has_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")  # of a path, as starlette writes it
_TEXT: dict[str, Any] = {"type": "string"}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": _TEXT_OR_NULL,
                "code": _TEXT_OR_NULL,
            },
        }
    },
}
_SHORT_ERROR = {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
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


def _operation(endpoint: Endpoint, names: Any) -> dict[str, Any]:
    answers = [names[one, "serialization"] for one in endpoint.answers]
    content: dict[str, Any] = {}
    if answers:
        content["application/json"] = {
            "schema": answers[0] if len(answers) == 1 else {"anyOf": answers}
        }
    for form in endpoint.other_forms:
        content[form] = {"schema": _TEXT}
    name = "LibreTranslateError" if endpoint.dialect == "libretranslate" else "Error"
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    failures = {code: {"description": text, "content": error} for code, text in _FAILURES.items()}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
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


_ANY_TEXT = ("text/plain",)
ENDPOINTS = (
    Endpoint("/v1/models", models, "List the models", ModelList),
    Endpoint("/v1/models/{model:path}", model, "Describe a model", ModelCard),
    Endpoint("/health", health, "Whether requests are taken up", Health, dialect="libretranslate"),
    Endpoint(
        "/metrics", metrics, "Counters for Prometheus", other_forms=_ANY_TEXT, dialect="regard"
    ),
    Endpoint("/openapi.json", description, "This document", dialect="regard"),
)
