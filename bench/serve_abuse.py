"""What a server does with what it should not be sent: it refuses, forgets, and goes on.

    python bench/serve_abuse.py                    # 1,000 of each kind for every route
    python bench/serve_abuse.py --count 50 --only /v1/completions

The server is a process of its own with nine small models. A malformed request (no JSON, no such
field, another type …) must be a 4xx, an extreme one (huge, tiny, deep, long) a 200 or a 4xx; an
ordinary one in between is answered as ever. Then come slow clients, huge bodies and clients that
go: nothing may be left running, and memory may not grow. The exit code is 1 where that fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

CAT = "The cat sat on the mat."
SECONDS = 30.0  # after which an answer counts as a hang
MOST_GROWTH = 50.0  # MiB
CONTROL_EVERY = 100
BODY_SECONDS = 1.0
JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data; boundary=part"
# Who answers on each route; a classifier refuses the others.
MODELS = {
    "/v1/completions": "gpt2",
    "/v1/chat/completions": "gpt2",
    "/v1/generate": "gpt2",
    "/v1/embeddings": "embedder",
    "/v1/embed": "embedder",
    "/v1/audio/transcriptions": "wav2vec2",
    "/v1/transcribe": "wav2vec2",
    "/v1/tag": "tagger",
    "/v1/entities": "tagger",
    "/v1/forecast": "patchtst",
    "/v1/translate": "demo",
}
EXTREMES: list[Any] = [
    *(0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**400, 1e308, -1e308, 5e-324, -0.0, 0.5),
    *("", "\0", "a" * 100_000, "\U0001f600" * 2000, "\ufdfd\u202e", "\n" * 5000, "{{7*7}}"),
    *([], {}, [[]], [""], [0], [-1], [2**40], [1] * 20_000, ["a"] * 5000, {"a": {"b": []}}),
    *(None, True, False),
]


@dataclass(frozen=True)
class Route:
    """A route, and the fields that its requests have."""

    method: str
    path: str
    fields: tuple[str, ...]
    is_form: bool

    @property
    def right(self) -> dict[str, Any]:
        """A request that is in order."""
        values: dict[str, Any] = {
            "model": MODELS.get(self.path, "classifier"),
            "prompt": CAT,
            "input": CAT,
            "q": CAT,
            "source": "en",
            "target": "de",
            "messages": [{"role": "user", "content": CAT}],
            "questions": [{"type": "predicate", "name": "good", "instructions": "a"}],
        }
        return {name: value for name, value in values.items() if name in self.fields}


def routes() -> list[Route]:
    from regard.serve.application import all_endpoints

    return [
        Route(
            one.method,
            one.path.replace("{model:path}", "demo"),
            () if one.request is None else tuple(one.request.model_fields),
            "application/json" not in one.forms,
        )
        for one in all_endpoints()
    ]


# ------------------------------------------------------------------ requests

# Method, path, type of content, content.
Sent = tuple[str, str, str, bytes]


def malformed(route: Route, draw: random.Random) -> Sent:
    """A request that is none."""
    if not route.fields:
        method = draw.choice(("PUT", "DELETE", "PATCH", "POST"))
        return method, route.path, JSON_TYPE, draw.randbytes(draw.randrange(200))
    values = route.right
    whole = json.dumps(values).encode()
    required = [name for name in values if name not in ("model",)]
    name = draw.choice(required or ["file"])
    kind = FORM_TYPE if route.is_form else JSON_TYPE
    match draw.randrange(9):
        case 0:
            content = whole[: draw.randrange(len(whole))]
        case 1:
            content = draw.randbytes(draw.randrange(1, 2000))
        case 2:
            content = draw.choice((b"[]", b"3", b'"a"', b"null", b"true", b"\xff\xfe\x00"))
        case 3:
            content = b"[" * draw.randrange(1, 100_000)
        case 4:
            content = json.dumps({one: values[one] for one in values if one != name}).encode()
            content = b"{}" if route.is_form else content
        case 5:
            content = json.dumps({**values, f"field{draw.randrange(99)}": 1}).encode()
        case 6:
            wrong = draw.choice((3, None, True, {"a": 1}, [[["a"]]], 1.5))
            content = json.dumps({**values, name: wrong}).encode()
        case 7:
            number = draw.choice(("NaN", "Infinity", "-Infinity", "1e999", "0x10", "01"))
            content = json.dumps({**values, name: 0}).replace(": 0", f": {number}").encode()
        case _:
            content = whole
            kind = draw.choice(("text/plain", "", "application/xml", "image/png"))
    return route.method, route.path, kind, content


def extreme(route: Route, draw: random.Random) -> Sent:
    """A request whose form is right, and one or two of its values are not of this world."""
    if not route.fields:
        text = draw.choice(("a" * draw.randrange(4000), "%00", "%F0%9F%98%80" * 9, "..%2f" * 9))
        path = f"{route.path}?q={text}"
        if "models/" in route.path:
            path = f"/v1/models/{text or 'x'}"
        return route.method, path, JSON_TYPE, b""
    names = draw.sample(route.fields, min(len(route.fields), draw.randrange(1, 3)))
    values = route.right | {name: draw.choice(EXTREMES) for name in names}
    if not route.is_form:
        return route.method, route.path, JSON_TYPE, json.dumps(values).encode()
    values.setdefault("file", "RIFF" + "\0" * draw.randrange(3000))
    parts = [
        f'--part\r\ncontent-disposition: form-data; name="{name}"'
        + ('; filename="a.wav"' if name == "file" else "")
        + f"\r\n\r\n{value}\r\n"
        for name, value in values.items()
    ]
    return route.method, route.path, FORM_TYPE, ("".join(parts) + "--part--\r\n").encode()


# ------------------------------------------------------------------ what comes of it


@dataclass
class Row:
    """What a route has answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    hangs: int = 0
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0


