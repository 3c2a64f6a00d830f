"""The HTTP server: who may ask and how much, and short answers to every failure."""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from regard.studio.model_store import ModelStore
from regard.studio.views import VIEWS, Packed
from regard.system.errors import RegardError, SettingError

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import MutableHeaders
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError:
    raise SettingError(
        "the studio needs starlette and uvicorn", "pip install 'regard[studio]'"
    ) from None

WEB = Path(__file__).parent / "web"
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
MAX_REQUEST_BYTES = 1 << 16
MAX_FILE_BYTES = 1 << 23  # of an uploaded image or recording
UPLOAD = "file"  # the endpoint for uploads
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
ANY_HOST = "*"
EVERY_ADDRESS = ("0.0.0.0", "::")  # binds to all addresses of the machine
HEADERS = {
    "content-security-policy": "default-src 'self'; media-src blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

# ------------------------------------------------------------------ security headers


class SecurityMiddleware:
    """Adds the security headers to every answer, and refuses a foreign Host or Origin.

    Without the check of the Host, a website could reach the studio by rebinding its DNS name.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app = app
        self.hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the lifespan of the application
            return await self.app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if not self._trusted(Request(scope)):
            refusal = error(
                403,
                "Refused",
                "the studio does not accept requests for this host",
                "open the address that `regard studio` printed",
            )
            return await refusal(scope, receive, send_with_headers)
        return await self.app(scope, receive, send_with_headers)

    def _trusted(self, request: Request) -> bool:
        host = request.headers.get("host", "")
        without_port = re.sub(r":\d+$", "", host.lower())
        if ANY_HOST not in self.hosts and without_port not in self.hosts:
            return False
        origin = request.headers.get("origin")
        return origin is None or origin == f"http://{host}"


# ------------------------------------------------------------------ endpoints


def error(status: int, kind: str, problem: str, repair: str) -> JSONResponse:
    return JSONResponse({"error": {"type": kind, "problem": problem, "repair": repair}}, status)


def application(store: ModelStore, token: str, hosts: Sequence[str] = LOCAL_HOSTS) -> ASGIApp:
    """The studio as an ASGI application."""
    # Read once when the studio starts: no path of a request reaches the disk.
    pages = {
        f"/{path.name}": path.read_bytes() for path in WEB.iterdir() if path.suffix in MEDIA_TYPES
    }

    async def page(request: Request) -> Response:
        path = request.url.path
        if path == "/":
            path = "/index.html"
        if path not in pages:
            return error(404, "NotFound", "page not found", "open /")
        media_type = MEDIA_TYPES[Path(path).suffix]
        return Response(pages[path], media_type=f"{media_type}; charset=utf-8")

    async def view(request: Request) -> Response:
        sent_token = request.headers.get("x-regard-token", "")
        # Compared in constant time, so that answers do not tell how much of a token is right.
        if not hmac.compare_digest(sent_token.encode(), token.encode()):
            return error(
                401,
                "Token",
                "the access key is missing or wrong",
                "open the address that `regard studio` printed",
            )
        name = request.path_params["view"]
        if name == UPLOAD:
            return await _upload(store, request)
        if name not in VIEWS:
            return error(404, "NotFound", "view not found", "reload the page")
        return await _view(store, name, request)

    def wrong_method(request: Request, exception: Exception) -> Response:
        return error(405, "Method", "method not allowed", "reload the page")

    routes = [
        Route("/api/{view}", view, methods=["POST"]),
        Route("/{page:path}", page, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={405: wrong_method})
    return SecurityMiddleware(app, hosts)


async def _upload(store: ModelStore, request: Request) -> Response:
    """Keeps a file; it is only opened when a model is shown it."""
    body = await _body(request, "file", MAX_FILE_BYTES)
    return body if isinstance(body, Response) else _response({"file": store.files.add(body)})


async def _view(store: ModelStore, name: str, request: Request) -> Response:
    """Validates the request of a view and runs the view in a thread."""
    schema, function = VIEWS[name]
    body = await _body(request, "text", MAX_REQUEST_BYTES)
    if isinstance(body, Response):
        return body
    try:
        question = schema.model_validate_json(body or b"{}")
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return error(422, "Request", f"{where}: {first['msg']}", "correct the request")
    try:
        # In a thread, so that the server answers others while a model runs.
        return _response(await run_in_threadpool(function, store, question))
    except RegardError as problem:
        return error(400, type(problem).__name__, problem.problem, problem.repair)
    except OSError as problem:  # a name that is too long, a link to itself
        return error(400, "DiskError", f"{problem.strerror}", "check the path and what it names")
    except Exception as problem:
        # The page never sees a traceback, and the next request is answered as usual.
        print(f"studio: {name}: {type(problem).__name__}: {problem}", file=sys.stderr)
        failure = f"{name} failed ({type(problem).__name__})"
        return error(500, "Unexpected", failure, "see the terminal for details")


async def _body(request: Request, what: str, most: int) -> bytes | Response:
    """The body of a request, or the refusal of one that is larger than `most` bytes."""
    # Counted while it comes in: a length that a header claims is not to be trusted.
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                problem = f"the {what} has more than {most:,} bytes"
                refusal = error(413, "TooLarge", problem, f"use a smaller {what}")
                # Or what is still sent would be read to its end.
                refusal.headers["connection"] = "close"
                return refusal
    except ClientDisconnect:
        return Response(status_code=400)  # nobody is left to read it
    return bytes(body)


def _response(answer: dict[str, Any] | Packed) -> Response:
    """JSON, or a packed answer in binary.

    Packed, there are four bytes with the length of the JSON header, the header padded with spaces,
    the bytes of the array, and shades as one byte each where there are any.
    """
    if not isinstance(answer, Packed):
        return Response(_json(answer), media_type="application/json")
    is_bytes = answer.values.dtype == np.uint8
    header = _json({**answer.header, "shape": answer.values.shape, "bytes": is_bytes})
    header += b" " * (-len(header) % 4)  # JavaScript reads float32 from multiples of four only
    values = np.ascontiguousarray(answer.values, dtype="u1" if is_bytes else "<f4").tobytes()
    content = len(header).to_bytes(4, "little") + header + values
    if answer.shades is not None:
        content += np.round(answer.shades * 255).astype("u1").tobytes()
    return Response(content, media_type="application/octet-stream")


def _json(value: dict[str, Any]) -> bytes:
    # NaN is no JSON: views turn it into null, and what they miss is an error here.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


# ------------------------------------------------------------------ running


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    # The name needs no look-up: it is of this machine by definition (RFC 6761).
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # the name of a machine
        return False


def _warn_of_network(port: int, token: str) -> None:
    print(
        f"warning: anyone who can reach port {port} can use this studio with the key\n"
        f"  {token}\n"
        "  → the connection is not encrypted. On a shared network, keep the default host and\n"
        f"    forward the port instead: ssh -L {port}:127.0.0.1:{port} THIS_MACHINE\n"
        "    Pages can open only the folders given here.",
        file=sys.stderr,
    )


def serve(store: ModelStore, host: str, port: int, browser: bool = False) -> None:
    """Prints the address, or opens it in a browser too, and answers requests until stopped."""
    # In the fragment of the address, which browsers send to no server.
    token = secrets.token_urlsafe(16)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off the delay of small packets (Nagle) only for sockets of this protocol; with
    # it, every answer would come 40 ms later.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        # A port can be used again right after the studio was stopped.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as problem:
            raise SettingError(
                f"cannot listen on {host}:{port}: {problem.strerror}", "choose another --port"
            ) from None
        bound = f"[{host}]" if ":" in host else host
        # Bound to every address of the machine, its names are unknown; the token still protects it.
        trusted = ANY_HOST if host in EVERY_ADDRESS else bound
        app = application(store, token, (*LOCAL_HOSTS, trusted))
        port = listener.getsockname()[1]
        # No browser can open 0.0.0.0 from another machine.
        url_host = socket.gethostname() if host in EVERY_ADDRESS else bound
        address = f"http://{url_host}:{port}/#token={token}"
        print(f"studio: {address}", flush=True)
        if not is_loopback(host):
            _warn_of_network(port, token)
        print("press Ctrl-C to stop", file=sys.stderr)
        # Where there is no screen, Python would start a browser in this terminal.
        has_screen = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}
        if browser and has_screen:
            listener.listen()  # its first request waits for the server
            webbrowser.open(address)
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])
