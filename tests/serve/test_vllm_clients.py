"""What vLLM's published tests ask of these routes, in our own words and by the official client.

What they ask beyond OpenAI's document and is refused here is a table at the end: each is an error
that names its field.
"""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from looked import wav
from serving import Served

PROMPT = "The dog sees"
IDS = [5, 6, 7, 8, 9]
HELLO: Any = [
    {"role": "system", "content": "You say what is true."},
    {"role": "user", "content": "The dog sees"},
]
QUICK: dict[str, Any] = {"max_tokens": 5, "temperature": 0.0}


@pytest.fixture(scope="module")
def client(server: Served) -> OpenAI:
    """As vLLM's tests have it: null may stand where the client's types have none."""
    return server.client(_strict_response_validation=False)


def complete(client: OpenAI, **asked: Any) -> Any:
    return client.completions.create(**{"model": "gpt2", "prompt": PROMPT, **QUICK, **asked})


def chat(client: OpenAI, **asked: Any) -> Any:
    settings = {"model": "gpt2", "messages": HELLO, "max_completion_tokens": 5, "temperature": 0.0}
    return client.chat.completions.create(**{**settings, **asked})


# ------------------------------------------------------------------ completions


@pytest.mark.parametrize("prompt", [PROMPT, IDS], ids=["text", "ids"])
def test_one_completion(server: Served, client: OpenAI, prompt: Any) -> None:
    answer = complete(client, prompt=prompt)
    assert answer.id
    [choice] = answer.choices
    assert choice.text
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert choice.prompt_logprobs is None
    ids = prompt if prompt is IDS else server.model("gpt2").input_tokenizer.input_ids(prompt)
    assert answer.usage.to_dict() == {
        "prompt_tokens": len(ids),
        "completion_tokens": 5,
        "total_tokens": len(ids) + 5,
        "look_values": None,
    }


def test_ids_beyond_the_vocabulary(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="out of vocabulary"):
        complete(client, prompt=[5, 6, 10_000_000], echo=True)


@pytest.mark.parametrize(("asked", "least", "most"), [(0, 1, 1), (5, 4, 6)])
def test_likeliest_tokens_of_a_completion(
    client: OpenAI, asked: int, least: int, most: int
) -> None:
    logprobs = complete(client, prompt=IDS, logprobs=asked).choices[0].logprobs
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 5
    # Two tokens that read alike, as parts of a letter do, are one entry.
    assert least <= len(logprobs.top_logprobs[0]) <= most
    assert min(logprobs.top_logprobs[0].values()) >= -9999


@pytest.mark.parametrize("stream", [False, True])
def test_too_many_likeliest_tokens(client: OpenAI, stream: bool) -> None:
    with pytest.raises(BadRequestError):
        complete(client, logprobs=21, stream=stream)
    with pytest.raises(BadRequestError):
        chat(client, logprobs=True, top_logprobs=21, stream=stream)
    assert complete(client).choices[0].text


def test_a_stream_is_the_whole_in_pieces(client: OpenAI) -> None:
    whole = complete(client).choices[0].text
    chunks = list(complete(client, stream=True))
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert reasons == [*[None] * (len(chunks) - 1), "length"]
    assert chunks[-1].choices[0].text  # the reason comes with the last token


def test_samples_of_a_stream_come_by_their_index(client: OpenAI) -> None:
    chunks: list[list[str]] = [[], [], []]
    reasons = 0
    for chunk in complete(client, n=3, temperature=1.0, stream=True):
        chunks[chunk.choices[0].index].append(chunk.choices[0].text)
        reasons += chunk.choices[0].finish_reason is not None
    assert reasons == 3
    assert all(len(one) <= 5 for one in chunks)


USAGES = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("route", [complete, chat])
@pytest.mark.parametrize(("include", "running"), USAGES)
def test_usage_in_a_stream(client: OpenAI, route: Any, include: bool, running: bool) -> None:
    options = {"include_usage": include, "continuous_usage_stats": running}
    extra = {"min_tokens": 5}
    chunks = list(route(client, stream=True, stream_options=options, extra_body=extra))
    pieces = [chunk for chunk in chunks if chunk.choices]
    if not include:
        assert pieces == chunks
        assert all(chunk.usage is None for chunk in chunks)
        return
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert all((chunk.usage is not None) == running for chunk in pieces)
    counts = [chunk.usage.completion_tokens for chunk in pieces if running]
    for chunk in chunks[-1:] + pieces * running:
        usage = chunk.usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    if route is chat:
        counts = counts[1:]  # the role comes before the first token
    assert counts == sorted({*counts})
    assert 0 not in counts


@pytest.mark.parametrize("route", [complete, chat])
@pytest.mark.parametrize("name", ["include_usage", "continuous_usage_stats"])
@pytest.mark.parametrize("value", [None, True])
def test_usage_of_no_stream(client: OpenAI, route: Any, name: str, value: Any) -> None:
    with pytest.raises(BadRequestError):
        route(client, stream=False, stream_options={name: value})


