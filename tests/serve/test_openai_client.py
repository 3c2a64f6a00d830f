"""The official client drives the server; its own types parse every answer and chunk, strictly.

OpenAI's server itself answers null where these types have no null: the finish reason of a
completion's chunk before the last, and the log-probability of an echoed prompt's first token. These
two are filled in before they are parsed.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from openai import (
    BadRequestError,
    NotFoundError,
    OpenAI,
)
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from looked import wav
from serving import Served

CAT = "The cat sat on the mat."
DOG = "The dog does not sleep."
HELLO = [{"role": "user", "content": "The dog sees"}]
LISTENERS = ("whisper", "wav2vec2")


@pytest.fixture(scope="module")
def client(server: Served) -> OpenAI:
    return server.client()


def check_usage(usage: Any) -> None:
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > 0


# ------------------------------------------------------------------ completions

# What is asked of a language model, and how many choices come.
COMPLETIONS: dict[str, tuple[dict[str, Any], int]] = {
    "text": ({"prompt": "The dog"}, 1),
    "texts": ({"prompt": ["The dog", "The owl hears", "a"]}, 3),
    "ids": ({"prompt": [5, 6, 7]}, 1),
    "rows of ids": ({"prompt": [[5, 6], [7, 8, 9]]}, 2),
    "one token": ({"prompt": "The", "max_tokens": 1}, 1),
    "many tokens": ({"prompt": "The", "max_tokens": 60}, 1),
    "greedy": ({"prompt": "The", "temperature": 0}, 1),
    "two choices": ({"prompt": "The", "n": 2, "seed": 1}, 2),
    "choices of texts": ({"prompt": ["The", "a"], "n": 3, "seed": 1}, 6),
    "the best": ({"prompt": "The", "n": 1, "best_of": 4, "seed": 1}, 1),
    "the best two": ({"prompt": "The", "n": 2, "best_of": 4, "temperature": 0.7}, 2),
    "sampled": ({"prompt": "The", "temperature": 1.5, "top_p": 0.8, "seed": 7}, 1),
    "stop": ({"prompt": "The", "stop": "e"}, 1),
    "stops": ({"prompt": "The", "stop": ["e", "owl"]}, 1),
    "logprobs": ({"prompt": "The", "logprobs": 3}, 1),
    "no likeliest": ({"prompt": "The", "logprobs": 0}, 1),
    "logprobs of choices": ({"prompt": "The", "logprobs": 2, "n": 2, "seed": 3}, 2),
    "neutral": (
        {
            "prompt": "The",
            "suffix": None,
            "frequency_penalty": 0,
            "presence_penalty": 0.0,
            "logit_bias": {},
        },
        1,
    ),
    "echo": ({"prompt": "The dog", "echo": True}, 1),
    "beam": ({"prompt": "The", "extra_body": {"beam": 3}}, 1),
    "beams": ({"prompt": "The", "n": 2, "extra_body": {"beam": 3}}, 2),
    "top_k": ({"prompt": "The", "seed": 1, "extra_body": {"top_k": 5, "min_p": 0.01}}, 1),
    "repetition": ({"prompt": "The", "extra_body": {"repetition_penalty": 1.3}}, 1),
    "ignored": ({"prompt": "The", "user": "someone"}, 1),
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(client: OpenAI, name: str) -> None:
    asked, count = COMPLETIONS[name]
    settings = {"max_tokens": 5, **asked}
    answer = client.completions.create(model="gpt2", **settings)
    assert isinstance(answer, Completion)
    assert [choice.index for choice in answer.choices] == [*range(count)]
    assert answer.id.startswith("cmpl-")
    check_usage(answer.usage)
    for choice in answer.choices:
        logprobs = choice.logprobs
        assert (logprobs is None) == ("logprobs" not in asked)
        if logprobs is not None:
            assert logprobs.tokens
            assert len(logprobs.token_logprobs or ()) == len(logprobs.tokens)
            assert all(value <= 0 for value in logprobs.token_logprobs or ())
            # The likeliest, and the one that came.
            wanted = max(1, asked["logprobs"])
            assert all(1 <= len(top) <= wanted + 1 for top in logprobs.top_logprobs or ())
    if settings["max_tokens"] == 60:
        assert answer.choices[0].finish_reason == "length"


def strict_chunk(chunk: Any) -> Completion:
    """A chunk as the client's type parses it where no null stands in for a finish reason."""
    values = copy.deepcopy(chunk.to_dict())
    for choice in values["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        logprobs = choice.get("logprobs") or {}
        # Of an echoed prompt.
        values_of = logprobs.get("token_logprobs", [])
        logprobs["token_logprobs"] = [0.0 if one is None else one for one in values_of]
        logprobs["top_logprobs"] = [top or {} for top in logprobs.get("top_logprobs", [])]
    return Completion.model_validate(values, strict=True)


STREAMED = {
    name: one for name, one in COMPLETIONS.items() if "best" not in name and "temper" not in name
}


@pytest.mark.parametrize("name", STREAMED)
def test_streamed_completions(server: Served, name: str) -> None:
    """The pieces together are the whole answer."""
    asked, count = STREAMED[name]
    settings: dict[str, Any] = {"max_tokens": 5, **asked, "model": "gpt2"}
    lenient = server.client(_strict_response_validation=False)
    whole = lenient.completions.create(**settings)
    stream = lenient.completions.create(
        stream=True, stream_options={"include_usage": True}, **settings
    )
    chunks = [strict_chunk(chunk) and chunk for chunk in stream]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    *pieces, last = chunks
    assert last.choices == []
    assert last.usage == whole.usage
    assert all(chunk.usage is None for chunk in pieces)
    reasons: dict[int, list[str]] = {}
    texts = dict.fromkeys(range(count), "")
    for chunk in pieces:
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason is not None:
            reasons.setdefault(choice.index, []).append(choice.finish_reason)
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert reasons == {choice.index: [choice.finish_reason] for choice in whole.choices}


def test_a_completion_is_what_the_model_says_in_python(server: Served, client: OpenAI) -> None:
    model = server.model("gpt2")
    for prompt in ("The dog", "owl hears the"):
        for options in ({}, {"beam": 3}):
            wanted = model.generate(prompt, max_new_tokens=12, **options)
            answer = client.completions.create(
                model="gpt2", prompt=prompt, max_tokens=12, extra_body=options
            )
            assert answer.choices[0].text == wanted
    translator = server.model("demo")
    for sentence in (CAT, DOG):
        answer = client.completions.create(model="demo", prompt=sentence)
        assert answer.choices[0].text == translator.translate(sentence)
        assert answer.choices[0].finish_reason == "stop"


def test_an_echoed_prompt_is_scored(server: Served) -> None:
    """The log-probabilities of a prompt add up to its likelihood."""
    lenient = server.client(_strict_response_validation=False)
    text = "The dog sees the cat."
    answer = lenient.completions.create(
        model="gpt2", prompt=text, echo=True, max_tokens=0, logprobs=2
    )
    [choice] = answer.choices
    assert choice.text == text
    assert answer.usage.completion_tokens == 0
    logprobs: Any = choice.logprobs
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert "".join(logprobs.tokens) == text
    assert [text[i:] for i in logprobs.text_offset] == [
        "".join(logprobs.tokens[i:]) for i in range(len(logprobs.tokens))
    ]
    nats, _ = server.model("gpt2").nll(text)
    assert -sum(logprobs.token_logprobs[1:]) == pytest.approx(nats, abs=1e-3)


def test_the_same_seed_draws_the_same(client: OpenAI) -> None:
    def drawn(**options: Any) -> list[str]:
        answer = client.completions.create(
            model="gpt2", prompt="The", max_tokens=12, temperature=1.0, n=2, **options
        )
        return [choice.text for choice in answer.choices]

    assert drawn(seed=3) == drawn(seed=3)
    assert drawn(seed=3) != drawn(seed=4)
    assert drawn() != drawn()
    assert len({*drawn(seed=3)}) == 2


def test_what_is_ignored_is_said(client: OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model="gpt2", prompt="The", max_tokens=1, user="me", extra_body={"metadata": {"a": "b"}}
    )
    assert raw.headers["x-regard-ignored"] == "metadata, user"
    bare = client.completions.with_raw_response.create(model="gpt2", prompt="The", max_tokens=1)
    assert "x-regard-ignored" not in bare.headers


# ------------------------------------------------------------------ chats

CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": HELLO},
    "roles": {
        "messages": [
            {"role": "system", "content": "Say"},
            *HELLO,
            {"role": "assistant", "content": "a"},
            *HELLO,
        ]
    },
    "parts": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "The"}, {"type": "text", "text": " dog"}],
            }
        ]
    },
    "limit": {"messages": HELLO, "max_completion_tokens": 2},
    "choices": {"messages": HELLO, "n": 2, "seed": 2},
    "logprobs": {"messages": HELLO, "logprobs": True},
    "likeliest": {"messages": HELLO, "logprobs": True, "top_logprobs": 4},
    "stop": {"messages": HELLO, "stop": ["e"]},
    "sampled": {"messages": HELLO, "temperature": 0.8, "top_p": 0.9, "seed": 5},
    "neutral": {
        "messages": HELLO,
        "response_format": {"type": "text"},
        "tools": [],
        "modalities": ["text"],
    },
    "ignored": {"messages": HELLO, "store": False, "service_tier": "auto", "metadata": {"a": "b"}},
}


