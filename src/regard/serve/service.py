"""The served models, one call of a route, and what a route is."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from regard.evaluation.prediction import reads_files
from regard.evaluation.task import PredictionOptions
from regard.serve.api import ApiError, ApiModel, HttpLimits, api_error, blamed
from regard.serve.requests import Generation, Result, Stream
from regard.system.errors import did_you_mean
from regard.system.pending import Pending
from regard.training.translation_languages import Pair

if TYPE_CHECKING:
    from regard.serve.engine import Engine
    from regard.serve.models import Models

R = TypeVar("R")

IGNORED_HEADER = "x-regard-ignored"
EVENT_STREAM = "text/event-stream"


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
            problem = (
                f"there is no model of this name here; {did_you_mean(name, self.models.names())}"
            )
            raise ApiError(problem, "model", status=404, code="model_not_found")

    def name(self, asked: str) -> str:
        """The model that a request means: the one that it names, or the only one."""
        names = self.models.names()
        if not asked and len(names) != 1:
            problem = f"model is missing: there are {', '.join(names)}"
            raise ApiError(problem, "model", code="missing_required_parameter")
        return asked or names[0]

    async def engine(self, name: str) -> Engine:
        """The engine of a model, loaded if it is not."""
        self.require_model(name)
        return await self.models.engine(name)


# ------------------------------------------------------------------ one call


@dataclass
class Call:
    """One request to a route: what is asked, over which connection, and of which model."""

    service: Service
    request: Any  # of the type that the route reads; None where it reads nothing
    http: HttpRequest
    name: str = ""  # of the model that it is for, if it is for one
    engine: Any = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> Any:
        return self.engine.model

    @property
    def limits(self) -> HttpLimits:
        return self.service.limits

    @property
    def client(self) -> str:
        return "" if self.http.client is None else self.http.client.host

    def head(self, prefix: str) -> dict[str, Any]:
        """What an answer begins with."""
        id = f"{prefix}-{secrets.token_hex(12)}"
        return {"id": id, "created": self.created, "model": self.name}

    async def ask(self, method: str, inputs: Sequence[Any], **options: Any) -> list[Any]:
        """The answers of a task of the table; errors are of the input, whose path is not said."""
        asked = PredictionOptions(**options)
        paths = inputs if reads_files(self.model, method) else ()
        with blamed("input", *paths):
            return await self.result(self.engine.ask(method, inputs, asked, self.client))

    async def run(self, function: Callable[..., R], field: str, **values: Any) -> R:
        """What a function of the model says, which is called between two steps; its errors are of
        a field of the request."""
        with blamed(field):
            return await self.result(self.engine.call(partial(function, **values), self.client))

    async def result(self, pending: Pending[R]) -> R:
        return await self.unless_gone([pending], pending.result())

    def submit(
        self, generations: Sequence[Generation], engine: Engine | None = None
    ) -> list[Stream]:
        """Hands generations to the engine: all, or none."""
        streams: list[Stream] = []
        try:
            for one in generations:
                one = replace(one, client=self.client)
                streams.append((engine or self.engine).submit(one))
        except BaseException:
            cancel(streams)
            raise
        return streams

    async def results(self, streams: Sequence[Stream]) -> list[Result]:
        async def all_results() -> list[Result]:
            return [await one.result() for one in streams]

        return await self.unless_gone(streams, all_results())

    async def unless_gone(self, pending: Sequence[Pending[Any]], work: Awaitable[R]) -> R:
        """What some work gives. It ends, with what is pending for it, when the client goes."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._disconnection())
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
            cancel(pending)

    async def _disconnection(self) -> None:
        # The body has been read: nothing else comes in any more.
        while (await self.http.receive())["type"] != "http.disconnect":
            pass


def cancel(pending: Sequence[Pending[Any]]) -> None:
    """Has the engine drop what is not complete yet."""
    for one in pending:
        if not one.done:
            one.cancel()


class EventStream(StreamingResponse):
    """Server-sent events, the last of which is `[DONE]`; a failure is one of them.

    When they end, or the client goes, what is pending for them ends too.
    """

    media_type = EVENT_STREAM

    def __init__(self, events: AsyncIterator[BaseModel], pending: Sequence[Pending[Any]]) -> None:
        super().__init__(_written(events))
        self.pending = pending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientDisconnect):
                await super().__call__(scope, receive, send)
        finally:
            cancel(self.pending)


async def _written(events: AsyncIterator[BaseModel]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield b"data: " + event.model_dump_json().encode() + b"\n\n"
    except Exception as failure:
        yield b"data: " + json.dumps(api_error(failure).body()).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


# ------------------------------------------------------------------ routes


@dataclass(frozen=True)
class Endpoint:
    """One route: its request and its answers are types, which the OpenAPI document is made of.

    Its summary is the docstring of the handler, unless given. `forms` are the types of content
    that are read, `other_forms` those that an answer may have besides JSON. A route that
    `reads_files` takes as large a body as one file.
    """

    path: str
    handler: Callable[[Call], Coroutine[Any, Any, BaseModel | Response]]
    answer: Any = None  # a type, or a union of some; None: no JSON, or any
    request: type[ApiModel] | None = None  # None: of GET
    forms: tuple[str, ...] = ("application/json",)
    dialect: Literal["openai", "libretranslate", "regard"] = "openai"
    reads_files: bool = False
    other_forms: tuple[str, ...] = ()
    summary: str = ""

    @property
    def method(self) -> str:
        return "GET" if self.request is None else "POST"

    @property
    def answers(self) -> tuple[Any, ...]:
        return () if self.answer is None else get_args(self.answer) or (self.answer,)
