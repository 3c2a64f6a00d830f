"""Completions and chats: one way to the engine, and two forms of its answer, whole or in a stream.

A stream sends one event for each token of the engine. What may be the last token of a choice waits
for the reason why it ends, so that both come in one event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from regard.look.result import to_json
from regard.models import Model
from regard.serve import openai_schema as schema
from regard.serve.api import ApiError, ApiModel, api_error
from regard.serve.requests import Choice, Generation, Result, Stream, Token
from regard.serve.service import answer_id

LEAST_LOGPROB = -9999.0  # JSON has no −∞: a token that must not come has this one


@dataclass(frozen=True)
class Spelled:
    """A token as it is sent: where its text begins, and the likeliest tokens with their texts."""

    text: str
    offset: int
    logprob: float | None
    top: tuple[tuple[str, float], ...]


@dataclass
class Speller:
    """Spells the tokens of one choice."""

    model: Model
    offset: int = 0
    rows: list[Spelled] = field(default_factory=list)

    def add(self, token: Token) -> list[Spelled]:
        added: list[Spelled] = []
        end = self.offset + len(token.text)
        for place, id in enumerate(token.ids):
            # Several that are settled at once have one text together; part of a letter has none.
            text = token.text if len(token.ids) == 1 and token.text else self._name(id)
            logprob = token.logprobs[place] if token.logprobs else None
            if token.is_prompt and not self.rows and not added:
                logprob = None  # nothing comes before the first token to predict it
            top = dict(token.top[place]) if token.top and logprob is not None else {}
            if logprob is not None:
                top.setdefault(id, logprob)
            names = [
                (text if other == id else self._name(other), max(p, LEAST_LOGPROB))
                for other, p in top.items()
            ]
            logprob = None if logprob is None else max(logprob, LEAST_LOGPROB)
            added.append(Spelled(text, min(self.offset, end), logprob, tuple(names)))
            self.offset += len(text)
        self.offset = end
        self.rows += added
        if not token.ids and self.rows:
            # The rest of a text that was held back belongs to the last token.
            self.rows[-1] = replace(self.rows[-1], text=self.rows[-1].text + token.text)
        return added

    def _name(self, id: int) -> str:
        """A token by itself, with the space before it that begins a word."""
        text, begins_word = self.model.output_tokenizer.surface_form(id)
        return f" {text}" if begins_word else text


# ------------------------------------------------------------------ the two forms


class TextForm:
    """The form of `/v1/completions`."""

    prefix = "cmpl"

    def choice(
        self, index: int, text: str, rows: Sequence[Spelled] | None, finish: Any
    ) -> schema.TextChoice:
        logprobs = None
        if rows is not None:
            logprobs = schema.TextLogprobs(
                tokens=[row.text for row in rows],
                token_logprobs=[row.logprob for row in rows],
                top_logprobs=[_by_text(row) for row in rows],
                text_offset=[row.offset for row in rows],
            )
        return schema.TextChoice(index=index, text=text, logprobs=logprobs, finish_reason=finish)

    piece = choice

    def beginning(self, index: int) -> None:
        """Nothing comes before the first piece of a choice."""

    def whole(self, **values: Any) -> schema.Completion:
        return schema.Completion(**values)

    chunk = whole


def _by_text(row: Spelled) -> dict[str, float] | None:
    if row.logprob is None:
        return None
    # The likeliest comes first: of two tokens that read alike, it has the name.
    named: dict[str, float] = {}
    for text, logprob in row.top:
        named.setdefault(text, logprob)
    return named


class ChatForm:
    """The form of `/v1/chat/completions`."""

    prefix = "chatcmpl"

    def choice(
        self, index: int, text: str, rows: Sequence[Spelled] | None, finish: Any
    ) -> schema.ChatChoice:
        message = schema.AssistantMessage(content=text)
        logprobs = _chat_logprobs(rows)
        return schema.ChatChoice(
            index=index, message=message, logprobs=logprobs, finish_reason=finish
        )

    def piece(
        self, index: int, text: str, rows: Sequence[Spelled] | None, finish: Any
    ) -> schema.ChunkChoice:
        delta = schema.Delta(content=text)
        logprobs = _chat_logprobs(rows)
        return schema.ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish)

    def beginning(self, index: int) -> schema.ChunkChoice:
        return schema.ChunkChoice(index=index, delta=schema.Delta(role="assistant", content=""))

    def whole(self, **values: Any) -> schema.ChatCompletion:
        return schema.ChatCompletion(**values)

    def chunk(self, **values: Any) -> schema.ChatChunk:
        return schema.ChatChunk(**values)


def _chat_logprobs(rows: Sequence[Spelled] | None) -> schema.ChatLogprobs | None:
    if rows is None:
        return None

    def one(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": [*text.encode()]}

    content = [
        schema.TokenLogprob(
            **one(row.text, row.logprob or 0.0),
            top_logprobs=[schema.TopLogprob(**one(*other)) for other in row.top],
        )
        for row in rows
    ]
    return schema.ChatLogprobs(content=content)


Form = TextForm | ChatForm

# ------------------------------------------------------------------ one request


@dataclass
class Job:
    """A request for texts that was taken up: a stream of the engine for each of its inputs.

    `choices` are sent for each input. With `prompt_only`, what the engine has to write so that the
    prompt is echoed is left out.
    """

    form: Form
    name: str
    model: Model
    generations: list[Generation]
    streams: list[Stream]
    choices: int
    prompt_only: bool = False
    include_usage: bool = False
    running_usage: bool = False

    def __post_init__(self) -> None:
        head = {"id": answer_id(self.form.prefix), "created": int(time.time()), "model": self.name}
        self.head = head
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.look_values: int | None = None
        self.looks: list[dict[str, Any]] = []

    def _count(self, result: Result) -> None:
        self.prompt_tokens += result.usage.prompt_tokens
        if not self.prompt_only:
            self.completion_tokens += result.usage.completion_tokens
        if result.look is not None:
            self.looks.append(to_json(result.look))
            self.look_values = (self.look_values or 0) + result.usage.look_values

    def _usage(self, prompt: int, completion: int) -> schema.Usage:
        return schema.Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            look_values=self.look_values,
        )

    @property
    def usage(self) -> schema.Usage:
        return self._usage(self.prompt_tokens, self.completion_tokens)

    # -------------------------------------------------------------- whole

    async def answer(self) -> ApiModel:
        """All choices of all inputs, when they are complete."""
        try:
            choices: list[ApiModel] = []
            for generation, stream in zip(self.generations, self.streams, strict=True):
                choices += await self._choices(generation, stream, len(choices))
        finally:
            cancel(self.streams)
        looks = self.looks or None
        return self.form.whole(**self.head, choices=choices, usage=self.usage, look=looks)

    async def _choices(self, generation: Generation, stream: Stream, first: int) -> list[ApiModel]:
        spellers: defaultdict[int, Speller] = defaultdict(lambda: Speller(self.model))
        texts: defaultdict[int, str] = defaultdict(str)
        if generation.echo or generation.logprobs is not None:
            async for token in stream:
                if self.prompt_only and not token.is_prompt:
                    continue
                texts[token.index] += token.text
                spellers[token.index].add(token)
        result = await stream.result()
        self._count(result)
        parts: list[ApiModel] = []
        for choice in best(result.choices, self.choices):
            rows = None if generation.logprobs is None else spellers[choice.index].rows
            text = texts[choice.index] if generation.echo else choice.text
            finish = "length" if self.prompt_only else reason(choice)
            parts.append(self.form.choice(first + len(parts), text, rows, finish))
        return parts

    # -------------------------------------------------------------- in a stream

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events; a failure is one too, and the last one is `[DONE]`."""
        try:
            async for chunk in self._chunks():
                yield b"data: " + chunk.model_dump_json().encode() + b"\n\n"
        except Exception as failure:
            yield b"data: " + json.dumps(api_error(failure).body()).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def _chunks(self) -> AsyncIterator[ApiModel]:
        progress = [Progress(self, i) for i in range(len(self.streams))]
        async for number, event in merged(self.streams):
            pieces = progress[number].pieces(event)
            for piece in pieces:
                usage = None
                if self.running_usage:
                    prompt = sum(one.source.shape[-1] for one in self.generations)
                    usage = self._usage(prompt, sum(one.tokens for one in progress))
                yield self.form.chunk(**self.head, choices=[piece], usage=usage)
        if self.looks:
            yield self.form.chunk(**self.head, choices=[], look=self.looks)
        if self.include_usage:
            yield self.form.chunk(**self.head, choices=[], usage=self.usage)