@pytest.mark.parametrize("name", CHATS)
def test_chats(client: OpenAI, name: str) -> None:
    """Whole, and in a stream: the same."""
    settings: dict[str, Any] = {"max_tokens": 4, "model": "gpt2", **CHATS[name]}
    if "max_completion_tokens" in settings:
        del settings["max_tokens"]
    answer = client.chat.completions.create(**settings)
    assert isinstance(answer, ChatCompletion)
    check_usage(answer.usage)
    chunks = list(
        client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **settings
        )
    )
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    *pieces, last = chunks
    assert (last.choices, last.usage) == ([], answer.usage)
    for choice in answer.choices:
        deltas = [one for chunk in pieces for one in chunk.choices if one.index == choice.index]
        assert deltas[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in deltas) == choice.message.content
        assert [one.finish_reason for one in deltas if one.finish_reason] == [choice.finish_reason]
        if choice.logprobs is not None:
            content = choice.logprobs.content or []
            streamed = [row for one in deltas if one.logprobs for row in one.logprobs.content or ()]
            assert [row.logprob for row in streamed] == [row.logprob for row in content]
            assert all(bytes(row.bytes or ()).decode() == row.token for row in content)
            count = settings.get("top_logprobs", 0)
            assert all(len(row.top_logprobs) == count for row in content)


