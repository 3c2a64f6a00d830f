"""The server as an ASGI application: its routes, the key, errors in the words of each client."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from regard.serve import (
    decisions,
    embeddings,
    libretranslate,
    service_routes,
    task_routes,
    text_routes,
    transcriptions,
)
from regard.serve.api import ApiError, Request, api_error
from regard.serve.bodies import KeyRequest, read_request
from regard.serve.service import IGNORED_HEADER, Call, Endpoint, Service
from regard.system.web_server import (
    KEY_IN_BODY,
    LOCAL_HOSTS,
    KeyMiddleware,
    SecurityMiddleware,
    same_key,
)

ROOMS: Any = (service_routes, text_routes, embeddings, decisions, transcriptions, libretranslate)
_OPEN = ("/health",)  # for load balancers, which have no key


def all_endpoints() -> tuple[Endpoint, ...]:
    """All routes, those of the table of tasks as it is now."""
    rooms = (one for room in ROOMS for one in room.ENDPOINTS)
    return (*rooms, *task_routes.task_endpoints())


def application(
    service: Service,
    hosts: Sequence[str] = LOCAL_HOSTS,
    origins: Sequence[str] = (),
    studio: ASGIApp | None = None,
) -> ASGIApp:
    """All routes, and the studio below `/studio/` where there is one."""
    endpoints = all_endpoints()
    routes: list[BaseRoute] = [
        Route(one.path, _route(service, one), methods=[one.method]) for one in endpoints
    ]
    if studio is not None:
        routes += [Mount("/studio", studio), Route("/", lambda _: RedirectResponse("/studio/"))]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_route})
    app.state.endpoints = endpoints
    guarded: ASGIApp = app
    if service.key is not None:
        in_body = {one.path for one in endpoints if one.dialect == "libretranslate"}
        guarded = KeyMiddleware(app, service.key, _wrong_key, _OPEN, in_body)
    return SecurityMiddleware(guarded, hosts, _foreign, origins=origins)


def _route(service: Service, endpoint: Endpoint) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def call(http: HttpRequest) -> Response:
        try:
            response = await _answer(service, endpoint, http)
        except ClientDisconnect:
            response = Response(status_code=400)  # nobody is left to read it
        except Exception as failure:
            error = api_error(failure)
            if error.status >= 500:
                # Where it failed, and not on what: what people send stands in no log.
                place = "".join(traceback.format_tb(failure.__traceback__))
                name = type(failure).__name__
                print(f"serve: {endpoint.path}: {name}\n{place}", file=sys.stderr)
            response = _error_response(error, endpoint.dialect)
        service.answers[endpoint.path, response.status_code] += 1
        return response

    return call


async def _answer(service: Service, endpoint: Endpoint, http: HttpRequest) -> Response:
    request = await read_request(endpoint, service.limits, http)
    if http.scope.get(KEY_IN_BODY):
        sent = request.api_key if isinstance(request, KeyRequest) else None
        if service.key is None or sent is None or not same_key(sent, service.key):
            return _wrong_key()
    call = Call(service, request, http)
    if isinstance(request, Request):
        call.name = service.name(request.model)
        call.engine = await service.engine(call.name)
    answer = await endpoint.handler(call)
    if isinstance(answer, Response):
        response = answer
    else:
        # LibreTranslate leaves out what was not asked for; OpenAI says null.
        content = answer.model_dump_json(exclude_none=endpoint.dialect == "libretranslate")
        response = Response(content, media_type="application/json")
    if isinstance(request, Request) and (ignored := ", ".join(request.ignored)):
        response.headers[IGNORED_HEADER] = ignored
    return response


def _error_response(error: ApiError, dialect: str = "openai") -> Response:
    body = {"error": error.message} if dialect == "libretranslate" else error.body()
    return JSONResponse(body, error.status, headers=dict(error.headers or {}))


def _no_route(http: HttpRequest, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    message = {
        404: f"there is no {http.url.path} here; /openapi.json lists what there is",
        405: f"{http.method} is not allowed here",
    }.get(failure.status_code, failure.detail)
    return _error_response(ApiError(message, status=failure.status_code, headers=failure.headers))


def _foreign(header: str) -> Response:
    repair = {
        "Host": "ask by the address that `regard serve` printed",
        "Origin": "start `regard serve` with --allow-origin for this page",
    }[header]
    return _error_response(ApiError(f"{header} is not allowed: {repair}", status=403))


def _wrong_key() -> Response:
    error = ApiError(
        "the key of this server is missing or wrong: send it as `Authorization: Bearer KEY`",
        status=401,
        code="invalid_api_key",
        headers={"www-authenticate": 'Basic realm="regard"'},
    )
    return _error_response(error)
