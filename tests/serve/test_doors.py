"""Who may ask, how much, and what is left behind: keys, hosts, origins, bodies, disconnects."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import regard
from doctor_bench import load
from regard.core.probe import Probe
from regard.serve import looking
from regard.serve.api import HttpLimits
from regard.serve.application import all_endpoints
from regard.serve.requests import Limits, LookRequest
from regard.studio.model_store import DEMO
from regard.training.translation_languages import Pair
from serving import Served, served

KEY = "a-key-of-this-test"
PAGE = "https://page.example"
CAT = "The cat sat on the mat."
RIGHT = {"authorization": f"Bearer {KEY}"}
ROUTES = sorted({(one.method, one.path.replace("{model:path}", "demo")) for one in all_endpoints()})


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    demo = regard.load(DEMO, device="cpu", say=lambda text: None)
    http = HttpLimits(body_bytes=2000, file_bytes=4000, body_seconds=0.5, inputs=4)
    with served(
        {"demo": demo},
        key=KEY,
        http=http,
        limits=Limits(rows=4, queue=4),
        languages={"demo": Pair("en", "de")},
        origins=[PAGE],
    ) as running:
        yield running


def is_well(server: Served) -> None:
    """An ordinary request is answered as ever, as soon as there is room for it."""
    for _ in range(100):
        response = httpx.post(
            f"{server.url}/v1/completions",
            json={"model": "demo", "prompt": CAT},
            headers=RIGHT,
            timeout=60,
        )
        if response.status_code != 429:
            break
        time.sleep(0.1)
    assert response.json()["choices"][0]["text"] == server.model("demo").translate(CAT)


def connect(server: Served) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


def head(server: Served, length: int) -> bytes:
    """The head of a request by hand, with a body of so many bytes."""
    lines = [
        "POST /v1/completions HTTP/1.1",
        f"host: {server.url.removeprefix('http://')}",
        f"authorization: Bearer {KEY}",
        "content-type: application/json",
        f"content-length: {length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


# ------------------------------------------------------------------ the key


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/"), ("GET", "/nowhere")])
def test_every_route_but_health_asks_for_the_key(guarded: Served, method: str, path: str) -> None:
    wrong: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": KEY},
        {"authorization": "Basic !!"},
        {"authorization": "Basic " + base64.b64encode(b"me:wrong").decode()},
    ]
    for headers in wrong:
        # A body that would be read if the key were right.
        response = httpx.request(
            method, guarded.url + path, headers=headers, json={"model": "demo"}
        )
        if path == "/health":
            assert response.status_code == 200
            continue
        assert response.status_code in ((401, 400) if method == "POST" else (401,))
        if path not in ("/translate", "/detect", "/languages"):
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert CAT not in response.text
    for headers in (
        RIGHT,
        {"authorization": "Basic " + base64.b64encode(f"me:{KEY}".encode()).decode()},
    ):
        response = httpx.request(method, guarded.url + path, headers=headers, json={})
        assert response.status_code != 401


def test_libretranslates_key_comes_in_the_body(guarded: Served) -> None:
    asked = {"q": CAT, "source": "en", "target": "de"}
    for form in ("json", "data"):
        url = f"{guarded.url}/translate"
        right: Any = {form: {**asked, "api_key": KEY}}
        assert httpx.post(url, timeout=60, **right).status_code == 200
        for fields in (asked, {**asked, "api_key": "wrong"}, {**asked, "api_key": ""}):
            wrong: Any = {form: fields}
            response = httpx.post(url, **wrong)
            assert response.status_code == 401
            assert set(response.json()) == {"error"}
    url = f"{guarded.url}/languages"
    assert httpx.request("GET", url, data={"api_key": KEY}).status_code == 200
    assert httpx.get(f"{guarded.url}/languages").status_code == 401


# ------------------------------------------------------------------ hosts and origins


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_gets_nothing(guarded: Served, host: str) -> None:
    response = httpx.get(f"{guarded.url}/v1/models", headers={**RIGHT, "host": host})
    assert response.status_code == 403
    assert "demo" not in response.text


def test_pages_ask_only_if_they_may(guarded: Served) -> None:
    url = f"{guarded.url}/v1/models"
    for origin in ("https://evil.example", "null", PAGE + ".evil.example"):
        assert httpx.get(url, headers={**RIGHT, "origin": origin}).status_code == 403
    mine = httpx.get(url, headers={**RIGHT, "origin": PAGE})
    assert mine.status_code == 200
    assert mine.headers["access-control-allow-origin"] == PAGE
    # The browser asks first, without the key.
    preflight = httpx.options(
        url, headers={"origin": PAGE, "access-control-request-method": "POST"}
    )
    assert preflight.status_code == 204
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert httpx.get(url, headers={**RIGHT, "origin": guarded.url}).status_code == 200


# ------------------------------------------------------------------ bodies

BODIES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 400),
    "no JSON": (b"{", 400),
    "a list": (b"[]", 400),
    "deep": (b"[" * 1500, 400),
    "no UTF-8": (b"\xff\xfe", 400),
    "NaN": (b'{"model": "demo", "prompt": "a", "temperature": NaN}', 400),
    "infinite": (b'{"model": "demo", "prompt": "a", "temperature": -Infinity}', 400),
    "huge": (b'{"model": "demo", "prompt": "a", "max_tokens": ' + b"9" * 1000 + b"}", 400),
    "half a character": (b'{"model": "demo", "prompt": "\\ud800"}', 400),
    "a zero": (b'{"model": "demo", "prompt": "\\u0000"}', 200),
    "long": (b" " * 3000, 413),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_read_with_care(guarded: Served, name: str) -> None:
    body, status = BODIES[name]
    headers = {**RIGHT, "content-type": "application/json"}
    response = httpx.post(f"{guarded.url}/v1/completions", content=body, headers=headers)
    assert response.status_code == status, response.text
    if status != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    is_well(guarded)


def test_the_type_of_a_body_is_checked(guarded: Served) -> None:
    content = json.dumps({"model": "demo", "prompt": "a"}).encode()
    for kind in ("text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {**RIGHT, "content-type": kind}
        response = httpx.post(f"{guarded.url}/v1/completions", content=content, headers=headers)
        assert response.status_code == 415
    url = f"{guarded.url}/v1/audio/transcriptions"
    for kind in ("multipart/form-data", "multipart/form-data; boundary=a"):
        headers = {**RIGHT, "content-type": kind}
        response = httpx.post(url, content=b"--a\r\nblub", headers=headers)
        assert response.status_code == 400
    files = {"file": ("a.wav", b"x" * 9000)}
    response = httpx.post(url, files=files, data={"model": "demo"}, headers=RIGHT)
    assert response.status_code == 413


def test_a_slow_body_is_given_up(guarded: Served) -> None:
    with connect(guarded) as connection:
        connection.sendall(head(guarded, 100) + b"{")
        began = time.monotonic()
        answer = b""
        while part := connection.recv(4096):
            answer += part
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"slow_body" in answer
        assert time.monotonic() - began < 20
    is_well(guarded)


# ------------------------------------------------------------------ who goes, and who is refused


def test_nothing_runs_for_a_client_that_has_gone(guarded: Served) -> None:
    engine = guarded.service.models.engines()["demo"]
    before = engine.metrics()
    for stream in (True, False) * 6:
        asked = {"model": "demo", "prompt": CAT, "max_tokens": 80, "stream": stream}
        body = json.dumps(asked).encode()
        with connect(guarded) as connection:
            connection.sendall(head(guarded, len(body)) + body)
    is_well(guarded)  # the server has read what they sent before
    for _ in range(200):
        now = engine.metrics()
        if now.running == now.waiting == 0:
            break
        time.sleep(0.05)
    assert (now.running, now.waiting, now.rows) == (0, 0, 0)
    assert now.failed == before.failed


def test_a_full_queue_says_when_to_come_back(guarded: Served) -> None:
    asked = {"model": "demo", "prompt": CAT, "max_tokens": 60}
    responses: list[httpx.Response] = []

    def send() -> None:
        url = f"{guarded.url}/v1/completions"
        responses.append(httpx.post(url, json=asked, headers=RIGHT, timeout=120))

    threads = [threading.Thread(target=send) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {response.status_code for response in responses} == {200, 429}
    for response in responses:
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
        else:
            assert response.json()["choices"][0]["text"]
    is_well(guarded)


def test_what_people_send_stands_in_no_log(
    guarded: Served, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "Geheimnis"
    url = f"{guarded.url}/v1/completions"
    httpx.post(url, json={"model": "demo", "prompt": secret, "blub": secret}, headers=RIGHT)
    engine = guarded.service.models.engines()["demo"]

    def broken(generation: Any) -> None:
        raise RuntimeError(f"{secret} broke it")

    monkeypatch.setattr(engine, "submit", broken)
    response = httpx.post(url, json={"model": "demo", "prompt": secret}, headers=RIGHT)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the server failed on this request"
    monkeypatch.undo()
    printed = capfd.readouterr()
    assert "RuntimeError" in printed.err
    assert secret not in printed.err + printed.out
    is_well(guarded)


def test_a_failure_is_that_of_one_request_of_64(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault of one, in the middle of its decoding, is no neighbour's."""
    real = looking.probe_of

    def broken(model: Any, request: LookRequest | None) -> Any:
        if request is None or not request.lens:
            return real(model, request)

        def break_it(value: Any) -> Any:
            raise ValueError("injected")

        return Probe(edits={"decoder.0.residual": break_it})

    monkeypatch.setattr(looking, "probe_of", broken)
    url = f"{server.url}/v1/completions"
    statuses: dict[int, int] = {}
    texts: dict[int, str] = {}

    def send(number: int) -> None:
        asked: dict[str, Any] = {"model": "demo", "prompt": CAT}
        if number == 31:
            asked["look"] = {"lens": 1}
        response = httpx.post(url, json=asked, timeout=120)
        statuses[number] = response.status_code
        if response.status_code == 200:
            texts[number] = response.json()["choices"][0]["text"]

    threads = [threading.Thread(target=send, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == {number: 500 if number == 31 else 200 for number in range(64)}
    assert {*texts.values()} == {server.model("demo").translate(CAT)}


# ------------------------------------------------------------------ what nobody should send

ABUSED = ("/v1/completions", "/v1/audio/transcriptions", "/translate", "/v1/classify", "/health")


@pytest.mark.parametrize("path", ABUSED)
def test_a_few_of_a_thousand_wrong_requests(server: Served, path: str) -> None:
    """`python bench/serve_abuse.py` sends a thousand of each kind to each route."""
    abuse = load("serve_abuse")
    [route] = [one for one in abuse.routes() if one.path == path]
    with httpx.Client(timeout=60) as client:
        for make in (abuse.malformed, abuse.extreme):
            row = abuse.abuse(client, server.url, route, make, 12, control_every=6)
            assert (row.wrong, row.hangs) == ([], 0)
            assert row.statuses.total() == 12


def test_huge_bodies_and_clients_that_go(server: Served) -> None:
    abuse = load("serve_abuse")
    assert abuse.huge_bodies(server.url, 2) == 2
    abuse.disconnects(server.url, 12)
    with httpx.Client(timeout=60) as client:
        assert abuse.left_running(client, server.url) == 0
        assert abuse.control(client, server.url)


def test_counters(guarded: Served) -> None:
    lines = httpx.get(f"{guarded.url}/metrics", headers=RIGHT).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")
    before = float(values['regard_engine_finished_total{model="demo"}'])
    is_well(guarded)
    text = httpx.get(f"{guarded.url}/metrics", headers=RIGHT).text
    assert f'regard_engine_finished_total{{model="demo"}} {before + 1:g}' in text
    assert 'regard_http_responses_total{path="/v1/completions",status="200"}' in text
    kinds = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    names = {line.partition("{")[0] for line in text.splitlines() if line[0] != "#"}
    assert kinds == names
