"""OpenAI's document of the served routes, made of the types of its published client: whatever it
allows is answered as it says, or is a 400 with OpenAI's error object."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.audio import Transcription
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming as ChatRequest,
)
from openai.types.completion_create_params import (
    CompletionCreateParamsNonStreaming as CompletionRequest,
)
from openai.types.decision import Decision
from openai.types.decision_create_params import DecisionCreateParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from serving import Served

JSON = "application/json"
FORM = "multipart/form-data"
# Of the client's type, the file is anything that Python can read.
RECORDING: dict[str, Any] = {
    "type": "object",
    "required": ["file", "model"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string"},
        "language": {"type": "string"},
        "prompt": {"type": "string"},
        "response_format": {"enum": ["json"]},
        "temperature": {"type": "number"},
        "include": {"type": "array", "items": {"enum": ["logprobs"]}},
        "stream": {"enum": ["false"]},
    },
}
ROUTES: dict[str, tuple[str, Any, Any, str]] = {
    "/v1/completions": ("gpt2", CompletionRequest, Completion, JSON),
    "/v1/chat/completions": ("gpt2", ChatRequest, ChatCompletion, JSON),
    "/v1/embeddings": ("embedder", EmbeddingCreateParams, CreateEmbeddingResponse, JSON),
    "/v1/decisions": ("classifier", DecisionCreateParams, Decision, JSON),
    "/v1/audio/transcriptions": ("wav2vec2", RECORDING, Transcription, FORM),
}
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def document() -> dict[str, Any]:
    """Requests and answers of the client's types, as an OpenAPI document."""
    schemas: dict[str, Any] = {}

    def schema(kind: Any) -> dict[str, Any]:
        if isinstance(kind, dict):
            return kind
        # Types of several modules have the same name.
        prefix = f"{len(schemas)}."
        reference = f"#/components/schemas/{prefix}{{model}}"
        values = TypeAdapter(kind).json_schema(ref_template=reference)
        parts = values.pop("$defs", {})
        schemas.update({prefix + name: part for name, part in parts.items()})
        return values

    error = {"type": "object", "required": ["error"], "properties": {"error": schema(ErrorObject)}}
    refusal = {"description": "refused", "content": {JSON: {"schema": error}}}
    paths: dict[str, Any] = {}
    for path, (_, request, answer, form) in ROUTES.items():
        content = {JSON: {"schema": schema(answer)}}
        paths[path] = {
            "post": {
                "requestBody": {"required": True, "content": {form: {"schema": schema(request)}}},
                "responses": {
                    "200": {"description": "the answer", "content": content},
                    **dict.fromkeys(("400", "404", "413", "415"), refusal),
                },
            }
        }
    listed = {"description": "it", "content": {JSON: {"schema": schema(Model)}}}
    paths["/v1/models/gpt2"] = {"get": {"responses": {"200": listed}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "OpenAI, as its client has it", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


SCHEMA = schemathesis.openapi.from_dict(document())


def named(case: Any) -> bool:
    """Has a case name the model that answers on its route."""
    if isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = ROUTES[case.operation.path][0]
    return True


@pytest.mark.thorough
@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
def test_requests_of_openais_document(case: Any, server: Served) -> None:
    named(case)
    response = case.call(base_url=server.url, timeout=60)
    case.validate_response(response, checks=CHECKS)


def test_a_plain_request_is_answered_as_the_document_says(server: Served) -> None:
    """Not all that is asked is refused."""
    asked: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "The dog", "max_tokens": 3},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
        "/v1/embeddings": {"input": "The dog", "encoding_format": "float"},
        "/v1/decisions": {
            "input": "The dog",
            "questions": [{"type": "predicate", "name": "good", "instructions": "a"}],
        },
    }
    for path, fields in asked.items():
        operation = SCHEMA[path]["POST"]
        case = operation.Case(body={"model": ROUTES[path][0], **fields}, media_type=JSON)
        response = case.call(base_url=server.url, timeout=60)
        assert response.status_code == 200
        case.validate_response(response, checks=CHECKS)
