"""The served models with what all routes need of them, and the table of routes itself."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from regard.serve.api import ApiError, ApiModel, HttpLimits
from regard.serve.languages import Pair
from regard.serve.requests import Pending
from regard.system.errors import did_you_mean

if TYPE_CHECKING:
    from regard.serve.engine import Engine
    from regard.serve.models import Models

R = TypeVar("R")

IGNORED_HEADER = "x-regard-ignored"


class Service:
    """The models of a process, the limits of a request, and what has been asked so far."""

    def __init__(
        self,
        models: Models,
        limits: HttpLimits | None = None,
        key: str | None = None,
        languages: Mapping[str, Pair] | None = None,
    ) -> None:
        self.models = models
        self.limits = limits or HttpLimits()
        self.languages = dict(languages or {})  # of translators, by name
        self.key = key  # None: everyone who reaches the server may ask
        self.draining = False
        self.answers: Counter[tuple[str, int]] = Counter()  # by route and status

    def require_model(self, name: str) -> None:
        """404 where there is no such model."""
        if name not in self.models.names():
            hint = did_you_mean(name, self.models.names())
            raise ApiError(
                f"there is no model of this name here; {hint}",
                "model",
                status=404,
                code="model_not_found",
            )

    async def engine(self, name: str) -> Engine:
        """The engine of a model, loaded if it is not."""
        self.require_model(name)
        return await self.models.engine(name)


def answer_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


# ------------------------------------------------------------------ routes


Handler = Callable[[Service, Any, HttpRequest], Coroutine[Any, Any, BaseModel | Response]]


@dataclass(frozen=True)
class Endpoint:
    """One route: its request and its answers are types, which the OpenAPI document is made of.

    `forms` are the types of content that are read, `other_forms` those that an answer may have
    besides JSON. A route that `reads_files` takes as large a body as one file.
    """

    path: str
    handler: Handler
    summary: str
    answer: Any = None  # a type, or a union of some; None: no JSON, or any
    request: type[ApiModel] | None = None  # None: of GET
    forms: tuple[str, ...] = ("application/json",)
    dialect: Literal["openai", "libretranslate", "regard"] = "openai"
    reads_files: bool = False
    other_forms: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return "GET" if self.request is None else "POST"

    @property
    def answers(self) -> tuple[Any, ...]:
        return () if self.answer is None else get_args(self.answer) or (self.answer,)


# ------------------------------------------------------------------ while the client is there


async def unless_gone(http: HttpRequest, pending: Sequence[Pending[Any]], work: Awaitable[R]) -> R:
    """The result of some work, which ends, with what is pending for it, when its client goes."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnection(http))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for one in pending:
            if not one.done:
                one.cancel()


async def ask(http: HttpRequest, pending: Pending[R]) -> R:
    """The result of something that an engine was asked, unless the client goes before."""
    return await unless_gone(http, [pending], pending.result())


async def _disconnection(http: HttpRequest) -> None:
    # The body has been read: nothing else comes in any more.
    while (await http.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events; when they end, or the client goes, what is pending for them ends too."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], pending: Sequence[Pending[Any]]) -> None:
        super().__init__(events)
        self.pending = pending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientDisconnect):
                await super().__call__(scope, receive, send)
        finally:
            for one in self.pending:
                if not one.done:
                    one.cancel()
