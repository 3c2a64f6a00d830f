"""`/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from regard.decode.strategy import BeamSearch, Strategy
from regard.look.inspectable import Reading
from regard.serve.api import ApiError, ApiModel
from regard.serve.completions import ChatForm, Job, TextForm, cancel
from regard.serve.generation import (
    generation,
    input_list,
    read,
    require_writer,
    search,
)
from regard.serve.openai_schema import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    DecodingRequest,
)
from regard.serve.requests import Generation
from regard.serve.service import Endpoint, EventStream, Service, unless_gone

if TYPE_CHECKING:
    from regard.serve.engine import Engine


async def complete(
    service: Service, request: CompletionRequest, http: HttpRequest
) -> ApiModel | Response:
    """Continues texts or lists of token ids; an encoder–decoder writes the target of its source."""
    engine = await service.engine(request.model)
    model = engine.model
    require_writer(model)
    inputs = input_list(request.prompt, service.limits, "prompt")
    count = request.n or 1
    drawn = request.best_of or count
    if drawn < count:
        raise ApiError(f"best_of: {drawn} are fewer than the n of {count}", "best_of")
    if drawn > count and request.stream:
        raise ApiError("best_of: the best are known at the end only: leave out stream", "best_of")
    if request.echo and model.model.reads_target:
        raise ApiError("echo: an encoder–decoder does not continue its source", "echo")
    if request.max_tokens == 0 and not request.echo:
        raise ApiError("max_tokens: 0 needs echo: true, or nothing would be answered", "max_tokens")
    if request.logprobs is not None:
        service.limits.require("logprobs", request.logprobs, "logprobs")
    # The engine writes one token at least: the one behind an echoed prompt is not sent.
    limit = 1 if request.max_tokens == 0 else request.max_tokens
    readings = [
        await run_in_threadpool(read, engine, one, "prompt", request.language) for one in inputs
    ]
    generations = [
        replace(
            _generation(service, engine, reading, request, drawn, limit, False),
            logprobs=request.logprobs,
            echo=bool(request.echo),
        )
        for reading in readings
    ]
    job = Job(TextForm(), request.model, model, generations, [], count, request.max_tokens == 0)
    return await _respond(service, engine, request, job, http)


async def chat(service: Service, request: ChatRequest, http: HttpRequest) -> ApiModel | Response:
    """Answers the messages of a chat, written by the template that the model has; an
    encoder–decoder reads the last user message, and nothing else."""
    engine = await service.engine(request.model)
    model = engine.model
    require_writer(model)
    if model.model.reads_target:
        users = [one.text for one in request.messages if one.role == "user"]
        if not users:
            raise ApiError("messages: there is no message of a user to read", "messages")
        reading = await run_in_threadpool(read, engine, users[-1], "messages", request.language)
    else:
        messages = [
            one.model_dump(exclude_none=True) | {"content": one.text} for one in request.messages
        ]
        reading = await run_in_threadpool(_read_chat, engine, messages)
    top = request.top_logprobs or 0
    service.limits.require("logprobs", top, "top_logprobs")
    limit = request.max_completion_tokens or request.max_tokens
    count = request.n or 1
    one = _generation(service, engine, reading, request, count, limit, True)
    one = replace(one, logprobs=top if request.logprobs else None)
    job = Job(ChatForm(), request.model, model, [one], [], count)
    return await _respond(service, engine, request, job, http)


def _read_chat(engine: Engine, messages: list[dict[str, str]]) -> Reading:
    model = engine.model
    if "chat" not in model.tasks:
        raise ApiError(
            "this model has no chat template: ask /v1/completions for a continuation",
            "model",
            code="unsupported_by_model",
        )
    # The template has the special tokens written out: none are added around them.
    text = model.render_chat(messages)  # type: ignore[attr-defined]
    return read(engine, model.input_tokenizer.encode(text), "messages", None)


def _generation(
    service: Service,
    engine: Engine,
    reading: Reading,
    request: DecodingRequest,
    count: int,
    limit: int | None,
    fills: bool,
) -> Generation:
    limits = service.limits
    limits.require("choices", count, "n")
    limits.require("stops", len(request.stops), "stop")
    strategy: Strategy = search(engine.model, request.sampling, count)
    if isinstance(strategy, BeamSearch):
        limits.require("beams", strategy.width, "beam")
        if request.logprobs not in (None, False):
            raise ApiError(
                "logprobs: a beam search has none of single tokens: set temperature, or beam: 1",
                "logprobs",
            )
    if request.language is not None and not engine.model.model.reads_target:
        raise ApiError("language: this model has no target language", "language")
    return generation(engine, reading, request, strategy, limit, fills)


async def _respond(
    service: Service, engine: Engine, request: DecodingRequest, job: Job, http: HttpRequest
) -> ApiModel | Response:
    """Hands the generations to the engine; the answer is whole, or a stream of events."""
    service.limits.require("choices", len(job.generations) * job.generations[0].choices, "n")
    client = "" if http.client is None else http.client.host
    try:
        for one in job.generations:
            job.streams.append(engine.submit(replace(one, client=client)))
    except BaseException:
        cancel(job.streams)
        raise
    if not request.stream:
        return await unless_gone(http, job.streams, job.answer())
    if request.stream_options is not None:
        job.include_usage = bool(request.stream_options.include_usage)
        job.running_usage = (
            bool(request.stream_options.continuous_usage_stats) and job.include_usage
        )
    return EventStream(job.events(), job.streams)


ENDPOINTS = (
    Endpoint("/v1/completions", complete, "Continue texts", Completion, CompletionRequest),
    Endpoint("/v1/chat/completions", chat, "Answer a chat", ChatCompletion, ChatRequest),
)