def control(client: httpx.Client, url: str) -> bool:
    """Whether an ordinary request is answered as ever."""
    asked = {"model": "demo", "prompt": CAT}
    for _ in range(50):
        response = client.post(f"{url}/v1/completions", json=asked)
        if response.status_code != 429:
            break
        time.sleep(0.1)
    return bool(response.json()["choices"][0]["text"] == "Die Katze saß auf der Matte.")


def abuse(
    client: httpx.Client,
    url: str,
    route: Route,
    make: Callable[[Route, random.Random], Sent],
    count: int,
    *,
    seed: int = 0,
    control_every: int = CONTROL_EVERY,
) -> Row:
    """So many requests of a kind, with ordinary ones in between."""
    row = Row()
    draw = random.Random(f"{route.path}{make.__name__}{seed}")
    for number in range(count):
        method, path, kind, content = make(route, draw)
        begin = time.monotonic()
        try:
            headers = {"content-type": kind}
            response = client.request(method, url + path, headers=headers, content=content)
        except httpx.TimeoutException:
            row.hangs += 1
            continue
        row.slowest = max(row.slowest, time.monotonic() - begin)
        status = response.status_code
        row.statuses[status] += 1
        is_mistake = 400 <= status < 500 and status not in (408, 409, 429)
        if not is_mistake and (status != 200 or make is malformed):
            row.wrong.append(f"{status} {method} {path[:80]} {kind} {content[:200]!r}")
        if number % control_every == control_every - 1 and not control(client, url):
            row.wrong.append("an ordinary request was answered otherwise")
    return row


def megabytes(process: int) -> float:
    """The resident memory of a process, in MiB."""
    text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


# ------------------------------------------------------------------ clients that go, or dawdle


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def head(url: str, length: int, path: str = "/v1/completions") -> bytes:
    """The head of a request by hand, with a body of so many bytes."""
    host = url.removeprefix("http://")
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", f"content-type: {JSON_TYPE}"]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def disconnects(url: str, count: int) -> None:
    """Clients that go: in the middle of their body, behind it, in the middle of the answer."""
    for number in range(count):
        asked = {"model": "gpt2", "prompt": CAT, "max_tokens": 60, "stream": number % 2 == 0}
        body = json.dumps(asked).encode()
        with connect(url) as connection:
            connection.sendall(head(url, len(body)))
            match number % 3:
                case 0:
                    connection.sendall(body[:20])
                case 1:
                    connection.sendall(body)
                case _:
                    connection.sendall(body)
                    connection.recv(200)


def slow_clients(url: str, count: int) -> int:
    """Clients that begin a body and say no more; how many the server has answered and left."""
    waiting = [connect(url) for _ in range(count)]
    left = 0
    for connection in waiting:
        connection.sendall(head(url, 500) + b"{")
    for connection in waiting:
        with connection:
            answer = b""
            while part := connection.recv(4096):
                answer += part
            left += b"slow_body" in answer
    return left


