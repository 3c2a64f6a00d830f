"""The HTTP server: who may ask and how much, and short answers to every failure."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import secrets
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from regard.studio.model_store import ModelStore
from regard.studio.views import VIEWS, Packed
from regard.system.errors import RegardError
from regard.system.web_server import (
    LOCAL_HOSTS,
    NO_PEEKING,
    SecurityMiddleware,
    base_url,
    bound_socket,
    is_loopback,
    limited_body,
    same_key,
    trusted_hosts,
)

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
HEADERS = NO_PEEKING | {
    # A figure becomes a PNG by way of an image in memory.
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; media-src blob:; "
    "object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
}

# ------------------------------------------------------------------ endpoints


def error(status: int, kind: str, problem: str, repair: str) -> JSONResponse:
    return JSONResponse({"error": {"type": kind, "problem": problem, "repair": repair}}, status)


@dataclass(frozen=True)
class StaticFile:
    """A file of the pages, plain and compressed; browsers keep it while its hash is the same."""

    content: bytes
    compressed: bytes
    etag: str
    media_type: str

    @classmethod
    def read(cls, path: Path) -> StaticFile:
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        media_type = f"{MEDIA_TYPES[path.suffix]}; charset=utf-8"
        return cls(content, gzip.compress(content, mtime=0), etag, media_type)

    def response(self, request: Request) -> Response:
        headers = {"etag": self.etag, "cache-control": "no-cache", "vary": "Accept-Encoding"}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(self.compressed, headers=headers, media_type=self.media_type)
        return Response(self.content, headers=headers, media_type=self.media_type)


def application(store: ModelStore, token: str, hosts: Sequence[str] = LOCAL_HOSTS) -> ASGIApp:
    """The studio as an ASGI application."""
    # Read once when the studio starts: no path of a request reaches the disk.
    files = [path for path in WEB.iterdir() if path.suffix in MEDIA_TYPES]
    pages = {path.name: StaticFile.read(path) for path in files}

    async def page(request: Request) -> Response:
        path = request.path_params["page"] or "index.html"
        if path not in pages:
            return error(404, "NotFound", "page not found", "open /")
        return pages[path].response(request)

    async def view(request: Request) -> Response:
        sent_token = request.headers.get("x-regard-token", "")
        if not same_key(sent_token, token):
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
    return SecurityMiddleware(app, hosts, _refuse, HEADERS)


def _refuse(header: str) -> Response:
    problem = "the studio does not accept requests for this host"
    return error(403, "Refused", problem, "open the address that `regard studio` printed")


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
    try:
        body = await limited_body(request, most)
    except ClientDisconnect:
        return Response(status_code=400)  # nobody is left to read it
    if body is None:
        problem = f"the {what} has more than {most:,} bytes"
        refusal = error(413, "TooLarge", problem, f"use a smaller {what}")
        # Or what is still sent would be read to its end.
        refusal.headers["connection"] = "close"
        return refusal
    return body


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
    with bound_socket(host, port) as listener:
        app = application(store, token, trusted_hosts(host))
        port = listener.getsockname()[1]
        address = f"{base_url(host, port)}/#token={token}"
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
