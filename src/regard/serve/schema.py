"""OpenAI's requests for texts and the answers to them, as far as this server knows them.

A request is declared once: these types check it, and the OpenAPI document is made of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, computed_field, model_validator
from pydantic_core import PydanticCustomError

from regard.serve.api import (
    ApiModel,
    NoList,
    NoNumber,
    NoObject,
    NoSwitch,
    NoValue,
    Request,
    TextFormat,
    TextOnly,
)
from regard.serve.requests import LookRequest, Text

Ids: TypeAlias = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
Texts: TypeAlias = Annotated[list[Text], Field(min_length=1)]
Rows: TypeAlias = Annotated[list[Ids], Field(min_length=1)]
Inputs: TypeAlias = Text | Texts | Ids | Rows
Count: TypeAlias = Annotated[int, Field(ge=1, le=1 << 20)]
CountOrNone: TypeAlias = Annotated[int, Field(ge=0, le=1 << 20)]
Code: TypeAlias = Annotated[str, Field(min_length=1, max_length=40)]  # of a language
Stop: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
FinishReason: TypeAlias = Literal["stop", "length"]


class Usage(ApiModel):
    prompt_tokens: int
    completion_tokens: int = 0
    look_values: int | None = None  # ours: the numbers that `look` has returned

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Answer(ApiModel):
    """What all answers begin with."""

    id: str
    created: int
    model: str


# ------------------------------------------------------------------ what is asked


class StreamOptions(ApiModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: NoSwitch = None


class DecodingRequest(Request):
    """What texts and chats share. The fields from `top_k` on are this server's own."""

    frequency_penalty: NoNumber = None
    presence_penalty: NoNumber = None
    logit_bias: NoObject = None
    logprobs: int | bool | None = None
    max_tokens: Count | None = None
    n: Count | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: Stop | list[Stop] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    min_tokens: CountOrNone | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    beam: Count | None = None
    length_penalty: Annotated[str, Field(max_length=40)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=1e6)] | None = None
    language: Code | None = None
    look: LookRequest | None = None

    @model_validator(mode="after")
    def _streamed(self) -> DecodingRequest:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options needs stream: true")
        return self

    @property
    def sampling(self) -> dict[str, Any]:
        """The decoding options that were given, by the names that `regard.decode` has for them."""
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "beam", "length_penalty")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


class CompletionRequest(DecodingRequest):
    """`POST /v1/completions`. Of an encoder–decoder, the prompt is the source."""

    prompt: Inputs
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: CountOrNone | None = None
    max_tokens: CountOrNone | None = None
    suffix: NoValue = None


class TextPart(ApiModel):
    type: Literal["text"]
    text: Text


class Message(ApiModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=1024)]
    name: Annotated[str, Field(max_length=200)] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(DecodingRequest):
    """`POST /v1/chat/completions`. Of an encoder–decoder, the last user message is the source."""

    messages: list[Message] = Field(min_length=1, max_length=1024)
    logprobs: bool | None = None
    top_logprobs: CountOrNone | None = None
    max_completion_tokens: Count | None = None
    response_format: TextFormat = None
    tools: NoList = None
    tool_choice: NoValue = None
    functions: NoList = None
    function_call: NoValue = None
    parallel_tool_calls: NoValue = None
    modalities: TextOnly = None
    audio: NoValue = None
    prediction: NoValue = None
    reasoning_effort: NoValue = None
    verbosity: NoValue = None
    web_search_options: NoValue = None
    moderation: NoValue = None

    @model_validator(mode="after")
    def _with_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs needs logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise PydanticCustomError(
                "max_tokens", "max_tokens and max_completion_tokens are one limit: give one"
            )
        return self


# ------------------------------------------------------------------ what is answered


class TextLogprobs(ApiModel):
    """Of each token: its text, its log-probability, the likeliest, where its text begins."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(ApiModel):
    index: int
    text: str
    prompt_logprobs: None = None  # of vLLM; here `echo` with `logprobs` tells them
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None


class TextAnswer(Answer):
    """What the answers of both routes have, whole and in a stream."""

    usage: Usage | None = None
    look: list[dict[str, Any]] | None = None


class Completion(TextAnswer):
    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]


class TopLogprob(ApiModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(ApiModel):
    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(ApiModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(ApiModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(TextAnswer):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class Delta(ApiModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(ApiModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(TextAnswer):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]
