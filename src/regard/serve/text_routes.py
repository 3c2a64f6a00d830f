"""`/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from regard.decode.strategy import BeamSearch
from regard.look.inspectable import Reading
from regard.serve.api import ApiError, ApiModel, unsupported
from regard.serve.completions import CHATS, TEXTS, Form, Job
from regard.serve.generation import generation, input_list, read, require_writer, search
from regard.serve.requests import Generation
from regard.serve.schema import ChatCompletion, ChatRequest, Completion, CompletionRequest
from regard.serve.service import EVENT_STREAM, Call, Endpoint, EventStream


async def complete(call: Call) -> ApiModel | Response:
    """Continues texts or lists of token ids; an encoder–decoder writes the target of its source."""
    request: CompletionRequest = call.request
    require_writer(call.model)
    inputs = input_list(request.prompt, call.limits, "prompt")
    count = request.n or 1
    drawn = request.best_of or count
    if drawn < count:
        raise ApiError(f"best_of: {drawn} are fewer than the n of {count}", "best_of")
    if drawn > count and request.stream:
        raise ApiError("best_of: the best are known at the end only: leave out stream", "best_of")
    if request.echo and call.model.model.reads_target:
        raise ApiError("echo: an encoder–decoder does not continue its source", "echo")
    if request.max_tokens == 0 and not request.echo:
        raise ApiError("max_tokens: 0 needs echo: true, or nothing would be answered", "max_tokens")
    call.limits.require("logprobs", request.logprobs or 0, "logprobs")
    # The engine writes one token at least: the one behind an echoed prompt is not sent.
    limit = 1 if request.max_tokens == 0 else request.max_tokens
    language = request.language
    readings = [
        await run_in_threadpool(read, call.engine, one, "prompt", language) for one in inputs
    ]
    generations = [
        replace(one, logprobs=request.logprobs, echo=bool(request.echo))
        for one in _generations(call, readings, drawn, limit)
    ]
    return await _respond(call, TEXTS, generations, count, prompt_only=request.max_tokens == 0)


async def chat(call: Call) -> ApiModel | Response:
    """Answers the messages of a chat, written by the template that the model has; an
    encoder–decoder reads the last user message, and nothing else."""
    request: ChatRequest = call.request
    require_writer(call.model)
    text: str | list[int]
    if call.model.model.reads_target:
        users = [one.text for one in request.messages if one.role == "user"]
        if not users:
            raise ApiError("messages: there is no message of a user to read", "messages")
        text = users[-1]
    elif "chat" not in call.model.tasks:
        raise unsupported("this model has no chat template: ask /v1/completions to go on")
    else:
        messages = [
            one.model_dump(exclude_none=True) | {"content": one.text} for one in request.messages
        ]
        # The template has the special tokens written out: none are added around them.
        written = await run_in_threadpool(call.model.render_chat, messages)
        text = call.model.input_tokenizer.encode(written)
    reading = await run_in_threadpool(read, call.engine, text, "messages", request.language)
    call.limits.require("logprobs", request.top_logprobs or 0, "top_logprobs")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    count = request.n or 1
    limit = request.max_completion_tokens or request.max_tokens
    [one] = _generations(call, [reading], count, limit, fills=True)
    return await _respond(call, CHATS, [replace(one, logprobs=logprobs)], count)


def _generations(
    call: Call, readings: Sequence[Reading], count: int, limit: int | None, *, fills: bool = False
) -> list[Generation]:
    """The engine's request for each input; refuses what goes beyond the limits."""
    request = call.request
    limits = call.limits
    limits.require("choices", len(readings) * count, "n")
    limits.require("stops", len(request.stops), "stop")
    strategy = search(call.model, request.sampling, count)
    if isinstance(strategy, BeamSearch):
        limits.require("beams", strategy.width, "beam")
        if request.logprobs not in (None, False):
            raise ApiError(
                "logprobs: a beam search has none of single tokens: set temperature, or beam: 1",
                "logprobs",
            )
    if request.language is not None and not call.model.model.reads_target:
        raise ApiError("language: this model has no target language", "language")
    return [generation(call.engine, one, request, strategy, limit, fills) for one in readings]


async def _respond(
    call: Call, form: Form, generations: Sequence[Generation], count: int, **options: Any
) -> ApiModel | Response:
    """Hands the generations to the engine; the answer is whole, or a stream of events."""
    job = Job(call, form, generations, count, **options)
    if call.request.stream:
        return EventStream(job.chunks(call.request.stream_options), job.streams)
    return await call.unless_gone(job.streams, job.answer())


_STREAMED = (EVENT_STREAM,)
ENDPOINTS = (
    Endpoint("/v1/completions", complete, Completion, CompletionRequest, other_forms=_STREAMED),
    Endpoint("/v1/chat/completions", chat, ChatCompletion, ChatRequest, other_forms=_STREAMED),
)
