"""The bodies of requests: JSON, or forms with files, bounded in size and in time."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, get_origin

from pydantic import Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request as HttpRequest
from starlette.types import Message

from regard.serve.api import ApiError, ApiModel, HttpLimits, refusal
from regard.serve.service import Endpoint
from regard.system import memory
from regard.system.web_server import limited_body

# It warns of every form that is none, with what stands there.
logging.getLogger("python_multipart").setLevel(logging.ERROR)
_JSON = "application/json"
_MOST_FIELDS = 256  # of a form
_LARGE = 1 << 14  # bytes


class KeyRequest(ApiModel):
    """LibreTranslate's clients send the key of the server in the request itself."""

    api_key: Annotated[str, Field(max_length=1000)] | None = None


async def read_request(endpoint: Endpoint, limits: HttpLimits, http: HttpRequest) -> Any:
    """The request of an endpoint; None of one that reads nothing."""
    kind = endpoint.request
    content_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind is None and endpoint.dialect == "libretranslate" and content_type in endpoint.forms[1:]:
        kind = KeyRequest  # LibreTranslate's clients send one with GET as well
    if kind is None:
        return None
    if content_type not in endpoint.forms:
        raise ApiError(
            f"the body must be {' or '.join(endpoint.forms)}", status=415, code="content_type"
        )
    most = limits.file_bytes if endpoint.reads_files else limits.body_bytes
    body = await _bytes(http, most, limits.body_seconds)
    if len(body) > _LARGE:
        memory.give_back()  # what the large ones before it have left
    try:
        if content_type == _JSON:
            return kind.model_validate_json(body)
        # The values of a form are texts, numbers too.
        return kind.model_validate(await _fields(kind, http, body), strict=False)
    except ValidationError as problem:
        raise refusal(problem) from None


async def _bytes(http: HttpRequest, most: int, seconds: float) -> bytes:
    close = {"connection": "close"}  # or what is still sent would be read to its end
    try:
        async with asyncio.timeout(seconds):
            body = await limited_body(http, most)
    except TimeoutError:
        # Not 408, which a client would send again.
        raise ApiError("the body came in too slowly", code="slow_body", headers=close) from None
    if body is None:
        raise ApiError(
            f"the body has more than {most:,} bytes",
            status=413,
            code="body_too_large",
            headers=close,
        )
    return body


async def _fields(kind: type[ApiModel], http: HttpRequest, body: bytes) -> dict[str, Any]:
    """The fields of a form, whose values are texts or files."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    values: dict[str, Any] = {}
    try:
        request = HttpRequest(http.scope, receive)
        async with request.form(
            max_files=1, max_fields=_MOST_FIELDS, max_part_size=len(body) + 1
        ) as form:
            for name, value in form.multi_items():
                content: Any = value
                if isinstance(value, UploadFile):
                    content = await value.read()
                # `include[]` and a field that comes twice are lists.
                field = name.removesuffix("[]")
                is_list = name.endswith("[]") or field in values or _is_list(kind, field)
                if is_list:
                    content = [*values.get(field, ()), content]
                values[field] = content
    except (HTTPException, MultiPartException, ValueError, UnicodeDecodeError):
        raise ApiError("the body is no such form", code="invalid_form") from None
    return values


def _is_list(kind: type[ApiModel], field: str) -> bool:
    info = kind.model_fields.get(field)
    return info is not None and get_origin(info.annotation) is list
