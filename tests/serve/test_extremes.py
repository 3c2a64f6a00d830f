"""Requests made from the OpenAPI document, right and wrong: never a 5xx, never another form of
answer than the document says, and an ordinary request is answered right throughout."""

from __future__ import annotations

from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis import strategies as st
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from regard.serve.application import all_endpoints
from regard.serve.service_routes import openapi_document
from serving import Served

ENDPOINTS = all_endpoints()
DOCUMENT = openapi_document(ENDPOINTS, has_key=False)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
CAT = "The cat sat on the mat."
# Who answers on each route; others refuse all.
MODELS = {
    "/v1/completions": "gpt2",
    "/v1/chat/completions": "gpt2",
    "/v1/generate": "gpt2",
    "/v1/embeddings": "embedder",
    "/v1/embed": "embedder",
    "/v1/audio/transcriptions": "wav2vec2",
    "/v1/transcribe": "whisper",
    "/v1/tag": "tagger",
    "/v1/entities": "tagger",
    "/v1/forecast": "patchtst",
    "/v1/translate": "demo",
}
SETTINGS: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def is_well(server: Served) -> None:
    response = httpx.post(
        f"{server.url}/v1/completions", json={"model": "demo", "prompt": CAT}, timeout=60
    )
    assert response.json()["choices"][0]["text"] == "Die Katze saß auf der Matte."


def check(case: Any, server: Served) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODELS.get(case.operation.path, "classifier")
    response = case.call(base_url=server.url, timeout=60)
    case.validate_response(response, checks=CHECKS)
    # What a client would send again is no answer to a mistake of its own.
    assert response.status_code not in (408, 409, 429)


@pytest.mark.thorough
@SCHEMA.parametrize()
@hypothesis.settings(max_examples=5, **SETTINGS)
def test_requests_of_the_document(case: Any, server: Served) -> None:
    check(case, server)
    is_well(server)


@pytest.mark.slow
@SCHEMA.parametrize()
@hypothesis.settings(max_examples=1000, **SETTINGS)
def test_a_thousand_requests_of_the_document(case: Any, server: Served) -> None:
    check(case, server)


def test_the_document_names_every_route() -> None:
    paths = {one.path.replace(":path", "") for one in ENDPOINTS}
    assert set(DOCUMENT["paths"]) == paths
    assert len(list(SCHEMA.get_all_operations())) == len(ENDPOINTS)


# ------------------------------------------------------------------ extreme values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 1e308, -1e308, 5e-324, -0.0]
TEXTS = ["", "\0", "a" * 5000, "\U0001f600" * 50, "\ufdfd", "\u202e"]
OTHERS: list[Any] = [[], {}, [[]], [""], [0], [-1], [2**40], None, True, False]
EXTREMES = st.sampled_from([*NUMBERS, *TEXTS, *OTHERS])


def operations() -> list[Any]:
    return [one.ok() for one in SCHEMA.get_all_operations() if one.ok().method == "post"]


@pytest.mark.parametrize("operation", operations(), ids=lambda one: one.path)
def test_extreme_values_in_every_field(server: Served, operation: Any) -> None:
    """Each field of a right request becomes each extreme value, one at a time."""
    endpoint = next(one for one in ENDPOINTS if one.path == operation.path)
    assert endpoint.request is not None
    fields = [*endpoint.request.model_fields]
    right: dict[str, Any] = {"model": MODELS.get(endpoint.path, "classifier")}
    right |= {name: CAT for name in ("prompt", "input", "q") if name in fields}
    right |= {name: "en" for name in ("source", "target") if name in fields}
    if "messages" in fields:
        right["messages"] = [{"role": "user", "content": CAT}]
    if "questions" in fields:
        right["questions"] = [{"type": "predicate", "name": "good", "instructions": "a"}]
    if "model" not in fields:
        del right["model"]

    @hypothesis.settings(max_examples=10, **SETTINGS)
    @hypothesis.given(st.sampled_from(fields), EXTREMES | JSON)
    def one(field: str, value: Any) -> None:
        with httpx.Client(timeout=60) as client:
            try:
                response = client.post(server.url + endpoint.path, json={**right, field: value})
            except UnicodeEncodeError:  # half a character, which the client cannot send
                return
            assert response.status_code < 500, (field, value)
            assert response.status_code not in (408, 409, 429)
            if response.status_code != 200 and "json" in response.headers["content-type"]:
                assert response.json()["error"]

    one()
    is_well(server)
