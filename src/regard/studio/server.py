"""The door: who may ask, how much, and that every failure is a short answer which harms no other request."""

from __future__ import annotations

import hmac
import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from regard.errors import RegardError, SettingError
from regard.studio.model_store import Shelf
from regard.studio.views import VIEWS, Packed

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError:
    raise SettingError(
        "the studio needs starlette and uvicorn", "pip install 'regard[studio]'"
    ) from None

WEB = Path(__file__).parent / "web"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
LARGEST = 1 << 16  # bytes of a request
LARGEST_FILE = 1 << 23  # bytes of a picture or a recording
FILE = "file"
LOCAL = ("127.0.0.1", "localhost", "[::1]")
ANY = "*"
HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Every answer carries the headers; a foreign Host or Origin gets nothing else."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [
                    (name, value)
                    for name, value in message["headers"]
                    if name.decode() not in HEADERS
                ]
                message["headers"] = [*own, *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        request = Request(scope)
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        known = ANY in self.hosts or _name(host) in self.hosts
        if not known or (origin is not None and origin != f"http://{host}"):
            refused = error(
                403,
                "Refused",
                "this address is not the studio's",
                "open the address that it printed",
            )
            return await refused(scope, receive, dressed)
        return await self.app(scope, receive, dressed)


def _name(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def error(status: int, kind: str, problem: str, repair: str) -> JSONResponse:
    return JSONResponse({"error": {"type": kind, "problem": problem, "repair": repair}}, status)


def application(shelf: Shelf, token: str, hosts: Sequence[str] = LOCAL) -> ASGIApp:
    """The whole studio as an ASGI application."""
    pages = {f"/{path.name}": path.read_bytes() for path in WEB.iterdir() if path.suffix in KINDS}

    async def page(request: Request) -> Response:
        """The files of the page, read once when the studio starts: no path of a request reaches the disk."""
        name = "/index.html" if request.url.path == "/" else request.url.path
        if name not in pages:
            return error(404, "NotFound", "there is no such page", "go back to /")
        return Response(pages[name], media_type=f"{KINDS[Path(name).suffix]}; charset=utf-8")

    async def view(request: Request) -> Response:
        if not hmac.compare_digest(
            request.headers.get("x-regard-token", "").encode(), token.encode()
        ):
            return error(
                401,
                "Token",
                "this page was not opened by its address",
                "open the address that it printed",
            )
        name = request.path_params["view"]
        if name not in VIEWS and name != FILE:
            return error(404, "NotFound", "there is no such view", "reload the page")
        most = LARGEST_FILE if name == FILE else LARGEST
        body = await _body(request, most)
        if body is None:
            what = "file" if name == FILE else "text"
            return error(
                413, "TooLarge", f"a {what} may have {most:,} bytes here", f"give a shorter {what}"
            )
        if name == FILE:  # nothing is opened yet; a model reads it when it is shown
            return _answered({"file": shelf.files.add(body)})
        asked, answer = VIEWS[name]
        try:
            ask = asked.model_validate_json(body or b"{}")
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return error(422, "Request", f"{where}: {first['msg']}", "correct it")
        try:
            found = await run_in_threadpool(answer, shelf, ask)
            return _answered(found)
        except RegardError as problem:
            return error(400, type(problem).__name__, problem.problem, problem.repair)
        except (
            Exception
        ) as problem:  # the page never sees a traceback, and the next request is answered as ever
            print(f"studio: {name}: {type(problem).__name__}: {problem}", file=sys.stderr)
            return error(
                500,
                "Unexpected",
                f"{name} failed ({type(problem).__name__})",
                "the terminal says more",
            )

    inner = Starlette(
        routes=[
            Route("/api/{view}", view, methods=["POST"]),
            Route("/{page:path}", page, methods=["GET"]),
        ],
        exception_handlers={
            405: lambda request, problem: error(405, "Method", "ask otherwise", "reload the page")
        },
    )
    return Guard(inner, hosts)


async def _body(request: Request, most: int) -> bytes | None:
    """What came, if it is not too much."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > most:
            return None
    return bytes(found)


def _answered(answer: dict[str, Any] | Packed) -> Response:
    """JSON; or, packed, four bytes with the length of the JSON, the JSON filled up with spaces, and the array's bytes."""
    if not isinstance(answer, Packed):
        return Response(_json(answer), media_type="application/json")
    small = answer.values.dtype == np.uint8
    said = _json({**answer.said, "shape": answer.values.shape, "bytes": small})
    said += b" " * (-len(said) % 4)  # numbers of four bytes begin at a multiple of four
    values = np.ascontiguousarray(answer.values, dtype="u1" if small else "<f4").tobytes()
    return Response(
        len(said).to_bytes(4, "little") + said + values, media_type="application/octet-stream"
    )


def _json(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def serve(shelf: Shelf, host: str, port: int) -> None:
    """Prints the address and answers until it is stopped."""
    import socket

    token = secrets.token_urlsafe(16)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((host, port))
        except OSError as problem:
            raise SettingError(
                f"{host}:{port} cannot be used: {problem.strerror}", "choose another --port"
            ) from None
        shown = f"[{host}]" if ":" in host else host
        # Bound to every address of the machine, its names cannot be known; the token still keeps others out.
        names = (*LOCAL, ANY if host in ("0.0.0.0", "::") else shown)
        print(f"studio: http://{shown}:{door.getsockname()[1]}/#token={token}", flush=True)
        print("stop it with Ctrl-C", file=sys.stderr)
        config = uvicorn.Config(
            application(shelf, token, names), log_level="warning", access_log=False
        )
        uvicorn.Server(config).run(sockets=[door])