@pytest.mark.parametrize("prompt", [PROMPT, IDS], ids=["text", "ids"])
def test_a_batch_is_its_prompts_one_by_one(client: OpenAI, prompt: Any) -> None:
    batch = complete(client, prompt=[prompt, prompt])
    assert batch.choices[0].text == batch.choices[1].text == complete(client).choices[0].text or (
        prompt is IDS
    )
    options: dict[str, Any] = {"n": 2, "extra_body": {"beam": 2}, "temperature": None}
    beams = [one.text for one in complete(client, prompt=[prompt, prompt], **options).choices]
    assert beams[:2] == beams[2:]
    texts = {0: "", 1: ""}
    for chunk in complete(client, prompt=[prompt, prompt], stream=True):
        [choice] = chunk.choices
        texts[choice.index] += choice.text
    assert texts[0] == texts[1] == batch.choices[0].text


@pytest.mark.parametrize("prompt", [PROMPT, IDS], ids=["text", "ids"])
@pytest.mark.parametrize("count", [0, 1])
def test_an_echo_with_its_likelihood(
    server: Served, client: OpenAI, prompt: Any, count: int
) -> None:
    [choice] = complete(client, prompt=prompt, echo=True, logprobs=count).choices
    text = prompt if prompt is PROMPT else server.model("gpt2").output_tokenizer.decode(prompt)
    assert choice.text.startswith(text)
    logprobs = choice.logprobs
    lengths = {len(one) for one in logprobs.to_dict().values()}
    assert len(lengths) == 1
    assert lengths.pop() > 5
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert all(max(count, 1) <= len(one) <= count + 1 for one in logprobs.top_logprobs[1:])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_an_echo_in_a_stream(client: OpenAI, stream: bool, echo: bool) -> None:
    answer = complete(client, echo=echo, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    text = "".join(one.text for one in choices)
    assert text.startswith(PROMPT) == echo
    assert choices[-1].finish_reason == "length"


# ------------------------------------------------------------------ chats


def test_log_probabilities_of_a_chat(client: OpenAI) -> None:
    assert chat(client, logprobs=False).choices[0].logprobs is None
    for count in (0, 5):
        content = chat(client, logprobs=True, top_logprobs=count).choices[0].logprobs.content
        assert [len(one.top_logprobs) for one in content] == [count] * 5
        assert all(one.logprob >= -9999 for row in content for one in row.top_logprobs)


def test_a_chat_goes_on(client: OpenAI) -> None:
    first = chat(client, logprobs=True, top_logprobs=5)
    assert first.id
    [choice] = first.choices
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    assert first.usage.completion_tokens == 5
    said = {"role": "assistant", "content": choice.message.content}
    second = chat(client, messages=[*HELLO, said, {"role": "user", "content": "a"}])
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    assert second.choices[0].message.content is not None


def test_a_chat_in_pieces(client: OpenAI) -> None:
    whole = chat(client).choices[0]
    chunks = [chunk.choices[0] for chunk in chat(client, stream=True)]
    assert {one.delta.role for one in chunks} <= {"assistant", None}
    assert "".join(one.delta.content or "" for one in chunks) == whole.message.content
    assert [one.finish_reason for one in chunks if one.finish_reason] == [whole.finish_reason]
    assert chunks[-1].finish_reason
    assert chunks[-1].delta.content


def test_contents_in_parts(client: OpenAI) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
    plain = [{"role": "user", "content": PROMPT}]
    answers = [chat(client, messages=one).choices[0].message.content for one in (parts, plain)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63])
def test_a_seed_has_64_bits(client: OpenAI, seed: int) -> None:
    with pytest.raises(BadRequestError, match=r"seed.*(greater|less) than or equal") as raised:
        chat(client, seed=seed)
    assert raised.value.param == "seed"
    assert chat(client, seed=-5, temperature=1.0).choices


def test_a_model_is_named_where_there_are_several(server: Served) -> None:
    for name in ({}, {"model": ""}):
        url = f"{server.url}/v1/chat/completions"
        response = httpx.post(url, json={**name, "messages": HELLO})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "model"
        assert "gpt2" in response.json()["error"]["message"]


# ------------------------------------------------------------------ vectors, classes


def test_vectors_of_texts_and_ids(server: Served, client: OpenAI) -> None:
    size = server.model("embedder").embed("a").shape[-1]
    texts = ["The dog sees the cat.", "owl", "The owl hears the dog."]
    rows = [[4, 5, 7, 9, 20], [15, 29], [24, 24, 24]]
    for asked, tokens in ((texts, None), (texts[:1], None), (rows, 10), (rows[0], 5)):
        answer: Any = client.embeddings.create(
            model="embedder", input=asked, encoding_format="float"
        )
        count = 1 if asked is rows[0] else len(asked)
        assert [len(one.embedding) for one in answer.data] == [size] * count
        assert answer.id
        assert answer.usage.prompt_tokens == answer.usage.total_tokens
        assert answer.usage.completion_tokens == 0
        assert tokens is None or answer.usage.prompt_tokens == tokens