def huge_bodies(url: str, count: int) -> int:
    """Bodies of 64 MiB; how many were refused before their end."""
    refused = 0
    part = b" " * (1 << 20)
    for _ in range(count):
        with connect(url) as connection:
            connection.sendall(head(url, 64 << 20))
            answer = b""
            try:
                for _ in range(64):
                    connection.sendall(part)
                answer = connection.recv(4096)
            except (ConnectionResetError, BrokenPipeError):
                refused += 1  # closed while it was still being sent
                continue
            refused += b" 413 " in answer
    return refused


def left_running(client: httpx.Client, url: str) -> float:
    """What still waits, runs or has a row, some seconds after the last request."""
    for _ in range(100):
        lines = client.get(f"{url}/metrics").text.splitlines()
        gauges = ("regard_engine_waiting", "regard_engine_running", "regard_engine_rows")
        left = sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(gauges))
        if not left:
            break
        time.sleep(0.1)
    return left


# ------------------------------------------------------------------ the run


def serve(pipe: Any) -> None:
    """A server of small models, in a process of its own."""
    import regard
    from regard.serve.api import HttpLimits
    from regard.serve.requests import Limits
    from regard.studio.model_store import DEMO
    from regard.training.translation_languages import Pair
    from serving import KINDS, served, trained

    with tempfile.TemporaryDirectory() as folder:
        models = trained(KINDS, Path(folder))
        models["demo"] = regard.load(DEMO, device="cpu", say=lambda text: None)
        limits = Limits(max_new_tokens=128, seconds=20)
        http = HttpLimits(body_seconds=BODY_SECONDS)
        languages = {"demo": Pair("en", "de")}
        with served(models, limits=limits, http=http, languages=languages) as running:
            pipe.send(running.url)
            pipe.recv()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--count", type=int, default=1000, help="requests of a kind and a route")
    options.add_argument("--only", default="", help="routes that begin so")
    arguments = options.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,))
    process.start()
    failures: list[str] = []
    try:
        url = here.recv()
        with httpx.Client(timeout=SECONDS) as client:
            failures = run(client, url, process.pid or 0, arguments.count, arguments.only)
        here.send(None)
        process.join(60)
    finally:
        process.kill()
    for one in failures[:20]:
        print(one, file=sys.stderr)
    return 1 if failures else 0


def run(client: httpx.Client, url: str, pid: int, count: int, only: str) -> list[str]:
    """All routes, then the clients that go; prints the table, and returns what was wrong."""
    chosen = [one for one in routes() if one.path.startswith(only)]
    # What is loaded, compiled and pooled at the first requests is no growth, nor are the working
    # memory and the caches of the longest texts, whose size `regard serve` prints beforehand.
    for route in chosen:
        for make in (malformed, extreme):
            abuse(client, url, route, make, count // 4, seed=1)
    for beams in (1, 4):
        asked = {"model": "demo", "prompt": "\U0001f600" * 2000, "beam": beams}
        client.post(f"{url}/v1/completions", json=asked)
    begin = megabytes(pid)
    failures: list[str] = []
    print(f"{'route':30} {'kind':10} {'answers':40} {'hangs':>5} {'slowest':>8} {'MiB':>6}")
    for route in chosen:
        for make in (malformed, extreme):
            row = abuse(client, url, route, make, count)
            answers = " ".join(f"{status}:{n}" for status, n in sorted(row.statuses.items()))
            growth = megabytes(pid) - begin
            name = f"{route.method} {route.path}"
            print(
                f"{name:30} {make.__name__:10} {answers:40} {row.hangs:5} "
                f"{row.slowest:7.2f}s {growth:+6.1f}",
                flush=True,
            )
            failures += [f"{name}: {one}" for one in row.wrong]
            failures += [f"{name}: {row.hangs} hangs"] * bool(row.hangs)
    answered = slow_clients(url, 64)
    refused = huge_bodies(url, 20)
    disconnects(url, count)
    left = left_running(client, url)
    growth = megabytes(pid) - begin
    is_well = control(client, url)
    print(f"slow clients answered and left: {answered} of 64")
    print(f"huge bodies refused before their end: {refused} of 20")
    print(f"after {count:,} disconnects still running: {left:g}; an ordinary request: {is_well}")
    print(f"memory: {begin:.0f} MiB, growth {growth:+.1f} MiB")
    failures += ["slow clients were kept"] * (answered < 64)
    failures += ["huge bodies were read"] * (refused < 20)
    failures += ["something is left running"] * bool(left or not is_well)
    failures += [f"memory grew by {growth:.1f} MiB"] * (growth > MOST_GROWTH)
    return failures


if __name__ == "__main__":
    sys.exit(main())
