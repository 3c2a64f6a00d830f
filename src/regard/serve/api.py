"""What all routes have in common: strict requests, their limits, and errors in OpenAI's form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from regard.serve.requests import QueueFull
from regard.system.errors import ModelError, RegardError


@dataclass(frozen=True)
class HttpLimits:
    """The bounds of one request, beside those of the engine that decodes it.

    `body_bytes` are those of JSON, `file_bytes` those of a recording or an image; both must have
    come in after `body_seconds`. `inputs`: texts of one request. `choices`: of all its inputs
    together. `beams`, `stops`, `logprobs`: of one output.
    """

    body_bytes: int = 1 << 20
    file_bytes: int = 1 << 25
    body_seconds: float = 60.0
    inputs: int = 128
    choices: int = 128
    beams: int = 16
    stops: int = 16
    logprobs: int = 20

    def require(self, name: str, value: int, field: str) -> None:
        """Refuses a field of a request whose value is above the limit of this name."""
        most = getattr(self, name)
        if value > most:
            raise ApiError(f"{field}: {value:,} are more than the {most:,} of this server", field)


# ------------------------------------------------------------------ errors


class ApiError(Exception):
    """An answer that is no 200: OpenAI's error object, with the field that is to blame."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.headers = headers

    def body(self) -> dict[str, Any]:
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        values = {"message": self.message, "type": _KINDS.get(self.status, usual)}
        return {"error": {**values, "param": self.param, "code": self.code}}


_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def unsupported(message: str) -> ApiError:
    """The model of a request cannot do what its route is for."""
    return ApiError(message, "model", code="unsupported_by_model")


def api_error(failure: BaseException) -> ApiError:
    """What a client is told of a failure; of one that it did not cause, nothing but that."""
    match failure:
        case ApiError():
            return failure
        case QueueFull():
            seconds = {"retry-after": str(max(1, math.ceil(failure.retry_after)))}
            return ApiError(str(failure), status=429, code="queue_full", headers=seconds)
        case ModelError():
            return unsupported(_one_line(failure))
        case RegardError():
            return ApiError(_one_line(failure))
        case _:
            return ApiError("the server failed on this request", status=500, code="internal_error")


@contextmanager
def blamed(field: str, *silent: object, code: str | None = None) -> Iterator[None]:
    """Errors are of this field of the request; what is `silent` stands in no message."""
    try:
        yield
    except RegardError as error:
        message = f"{field}: {_one_line(error)}"
        for one in silent:
            message = message.replace(f"{one}", "the input")
        raise ApiError(message, field, code=code) from None


def _one_line(failure: RegardError) -> str:
    return f"{failure.problem}: {failure.repair}"


def refusal(problem: ValidationError) -> ApiError:
    """The first mistake in a request: of several forms that a field may have, of the nearest."""
    errors = problem.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    # A union has the errors of all its forms: the one that was meant has failed furthest inside.
    field = first["loc"][:1]
    first = max((one for one in errors if one["loc"][:1] == field), key=lambda one: len(one["loc"]))
    param = ".".join(str(part) for part in first["loc"] if not _is_form(part)) or None
    kind, message = first["type"], first["msg"]
    if kind in _MISTAKES:
        code, text = _MISTAKES[kind]
        return ApiError(text.format(param=param, message=message), param, code=code)
    if param is None and kind.islower() and kind.isidentifier():
        # Of two fields that do not go together: the kind of the error is the name of one.
        return ApiError(message, kind, code="invalid_value")
    return ApiError(f"{param or 'the body'}: {message}", param, code="invalid_value")


_MISTAKES = {  # code and message, by pydantic's type of an error
    "extra_forbidden": ("unknown_parameter", "{param} is not a field of this request"),
    "unsupported": ("unsupported_parameter", "{param}: {message}"),
    "missing": ("missing_required_parameter", "{param} is missing"),
    "json_invalid": ("invalid_json", "the body is no JSON: {message}"),
}


def _is_form(part: int | str) -> bool:
    """Whether a part of a path names one form of a union: `str`, `list[str]`, `TextPart`."""
    return isinstance(part, str) and (
        part in ("str", "int", "bool") or "[" in part or "-" in part or part[:1].isupper()
    )


# ------------------------------------------------------------------ requests


class ApiModel(BaseModel):
    """A request, a part of one, or an answer: no field is guessed, converted or dropped."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _neutral(*values: Any) -> Any:
    def check(value: Any) -> Any:
        # 0 and False are equal in Python, and not in JSON.
        if any(type(value) is type(one) and value == one for one in (None, *values)):
            return value
        raise PydanticCustomError("unsupported", "this server does not support it: leave it out")

    return Annotated[Any, AfterValidator(check), WithJsonSchema({"enum": [None, *values]})]


NoValue = _neutral()
NoNumber = _neutral(0, 0.0)
NoList = _neutral([])
NoObject = _neutral({})
NoSwitch = _neutral(False)
TextFormat = _neutral({"type": "text"})
TextOnly = _neutral(["text"])
Ignored = Annotated[Any, Field(description="Ignored, and named in the header x-regard-ignored.")]


class Request(ApiModel):
    """A request to a model. Fields of the type `Ignored` say who asks, and change no answer."""

    model: Annotated[str, Field(max_length=300)] = ""  # may be left out where there is one
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None

    @property
    def ignored(self) -> Iterator[str]:
        """The names of the fields that this request has, and nobody reads."""
        silent = Request.model_fields.keys() - {"model"}
        return (name for name in sorted(self.model_fields_set) if name in silent)