class Progress:
    """How far the stream of one input has come: which choices have begun, and what is held back."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.generation = job.generations[number]
        self.first = number * job.choices  # the index of its first choice
        self.spellers: defaultdict[int, Speller] = defaultdict(lambda: Speller(job.model))
        self.lengths: Counter[int] = Counter()
        self.last: dict[int, Token] = {}  # by choice: one that may be its last
        self.begun: set[int] = set()

    @property
    def tokens(self) -> int:
        return self.lengths.total()

    def pieces(self, event: Token | Result) -> list[ApiModel]:
        """What a client is sent because of one more event."""
        if isinstance(event, Result):
            self.job._count(event)
            parts: list[ApiModel] = []
            for choice in event.choices:
                finish = "length" if self.job.prompt_only else reason(choice)
                token = self.last.pop(choice.index, Token(choice.index, (), ""))
                parts += self._piece(token, finish)
            return parts
        if event.is_prompt:
            return self._piece(event, None)
        if self.job.prompt_only:
            return []
        self.lengths[event.index] += len(event.ids)
        if self.lengths[event.index] >= self.generation.max_new_tokens:
            # What was held back of the text comes without a token of its own.
            waiting = self.last.get(event.index, Token(event.index, (), ""))
            self.last[event.index] = Token(
                event.index,
                waiting.ids + event.ids,
                waiting.text + event.text,
                waiting.logprobs + event.logprobs,
                waiting.top + event.top,
            )
            return []
        return self._piece(event, None)

    def _piece(self, token: Token, finish: str | None) -> list[ApiModel]:
        form = self.job.form
        index = self.first + token.index
        parts = []
        if index not in self.begun:
            self.begun.add(index)
            parts = [one for one in [form.beginning(index)] if one is not None]
        spelled = self.spellers[token.index].add(token)
        rows = spelled if self.generation.logprobs is not None and spelled else None
        return [*parts, form.piece(index, token.text, rows, finish)]


async def merged(streams: Sequence[Stream]) -> AsyncIterator[tuple[int, Token | Result]]:
    """The tokens and the results of several streams as they come, each with its stream's number."""
    events: asyncio.Queue[tuple[int, Token | Result | BaseException]] = asyncio.Queue()

    async def read(number: int, stream: Stream) -> None:
        try:
            async for token in stream:
                events.put_nowait((number, token))
            events.put_nowait((number, await stream.result()))
        except Exception as failure:
            events.put_nowait((number, failure))

    tasks = [asyncio.create_task(read(i, one)) for i, one in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            number, event = await events.get()
            if isinstance(event, BaseException):
                raise event
            left -= isinstance(event, Result)
            yield number, event
    finally:
        for task in tasks:
            task.cancel()


def best(choices: Sequence[Choice], count: int) -> Sequence[Choice]:
    """Of more choices than are sent, those with the highest log-probability per token."""
    if len(choices) <= count:
        return choices
    ranked = sorted(choices, key=lambda one: -one.log_probability / max(1, len(one.ids)))
    return ranked[:count]


def reason(choice: Choice) -> str:
    """Why a choice ends; one that the engine has given up is no answer."""
    if choice.finish_reason == "cancelled":
        raise ApiError("the request took longer than is allowed", status=504, code="timeout")
    return choice.finish_reason


def cancel(streams: Sequence[Stream]) -> None:
    """Has the engine drop what is not complete yet."""
    for stream in streams:
        if not stream.done:
            stream.cancel()
