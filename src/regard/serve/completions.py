"""Completions and chats: one way to the engine, and two forms of its answer, whole or in a stream.

A stream sends one event for each token of the engine. What may be the last token of a choice waits
for the reason why it ends, so that both come in one event. A whole answer is made of the same
pieces.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from regard.look.result import to_json
from regard.models import Model
from regard.serve import schema
from regard.serve.api import ApiError, ApiModel
from regard.serve.requests import Choice, Generation, Result, Stream, Token
from regard.serve.service import Call

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
    """Spells the tokens of one choice; it `adds_own` to the likeliest where it is none of them."""

    model: Model
    adds_own: bool = True
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
            if logprob is not None and self.adds_own:
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


@dataclass(frozen=True)
class Piece:
    """What a choice goes on with, or all of it; `rows` where log-probabilities were asked for."""

    index: int
    text: str
    rows: Sequence[Spelled] | None
    finish: Any = None


class Form(NamedTuple):
    """How one of the two routes writes its answers."""

    prefix: str  # of their ids
    answer: Callable[..., ApiModel]
    choice: Callable[[Piece], ApiModel]
    chunk: Callable[..., ApiModel]
    piece: Callable[[Piece], ApiModel]
    adds_own: bool = True  # the token that came to the likeliest
    beginning: Callable[[int], ApiModel] | None = None  # comes before the pieces of a choice


def _text_choice(piece: Piece) -> schema.TextChoice:
    logprobs = None
    if (rows := piece.rows) is not None:
        logprobs = schema.TextLogprobs(
            tokens=[row.text for row in rows],
            token_logprobs=[row.logprob for row in rows],
            top_logprobs=[_by_text(row) for row in rows],
            text_offset=[row.offset for row in rows],
        )
    return schema.TextChoice(
        index=piece.index, text=piece.text, logprobs=logprobs, finish_reason=piece.finish
    )


def _by_text(row: Spelled) -> dict[str, float] | None:
    named: dict[str, float] = {}
    for text, logprob in row.top:
        named.setdefault(text, logprob)  # of two tokens that read alike, the likelier has the name
    return named or None


def _chat_choice(piece: Piece) -> schema.ChatChoice:
    message = schema.AssistantMessage(content=piece.text)
    return schema.ChatChoice(index=piece.index, message=message, **_chat_rest(piece))


def _chat_piece(piece: Piece) -> schema.ChunkChoice:
    delta = schema.Delta(content=piece.text)
    return schema.ChunkChoice(index=piece.index, delta=delta, **_chat_rest(piece))


def _chat_beginning(index: int) -> schema.ChunkChoice:
    return schema.ChunkChoice(index=index, delta=schema.Delta(role="assistant", content=""))


def _chat_rest(piece: Piece) -> dict[str, Any]:
    def one(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": [*text.encode()]}

    logprobs = None
    if piece.rows is not None:
        content = [
            schema.TokenLogprob(
                **one(row.text, row.logprob or 0.0),
                top_logprobs=[schema.TopLogprob(**one(*other)) for other in row.top],
            )
            for row in piece.rows
        ]
        logprobs = schema.ChatLogprobs(content=content)
    return {"logprobs": logprobs, "finish_reason": piece.finish}


TEXTS = Form("cmpl", schema.Completion, _text_choice, schema.Completion, _text_choice)
CHATS = Form(
    "chatcmpl",
    schema.ChatCompletion,
    _chat_choice,
    schema.ChatChunk,
    _chat_piece,
    adds_own=False,
    beginning=_chat_beginning,
)

# ------------------------------------------------------------------ one request


class Job:
    """A request for texts that was taken up: a stream of the engine for each of its inputs.

    `choices` are sent for each input. With `prompt_only`, what the engine has to write so that the
    prompt is echoed is left out.
    """

    def __init__(
        self,
        call: Call,
        form: Form,
        generations: Sequence[Generation],
        choices: int,
        *,
        prompt_only: bool = False,
    ) -> None:
        self.call = call
        self.form = form
        self.choices = choices
        self.prompt_only = prompt_only
        self.head = call.head(form.prefix)
        self.prompt_tokens = sum(one.source.shape[-1] for one in generations)
        self.look_values: int | None = None
        self.looks: list[dict[str, Any]] = []
        self.streams = call.submit(generations)
        self.progress = [_Progress(self, i, one) for i, one in enumerate(generations)]

    @property
    def usage(self) -> schema.Usage:
        tokens = 0 if self.prompt_only else sum(one.lengths.total() for one in self.progress)
        return schema.Usage(
            prompt_tokens=self.prompt_tokens, completion_tokens=tokens, look_values=self.look_values
        )

    def _look(self, result: Result) -> None:
        if result.look is not None:
            self.looks.append(to_json(result.look))
            self.look_values = (self.look_values or 0) + result.usage.look_values

    async def answer(self) -> ApiModel:
        """All choices of all inputs, when they are complete."""
        choices: list[ApiModel] = []
        for progress, stream in zip(self.progress, self.streams, strict=True):
            async for token in stream:
                progress.pieces(token)
            result = await stream.result()
            self._look(result)
            pieces = progress.whole(best(result.choices, self.choices), len(choices))
            choices += map(self.form.choice, pieces)
        looks = self.looks or None
        return self.form.answer(**self.head, choices=choices, usage=self.usage, look=looks)

    async def chunks(self, options: schema.StreamOptions | None) -> AsyncIterator[ApiModel]:
        """The answer in pieces."""
        chunk = partial(self.form.chunk, **self.head)
        include_usage = options is not None and bool(options.include_usage)
        is_running = include_usage and options is not None and options.continuous_usage_stats
        async for number, event in merged(self.streams):
            if isinstance(event, Result):
                self._look(event)
            before = self.usage  # the beginning of a choice has no token
            pieces = self.progress[number].pieces(event)
            for i, piece in enumerate(pieces, 1):
                usage = self.usage if i == len(pieces) else before
                yield chunk(choices=[piece], usage=usage if is_running else None)
        if self.looks:
            yield chunk(choices=[], look=self.looks)
        if include_usage:
            yield chunk(choices=[], usage=self.usage)


class _Progress:
    """How far the stream of one input has come: which choices have begun, and what is held back."""

    def __init__(self, job: Job, number: int, generation: Generation) -> None:
        self.job = job
        self.generation = generation
        self.first = number * job.choices  # the index of its first choice
        self.spellers: defaultdict[int, Speller] = defaultdict(
            partial(Speller, job.call.model, job.form.adds_own)
        )
        self.texts: defaultdict[int, str] = defaultdict(str)
        self.lengths: Counter[int] = Counter()
        self.last: dict[int, Token] = {}  # by choice: one that may be its last
        self.begun: set[int] = set()

    def pieces(self, event: Token | Result) -> list[ApiModel]:
        """What a client is sent because of one more event."""
        if isinstance(event, Result):
            return [
                part
                for choice in event.choices
                for part in self._piece(
                    self.last.pop(choice.index, Token(choice.index, (), "")), self._reason(choice)
                )
            ]
        if self.job.prompt_only and not event.is_prompt:
            return []
        if not event.is_prompt:
            self.lengths[event.index] += len(event.ids)
            if self.lengths[event.index] >= self.generation.max_new_tokens:
                # What was held back of the text comes without a token of its own.
                self.last[event.index] = _joined(self.last.get(event.index), event)
                return []
        return self._piece(event, None)

    def _piece(self, token: Token, finish: str | None) -> list[ApiModel]:
        form = self.job.form
        index = self.first + token.index
        parts = []
        if form.beginning is not None and index not in self.begun:
            parts = [form.beginning(index)]
        self.begun.add(index)
        spelled = self.spellers[token.index].add(token)
        self.texts[token.index] += token.text
        rows = spelled if self.generation.logprobs is not None and spelled else None
        return [*parts, form.piece(Piece(index, token.text, rows, finish))]

    def whole(self, choices: Sequence[Choice], first: int) -> list[Piece]:
        """Complete choices, each with all that came of it."""
        parts = []
        for number, choice in enumerate(choices, first):
            if choice.index in self.last:
                self._piece(self.last.pop(choice.index), None)
            wants_rows = self.generation.logprobs is not None
            rows = self.spellers[choice.index].rows if wants_rows else None
            parts.append(Piece(number, self.texts[choice.index], rows, self._reason(choice)))
        return parts

    def _reason(self, choice: Choice) -> str:
        return "length" if self.job.prompt_only else reason(choice)


def _joined(first: Token | None, second: Token) -> Token:
    if first is None:
        return second
    return Token(
        second.index,
        first.ids + second.ids,
        first.text + second.text,
        first.logprobs + second.logprobs,
        first.top + second.top,
    )


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
