"""An HTTP server for one machine or a trusted network: its address, and who may reach it."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from regard.system.errors import SettingError

try:
    import python_multipart  # noqa: F401  (starlette reads forms with it, and asks for it only then)
    from starlette.datastructures import MutableHeaders
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError:
    raise SettingError(
        "pages and programs are served by starlette, uvicorn and python-multipart",
        "pip install 'regard[serve]'",
    ) from None

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
ANY_HOST = "*"
EVERY_ADDRESS = ("0.0.0.0", "::")  # binds to all addresses of the machine
NO_PEEKING = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
}


class SecurityMiddleware:
    """Adds the security headers to every answer, and refuses a foreign Host or Origin.

    Without the check of the Host, a website could reach the server by rebinding its DNS name.
    Pages of the `origins` may read the answers, beside those of the server itself.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        refuse: Callable[[str], Response],
        headers: Mapping[str, str] = NO_PEEKING,
        origins: Collection[str] = (),
    ) -> None:
        self.app = app
        self.hosts = {host.lower() for host in hosts}
        self.refuse = refuse  # called with `Host` or `Origin`
        self.headers = headers
        self.origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the lifespan of the application
            return await self.app(scope, receive, send)
        request = Request(scope)
        origin = request.headers.get("origin", "")
        shared = origin in self.origins
        headers = dict(self.headers)
        if shared:
            headers |= {"access-control-allow-origin": origin, "vary": "Origin"}
            headers["access-control-expose-headers"] = "retry-after, x-regard-ignored"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in headers.items():
                    answer.setdefault(name, value)
            await send(message)

        app = self.app
        host = request.headers.get("host", "")
        without_port = re.sub(r":\d+$", "", host.lower())
        if ANY_HOST not in self.hosts and without_port not in self.hosts:
            app = self.refuse("Host")
        elif origin and not shared and origin != f"{scope['scheme']}://{host}":
            app = self.refuse("Origin")
        elif shared and request.method == "OPTIONS":
            app = Response(status_code=204, headers=_PREFLIGHT)
        return await app(scope, receive, send_with_headers)


KEY_IN_BODY = "regard.key_in_body"  # of a scope: whether its key is still to be looked for


class KeyMiddleware:
    """Asks for a key on all paths but those that are `open`.

    It comes as a bearer token or, from a browser, as the password of HTTP's own dialog. Where a key
    may come `in_body`, and there is none in the header, the scope says so to who reads the body.
    """

    def __init__(
        self,
        app: ASGIApp,
        key: str,
        refuse: Callable[[], Response],
        open_paths: Collection[str] = (),
        in_body: Collection[str] = (),
    ) -> None:
        self.app = app
        self.key = key
        self.refuse = refuse
        self.open_paths = open_paths
        self.in_body = in_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and scope["path"] not in self.open_paths:
            sent = _sent_key(Request(scope).headers.get("authorization", ""))
            if sent is None and scope["path"] in self.in_body:
                scope[KEY_IN_BODY] = True
            elif sent is None or not same_key(sent, self.key):
                app = self.refuse()
        return await app(scope, receive, send)


def _sent_key(header: str) -> str | None:
    scheme, _, value = header.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            try:
                return base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return None
        case _:
            return None


def same_key(sent: str, key: str) -> bool:
    """Whether a key is right, in constant time: answers do not tell how much of it is right."""
    return hmac.compare_digest(sent.encode("utf-8", "replace"), key.encode())


async def limited_body(request: Request, most: int) -> bytes | None:
    """The body of a request; None where it has more than `most` bytes.

    Raises starlette's `ClientDisconnect` where its sender goes before the end.
    """
    # Counted while it comes in: a length that a header claims is not to be trusted.
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)


# ------------------------------------------------------------------ addresses


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    # The name needs no look-up: it is of this machine by definition (RFC 6761).
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # the name of a machine
        return False


def trusted_hosts(host: str) -> tuple[str, ...]:
    """The names by which a server may be asked that is bound to an address."""
    # Bound to every address of the machine, its names are unknown; a key still protects it.
    return (*LOCAL_HOSTS, ANY_HOST if host in EVERY_ADDRESS else _in_url(host))


def base_url(host: str, port: int) -> str:
    """The URL of a server, without a slash at its end."""
    # No browser can open 0.0.0.0 from another machine.
    name = socket.gethostname() if host in EVERY_ADDRESS else _in_url(host)
    return f"http://{name}:{port}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound to an address; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off the delay of small packets (Nagle) only for sockets of this protocol; with
    # it, every answer would come 40 ms later.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        # A port can be used again right after the server was stopped.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as problem:
            raise SettingError(
                f"cannot listen on {host}:{port}: {problem.strerror}", "choose another --port"
            ) from None
        yield listener