def test_vectors_as_base64(server: Served, client: OpenAI) -> None:
    asked = {"model": "embedder", "input": ["The dog", "The owl hears"]}
    numbers: Any = client.embeddings.create(**asked, encoding_format="float")  # type: ignore[arg-type]
    usual: Any = client.embeddings.create(**asked)  # type: ignore[arg-type]
    url = f"{server.url}/v1/embeddings"
    raw = httpx.post(url, json={**asked, "encoding_format": "base64"}).json()
    for one, other, text in zip(numbers.data, usual.data, raw["data"], strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-7)
        decoded = np.frombuffer(base64.b64decode(text["embedding"]), dtype="<f4")
        np.testing.assert_allclose(one.embedding, decoded, atol=1e-7)


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classes(server: Served, path: str) -> None:
    def ask(asked: Any) -> Any:
        url = server.url + path
        return httpx.post(url, json={"model": "classifier", "input": asked}, timeout=60)

    labels = server.model("classifier").labels
    for asked in ("The dog sees", ["The dog sees", "The owl", "a"], []):
        answer = ask(asked).json()
        assert (answer["object"], answer["model"]) == ("list", "classifier")
        assert len(answer["data"]) == (1 if isinstance(asked, str) else len(asked))
        for index, one in enumerate(answer["data"]):
            assert one["index"] == index
            assert one["label"] in labels
            assert len(one["probs"]) == one["num_classes"] == len(labels)
            assert sum(one["probs"]) == pytest.approx(1)
    assert ask("").status_code == 400


# ------------------------------------------------------------------ recordings


def transcribe(client: OpenAI, **asked: Any) -> Any:
    settings: dict[str, Any] = {"model": "whisper", "file": ("a.wav", wav(1.5)), "temperature": 0.0}
    return client.audio.transcriptions.create(**{**settings, **asked})


def test_a_recording(server: Served, client: OpenAI) -> None:
    wanted = server.model("whisper").transcribe(wav(1.5))
    assert transcribe(client).text == wanted
    assert transcribe(client).usage.seconds == 1.5
    pieces = [one.delta for one in transcribe(client, stream=True) if hasattr(one, "delta")]
    assert "".join(pieces) == wanted


def test_a_long_recording_is_heard_in_windows(server: Served, client: OpenAI) -> None:
    seconds = 2.5 * server.model("whisper").seconds
    sound = wav(seconds)
    assert len(sound) > server.service.limits.body_bytes or seconds < 30
    answer = transcribe(client, file=("a.wav", sound), response_format="verbose_json")
    assert answer.text == server.model("whisper").transcribe(sound)
    assert answer.duration == pytest.approx(seconds, abs=0.01)


def test_what_is_no_recogniser(client: OpenAI) -> None:
    for asked in ({"language": "hh"}, {"model": "gpt2"}):
        with pytest.raises(BadRequestError):
            transcribe(client, **asked)
    for route in (complete, chat):
        with pytest.raises(BadRequestError):
            route(client, model="whisper")


# ------------------------------------------------------------------ refused, by name

REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "logit_bias": (complete, {"logit_bias": {"5": 100}}),
    "allowed_token_ids": (complete, {"extra_body": {"allowed_token_ids": [5]}}),
    "prompt_logprobs": (complete, {"extra_body": {"prompt_logprobs": 1}}),
    "use_beam_search": (complete, {"extra_body": {"use_beam_search": True}}),
    "guided_json": (complete, {"extra_body": {"guided_json": {}}}),
    "guided_regex": (chat, {"extra_body": {"guided_regex": "a"}}),
    "guided_choice": (chat, {"extra_body": {"guided_choice": ["a", "b"]}}),
    "guided_grammar": (complete, {"extra_body": {"guided_grammar": "a"}}),
    "tools": (chat, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    "tool_choice": (chat, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    "response_format": (chat, {"response_format": {"type": "json_object"}}),
    "messages.0.extra_field": (
        chat,
        {"messages": [{"role": "user", "content": "a", "extra_field": "0"}]},
    ),
    "messages.0.role": (chat, {"messages": [{"role": "my-own-role", "content": "a"}]}),
    "prompt": (transcribe, {"prompt": "a speech"}),
    "top_k": (transcribe, {"extra_body": {"top_k": 5}}),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_not_served_is_refused_by_its_name(client: OpenAI, field: str) -> None:
    route, asked = REFUSED[field]
    with pytest.raises(BadRequestError) as raised:
        route(client, **asked)
    assert raised.value.param == field


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/classify", "truncate_prompt_tokens"),
        ("/classify", "activation"),
        ("/v1/embeddings", "truncate_prompt_tokens"),
        ("/v1/embeddings", "add_special_tokens"),
    ],
)
def test_vllms_own_fields_are_refused(server: Served, path: str, field: str) -> None:
    model = {"/classify": "classifier"}.get(path, "embedder")
    response = httpx.post(server.url + path, json={"model": model, "input": "a", field: 5})
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]