def test_a_chat_is_a_completion_of_what_the_template_writes(server: Served, client: OpenAI) -> None:
    prompt = server.model("gpt2").render_chat(HELLO)
    assert prompt == "user: The dog sees\nassistant:"
    wanted = client.completions.create(model="gpt2", prompt=prompt, max_tokens=6)
    answer = client.chat.completions.create(model="gpt2", messages=HELLO, max_tokens=6)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == wanted.choices[0].text
    assert answer.usage == wanted.usage


def test_a_translator_reads_the_last_user_message(server: Served, client: OpenAI) -> None:
    messages: Any = [
        {"role": "system", "content": "Translate."},
        {"role": "user", "content": DOG},
        {"role": "assistant", "content": "…"},
        {"role": "user", "content": CAT},
    ]
    answer = client.chat.completions.create(model="demo", messages=messages)
    assert answer.choices[0].message.content == server.model("demo").translate(CAT)
    n_best = client.chat.completions.create(model="demo", messages=messages, n=3)
    wanted = server.model("demo").translate(CAT, beam=4, num_return_sequences=3)
    assert [choice.message.content for choice in n_best.choices] == wanted


# ------------------------------------------------------------------ models, vectors


def test_models(server: Served, client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == server.service.models.names()
    for name in names:
        assert client.models.retrieve(name).id == name


INPUTS: dict[str, Any] = {
    "text": "The dog sees the cat.",
    "texts": ["The dog sees the cat.", "owl"],
    "ids": [5, 6, 7],
    "rows of ids": [[5, 6, 7], [8, 9]],
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dimensions", [None, 4])
def test_embeddings(server: Served, client: OpenAI, name: str, dimensions: int | None) -> None:
    """As numbers and as base64: the same, and those of the model."""
    asked = INPUTS[name]
    options: dict[str, Any] = {} if dimensions is None else {"dimensions": dimensions}
    numbers = client.embeddings.create(
        model="embedder", input=asked, encoding_format="float", **options
    )
    # The client asks for base64 by default, and decodes it after its types were checked.
    lenient = server.client(_strict_response_validation=False)
    encoded = lenient.embeddings.create(model="embedder", input=asked, **options)
    vectors = np.array([one.embedding for one in numbers.data])
    np.testing.assert_allclose(vectors, [one.embedding for one in encoded.data], atol=1e-7)
    assert [one.index for one in numbers.data] == [*range(len(vectors))]
    assert numbers.usage.prompt_tokens == numbers.usage.total_tokens > 0
    model = server.model("embedder")
    if "text" in name:
        wanted = model.embed(asked)
    else:
        wanted = model.embed_ids(asked if name == "rows of ids" else [asked])
    wanted = np.atleast_2d(wanted.numpy())
    if dimensions is not None:
        wanted = wanted[:, :dimensions]
        wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, wanted, atol=1e-6)


# ------------------------------------------------------------------ decisions

CHOICE = {
    "type": "choice",
    "name": "kind",
    "instructions": "Which?",
    "choices": [{"value": "good", "description": "fine"}, {"value": "bad"}],
}
SCORE = {
    "type": "score",
    "instructions": "How good?",
    "levels": [{"label": "bad"}, {"label": "good"}],
}
PREDICATE = {"type": "predicate", "name": "good", "instructions": "It is good."}
MESSAGES = [{"role": "user", "content": [{"type": "input_text", "text": "The dog"}]}]


@pytest.mark.parametrize("model", ["classifier", "gpt2"])
@pytest.mark.parametrize("text", ["The dog sees the cat.", MESSAGES], ids=["text", "messages"])
def test_decisions(server: Served, client: OpenAI, model: str, text: Any) -> None:
    questions: Any = [CHOICE, SCORE, PREDICATE]
    answer = client.decisions.create(model=model, input=text, questions=questions)
    asked: list[Any] = [one.to_dict() for one in answer.answers]
    choice, score, predicate = asked
    shares = {one["value"]: one["probability"] for one in choice["probabilities"]}
    assert sum(shares.values()) == pytest.approx(1)
    assert choice["choice"] == max(shares, key=shares.__getitem__)
    assert choice["confidence"] == max(shares.values())
    levels = {one["label"]: one["probability"] for one in score["probabilities"]}
    assert score["score"] == pytest.approx(levels["good"])
    assert 0 < predicate["probability"] < 1
    check = answer.usage
    assert check.input_tokens == check.total_tokens > 0
    if model == "classifier":
        said = "The dog" if text is MESSAGES else text
        wanted = server.model(model).classify(said)
        assert shares == pytest.approx(wanted)
        assert predicate["probability"] == pytest.approx(wanted["good"])


# ------------------------------------------------------------------ recordings


@pytest.mark.parametrize("model", LISTENERS)
@pytest.mark.parametrize("form", ["json", "text", "srt", "vtt", "verbose_json"])
def test_transcriptions(server: Served, client: OpenAI, model: str, form: Any) -> None:
    sound = wav(1.5)
    answer: Any = client.audio.transcriptions.create(
        model=model, file=("a.wav", sound), response_format=form
    )
    wanted = server.model(model).transcribe(sound)
    match form:
        case "text":
            assert answer == f"{wanted}\n"
        case "srt":
            assert ("-->" in answer) == bool(wanted)
        case "vtt":
            assert answer.startswith("WEBVTT")
        case "json":
            assert answer.text == wanted
            assert answer.usage.seconds == 1.5
        case _:
            assert answer.text == wanted
            assert answer.duration == 1.5
            assert " ".join(one.text for one in answer.segments) == " ".join(wanted.split())


@pytest.mark.parametrize("model", LISTENERS)
def test_words_have_their_times(server: Served, client: OpenAI, model: str) -> None:
    answer: Any = client.audio.transcriptions.create(
        model=model,
        file=("a.wav", wav(1.5)),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    words = answer.words
    assert " ".join(one.word for one in words) == " ".join(answer.text.split())
    times = [time for one in words for time in (one.start, one.end)]
    assert all(0 <= time <= 1.5 for time in times)
    assert all(one.start <= one.end for one in words)
    assert [one.start for one in words] == sorted(one.start for one in words)


def test_log_probabilities_and_streams_of_a_recording(server: Served, client: OpenAI) -> None:
    sound = ("a.wav", wav(1.5))
    whole = client.audio.transcriptions.create(model="whisper", file=sound, include=["logprobs"])
    assert all((one.logprob or 0) <= 0 for one in whole.logprobs or ())
    events = list(client.audio.transcriptions.create(model="whisper", file=sound, stream=True))
    deltas = [one.delta for one in events if one.type == "transcript.text.delta"]
    assert "".join(deltas) == whole.text
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == whole.text
    drawn = client.audio.transcriptions.create(model="whisper", file=sound, temperature=1.0)
    assert isinstance(drawn.text, str)


# ------------------------------------------------------------------ mistakes

MISTAKES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "suffix": ("completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    "penalty": ("completions", {"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty"),
    "bias": ("completions", {"prompt": "a", "logit_bias": {"5": 3}}, "logit_bias"),
    "unknown": ("completions", {"prompt": "a", "extra_body": {"blub": 1}}, "blub"),
    "no texts": ("completions", {"prompt": []}, "prompt"),
    "token": ("completions", {"prompt": [10_000_000]}, "prompt"),
    "negative token": ("completions", {"prompt": [-1]}, "prompt.0"),
    "temperature": ("completions", {"prompt": "a", "temperature": -1}, "temperature"),
    "hot": ("completions", {"prompt": "a", "temperature": 3.0}, "temperature"),
    "share": ("completions", {"prompt": "a", "top_p": 1.5}, "top_p"),
    "no choice": ("completions", {"prompt": "a", "n": 0}, "n"),
    "many choices": ("completions", {"prompt": "a", "n": 5000}, "n"),
    "greedy choices": ("completions", {"prompt": "a", "n": 2, "temperature": 0}, "n"),
    "few of the best": ("completions", {"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
    "the best in a stream": (
        "completions",
        {"prompt": "a", "best_of": 2, "stream": True},
        "best_of",
    ),
    "logprobs": ("completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
    "logprobs of a beam": (
        "completions",
        {"prompt": "a", "logprobs": 1, "extra_body": {"beam": 2}},
        "logprobs",
    ),
    "wide": ("completions", {"prompt": "a", "extra_body": {"beam": 500}}, "beam"),
    "stops": ("completions", {"prompt": "a", "stop": ["a"] * 40}, "stop"),
    "empty stop": ("completions", {"prompt": "a", "stop": ""}, "stop"),
    "nothing": ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    "too much": ("completions", {"prompt": "a", "max_tokens": 500}, "max_tokens"),
    "too long": ("completions", {"prompt": "dog " * 300}, "prompt"),
    "stream options": (
        "completions",
        {"prompt": "a", "stream_options": {"include_usage": True}},
        "stream_options",
    ),
    "type": ("completions", {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
    "look": (
        "completions",
        {"prompt": "a", "extra_body": {"look": {"hidden": ["nowhere"]}}},
        "look",
    ),
    "no messages": ("chat", {"messages": []}, "messages"),
    "role": ("chat", {"messages": [{"role": "king", "content": "a"}]}, "messages.0.role"),
    "picture": (
        "chat",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://a.b/c.png"}}],
                }
            ]
        },
        "messages.0.content.0.type",
    ),
    "tools": (
        "chat",
        {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools",
    ),
    "format": (
        "chat",
        {"messages": HELLO, "response_format": {"type": "json_object"}},
        "response_format",
    ),
    "likeliest": ("chat", {"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
    "two limits": (
        "chat",
        {"messages": HELLO, "max_tokens": 2, "max_completion_tokens": 2},
        "max_tokens",
    ),
    "no vector": ("embeddings", {"input": "a", "model": "gpt2"}, "model"),
    "empty text": ("embeddings", {"input": "", "model": "embedder"}, "input"),
    "dimensions": (
        "embeddings",
        {"input": "a", "model": "embedder", "dimensions": 999},
        "dimensions",
    ),
    "long text": ("embeddings", {"input": "dog " * 500, "model": "embedder"}, "input"),
    "long ids": ("embeddings", {"input": [5] * 500, "model": "embedder"}, "input"),
    "long input": (
        "decisions",
        {"input": "dog " * 500, "model": "classifier", "questions": [CHOICE]},
        "input",
    ),
    "encoding": (
        "embeddings",
        {"input": "a", "model": "embedder", "encoding_format": "hex"},
        "encoding_format",
    ),
    "labels": (
        "decisions",
        {
            "input": "a",
            "model": "classifier",
            "questions": [{**CHOICE, "choices": [{"value": "x"}, {"value": "y"}]}],
        },
        "questions.0.choices",
    ),
    "alike": (
        "decisions",
        {
            "input": "a",
            "model": "classifier",
            "questions": [{**CHOICE, "choices": [{"value": "x"}, {"value": "x"}]}],
        },
        "questions.0.choices",
    ),
    "no label": (
        "decisions",
        {"input": "a", "model": "classifier", "questions": [{**PREDICATE, "name": "x"}]},
        "questions.0.name",
    ),
    "no classifier": ("decisions", {"input": "a", "model": "demo", "questions": [CHOICE]}, "model"),
    "no recording": ("audio", {"file": ("a.wav", b"no"), "model": "whisper"}, "file"),
    "no listener": ("audio", {"file": ("a.wav", b"no"), "model": "gpt2"}, "model"),
    "granularity": (
        "audio",
        {"file": ("a.wav", b"no"), "model": "whisper", "timestamp_granularities": ["word"]},
        "timestamp_granularities",
    ),
    "audio prompt": (
        "audio",
        {"file": ("a.wav", b"no"), "model": "whisper", "prompt": "x"},
        "prompt",
    ),
    "no text": ("completions", {"prompt": "a", "model": "classifier"}, "model"),
    "no template": ("chat", {"messages": HELLO, "model": "classifier"}, "model"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_its_field(client: OpenAI, name: str) -> None:
    route, asked, field = MISTAKES[name]
    calls: dict[str, Any] = {
        "completions": client.completions.create,
        "chat": client.chat.completions.create,
        "embeddings": client.embeddings.create,
        "decisions": client.decisions.create,
        "audio": client.audio.transcriptions.create,
    }
    with pytest.raises(BadRequestError) as raised:
        calls[route](**{"model": "gpt2", **asked})
    error = raised.value
    assert error.param == field
    assert error.type == "invalid_request_error"
    assert error.body["message"]  # type: ignore[index]


def test_a_model_that_is_not_there(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as raised:
        client.completions.create(model="gpt3", prompt="a")
    assert raised.value.code == "model_not_found"
    assert "gpt2" in str(raised.value)
    with pytest.raises(NotFoundError):
        client.models.retrieve("nothing/here")


def test_both_lengths_are_said(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"30\d tokens.* reads 96") as raised:
        client.completions.create(model="gpt2", prompt=[5] * 300)
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(BadRequestError, match=r"50\d tokens, and this model reads \d+"):
        client.embeddings.create(model="embedder", input=[5] * 500)
    with pytest.raises(BadRequestError, match=r"2 tokens, and 500 more .* 9[45] more"):
        client.completions.create(model="gpt2", prompt=[5, 5], max_tokens=500)


# ------------------------------------------------------------------ glass walls


def test_what_went_on_inside_comes_with_the_answer(server: Served, client: OpenAI) -> None:
    asked = {
        "attention": [{"name": "decoder.0.cross", "heads": [0]}],
        "hidden": ["encoder.0.residual"],
        "alignment": True,
        "lens": 2,
    }
    plain = client.completions.create(model="demo", prompt=CAT)
    answer = client.completions.create(model="demo", prompt=CAT, extra_body={"look": asked})
    assert answer.choices[0].text == plain.choices[0].text
    looks: Any = answer.to_dict()["look"]
    [seen] = looks
    model = server.model("demo")
    run = model.look(CAT, target=plain.choices[0].text, ask=("*.weights", "encoder.0.residual"))
    shown = run.attention("decoder.0.cross", heads=[0]).weights
    weights = seen["attention"]["decoder.0.cross"]["weights"]
    np.testing.assert_allclose(weights, shown, atol=1e-6)
    hidden = seen["hidden"]["encoder.0.residual"]
    np.testing.assert_allclose(hidden, run["encoder.0.residual"], atol=1e-5)
    assert {"alignment", "lens"} <= {*seen}
    assert answer.usage.look_values > 0  # type: ignore[union-attr]
    # In a stream it comes after the text, before the usage.
    lenient = server.client(_strict_response_validation=False)
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    stream = lenient.completions.create(
        model="demo", prompt=CAT, extra_body={"look": asked}, **options
    )
    *_, before, last = stream
    assert before.to_dict()["look"] == [seen]
    assert (before.choices, last.choices) == ([], [])
    assert last.usage == answer.usage


def test_a_head_that_is_off_changes_this_answer_alone(client: OpenAI) -> None:
    heads = [(f"decoder.{layer}.cross", head) for layer in (0, 1) for head in range(4)]
    off = {"heads_off": heads}
    before = client.completions.create(model="demo", prompt=CAT).choices[0].text
    changed = client.completions.create(model="demo", prompt=CAT, extra_body={"look": off})
    after = client.completions.create(model="demo", prompt=CAT).choices[0].text
    assert before == after != changed.choices[0].text
