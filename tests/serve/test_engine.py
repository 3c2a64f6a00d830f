"""The engine: an answer is the request's own, whatever else is asked at the same time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch

from looked import translator, writer
from regard import load
from regard.core.context import Context
from regard.core.probe import Edit, Probe
from regard.decode.strategy import BeamSearch, Greedy, Sampling, Strategy
from regard.evaluation.task import PredictionOptions
from regard.look import alignment, lens, translate, written
from regard.models import LanguageModel, Model, Translator
from regard.serve import looking
from regard.serve.engine import Cancelled, Engine
from regard.serve.requests import (
    AttentionRows,
    Choice,
    Generation,
    Limits,
    LookRequest,
    Patch,
    QueueFull,
    Result,
)
from regard.serve.waiting import FairQueue
from regard.studio.model_store import DEMO
from regard.system.errors import RegardError, SettingError

TEXTS = (
    "The cat sees the dog.",
    "A dog runs.",
    "The old man sleeps in the house.",
    "She reads a book, and the owl hears the cat.",
)


def language_model() -> LanguageModel:
    model = writer()
    return LanguageModel(model.model, model.spec, model.input_tokenizer)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def demo() -> Translator:
    return load(DEMO, device="cpu", kind=Translator)


@pytest.fixture
def engine(demo: Translator) -> Iterator[Engine]:
    engine = Engine(demo)
    yield engine
    engine.drain(0)


@pytest.fixture
def writing() -> Iterator[Engine]:
    """A language model that never ends."""
    engine = Engine(language_model(), Limits(rows=4, queue=6, queue_per_client=3))
    yield engine
    engine.drain(0)


def asked(
    engine: Engine, text: str, strategy: Strategy | None = None, **more: object
) -> Generation:
    generation = Generation(engine.read(text), strategy or Greedy(), max_new_tokens=40)
    return replace(generation, **more)  # type: ignore[arg-type]


def answers(engine: Engine, *generations: Generation) -> list[Result]:
    streams = [engine.submit(one) for one in generations]
    return [stream.wait(60) for stream in streams]


def plain(result: Result) -> tuple[Choice, ...]:
    return result.choices


# ------------------------------------------------------------------ answers


def test_answers_alone_and_among_others_are_the_same(engine: Engine) -> None:
    strategies = (Greedy(), BeamSearch(4), Sampling(seed=7, draws=2), BeamSearch(3, n_best=2))
    generations = [asked(engine, text, one) for text in TEXTS for one in strategies]
    alone = [answers(engine, one)[0].choices for one in generations]
    others = [asked(engine, TEXTS[i % 4], strategies[i % 3], client=f"{i}") for i in range(20)]
    together = answers(engine, *others, *generations)[len(others) :]
    assert [one.choices for one in together] == alone  # scores too


def test_several_steps_at_once_answer_alike() -> None:
    """As on a GPU: what has come is passed on while the next steps are under way."""
    single = Engine(language_model())
    several = Engine(language_model())
    several._steps_at_once = 4
    generations = [asked(single, TEXTS[i % 4], max_new_tokens=3 + 5 * i) for i in range(6)]
    generations.append(replace(generations[1], stops=("z",)))
    expected = [one.choices[0].ids for one in answers(single, *generations)]
    assert [one.choices[0].ids for one in answers(several, *generations)] == expected
    assert several.metrics().steps < single.metrics().steps
    single.drain(0)
    several.drain(0)


@pytest.mark.thorough
def test_greedy_answers_among_63_others(engine: Engine) -> None:
    generations = [asked(engine, TEXTS[i % 4], max_new_tokens=5 + i % 30) for i in range(64)]
    together = [one.choices for one in answers(engine, *generations)]
    assert together == [answers(engine, one)[0].choices for one in generations]


def test_a_beam_is_that_of_translate(engine: Engine, demo: Translator) -> None:
    results = answers(engine, *(asked(engine, text, BeamSearch()) for text in TEXTS))
    assert [one.choices[0].text for one in results] == demo.translate([*TEXTS])


def test_continuations_are_those_of_generate() -> None:
    model = language_model()
    engine = Engine(model)
    results = answers(engine, *(asked(engine, text, max_new_tokens=9) for text in TEXTS))
    assert [one.choices[0].text for one in results] == model.generate([*TEXTS], max_new_tokens=9)
    assert {one.choices[0].finish_reason for one in results} == {"length"}
    engine.drain(0)


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(4), Sampling(seed=3, draws=3)])
def test_tokens_of_a_stream_together_are_its_answer(engine: Engine, strategy: Strategy) -> None:
    stream = engine.submit(asked(engine, TEXTS[2], strategy))
    seen: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    for token in stream:
        seen.setdefault(token.index, []).extend(token.ids)
        texts[token.index] = texts.get(token.index, "") + token.text
    choices = stream.wait().choices
    assert len(choices) == asked(engine, TEXTS[2], strategy).choices
    for choice in choices:
        assert tuple(seen[choice.index]) == choice.ids
        assert texts[choice.index] == choice.text


def test_coroutines_are_answered(engine: Engine) -> None:
    async def ask() -> list[str]:
        streams = [engine.submit(asked(engine, text)) for text in TEXTS]
        texts = []
        for stream in streams:
            texts.append("".join([token.text async for token in stream]))
            assert (await stream.result()).choices[0].text == texts[-1]
        return texts

    assert asyncio.run(ask()) == [
        one.choices[0].text for one in answers(engine, *(asked(engine, text) for text in TEXTS))
    ]


def test_stops_end_an_answer(engine: Engine) -> None:
    for strategy in (Greedy(), BeamSearch(4)):
        [whole] = answers(engine, asked(engine, TEXTS[2], strategy))
        [cut] = answers(engine, asked(engine, TEXTS[2], strategy, stops=(" Haus",)))
        assert cut.choices[0].text == whole.choices[0].text.partition(" Haus")[0]
        assert cut.choices[0].finish_reason == "stop"


def test_log_probabilities_are_those_of_the_answer(engine: Engine) -> None:
    stream = engine.submit(asked(engine, TEXTS[0], logprobs=3))
    tokens = [token for token in stream if token.ids]
    for token in tokens:
        [best, *_] = token.top[0]
        assert best == (token.ids[0], pytest.approx(token.logprobs[0]))
        assert len(token.top[0]) == 3
    total = sum(token.logprobs[0] for token in tokens)
    assert stream.wait().choices[0].log_probability == pytest.approx(total, abs=0.5)


def test_echo_shows_the_prompt_with_its_log_probabilities() -> None:
    model = language_model()
    engine = Engine(model)
    stream = engine.submit(asked(engine, TEXTS[0], max_new_tokens=2, echo=True, logprobs=2))
    prompt = [token for token in stream if token.is_prompt]
    assert [token.ids[0] for token in prompt] == model.tokenizer.input_ids(TEXTS[0])
    assert -sum(token.logprobs[0] for token in prompt) == pytest.approx(model.nll(TEXTS[0])[0])
    engine.drain(0)


def test_a_prompt_in_pieces_reads_alike() -> None:
    whole = Engine(language_model())
    pieces = Engine(language_model(), Limits(prefill_tokens=2))
    generation = asked(whole, TEXTS[3], max_new_tokens=8)
    [expected] = answers(whole, generation)
    [found] = answers(pieces, generation)
    assert found.choices[0].ids == expected.choices[0].ids
    assert whole.drain(5)
    assert pieces.drain(5)


# ------------------------------------------------------------------ who comes and goes


def test_a_cancelled_request_leaves_within_a_step(writing: Engine) -> None:
    stream = writing.submit(asked(writing, TEXTS[0], max_new_tokens=4000))
    next(iter(stream))
    stream.cancel()
    before = writing.metrics().steps
    result = stream.wait(30)
    assert result.choices[0].finish_reason == "cancelled"
    assert writing.metrics().steps - before <= 2  # one that was under way
    assert writing.metrics().rows == 0
    assert writing.metrics().cancelled == 1


def test_more_than_the_queue_holds_is_refused(writing: Engine) -> None:
    long = asked(writing, TEXTS[0], max_new_tokens=4000)
    running = [writing.submit(replace(long, client=f"{i}")) for i in range(4)]
    while writing.metrics().running < 4:
        time.sleep(0.01)
    waiting = [writing.submit(replace(long, client="one")) for _ in range(3)]
    with pytest.raises(QueueFull) as refused:
        writing.submit(replace(long, client="one"))
    assert refused.value.retry_after >= 1
    waiting += [writing.submit(replace(long, client="two")) for _ in range(3)]
    with pytest.raises(QueueFull):
        writing.submit(replace(long, client="three"))
    assert writing.metrics().refused == 2
    for stream in (*waiting, *running):
        stream.cancel()
    for stream in waiting:
        with pytest.raises(Cancelled):
            stream.wait(30)


def test_clients_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(Limits())
    for client, item in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")):
        queue.put(client, item, 1.0)
    assert queue.take(lambda item: item == "a2") == ["a2"]
    queue.put("b", "b2", 1.0)
    order: list[str] = []
    while (turn := queue.next(lambda _: True)) is not None:
        queue.pop(turn)
        order.append(turn)
    assert order == ["a1", "b1", "c1", "a3", "b2"]


def test_what_can_never_be_served_is_refused_at_once(engine: Engine) -> None:
    for wrong in (
        asked(engine, TEXTS[0], BeamSearch(100)),
        asked(engine, TEXTS[0], max_new_tokens=100_000),
        asked(engine, TEXTS[0], look=LookRequest(hidden=("encoder.9.residual",))),
        asked(engine, TEXTS[0], look=LookRequest(attention=(AttentionRows("decoder.0.other"),))),
        asked(engine, TEXTS[0], look=LookRequest(heads_off=(("decoder.0.cross", 99),))),
    ):
        with pytest.raises(SettingError):
            engine.submit(wrong)
    with pytest.raises(RegardError):
        engine.ask("classify", ["a text"])


def test_what_is_there_is_answered_before_the_end(demo: Translator) -> None:
    engine = Engine(demo)
    streams = [engine.submit(asked(engine, text)) for text in TEXTS]
    assert engine.drain(60)
    assert all(stream.done for stream in streams)
    with pytest.raises(QueueFull):
        engine.submit(asked(engine, TEXTS[0]))
    writing = Engine(language_model())
    endless = writing.submit(asked(writing, TEXTS[0], max_new_tokens=4000))
    assert not writing.drain(0.2)
    with pytest.raises(Cancelled):
        endless.wait(1)


# ------------------------------------------------------------------ faults


def test_a_fault_is_that_of_one_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    generations = [asked(engine, TEXTS[i % 4], BeamSearch(2)) for i in range(12)]
    expected = [plain(one) for one in answers(engine, *generations)]

    def spoilt(model: Model, request: LookRequest) -> dict[str, Edit]:
        def spoil(value: torch.Tensor) -> torch.Tensor:
            if request.lens == 1:
                raise ValueError("injected")
            return value * float("nan")

        return {"decoder.output": spoil}

    monkeypatch.setattr(looking, "_edits", spoilt)
    off = (("decoder.0.cross", 0),)
    for number, kind in ((3, 1), (7, 2)):
        request = LookRequest(heads_off=off, lens=kind)
        generations[number] = replace(generations[number], look=request)
    streams = [engine.submit(one) for one in generations]
    for number, stream in enumerate(streams):
        if number in (3, 7):
            with pytest.raises((ValueError, RegardError)):
                stream.wait(60)
        else:
            assert plain(stream.wait(60)) == expected[number]
    assert engine.metrics().failed == 2
    assert plain(answers(engine, asked(engine, TEXTS[0], BeamSearch(2)))[0]) == expected[0]


def test_tasks_are_answered_in_batches_and_fail_by_themselves(engine: Engine) -> None:
    with torch.inference_mode():
        expected = engine.model.translate([*TEXTS])
    asked_tasks = [engine.ask("translate", [text]) for text in TEXTS]
    pair = engine.ask("translate", TEXTS[:2])
    too_long = engine.ask("translate", ["word " * 5000])
    assert [one.wait(60) for one in asked_tasks] == [[text] for text in expected]
    assert pair.wait(60) == expected[:2]
    assert engine.call(lambda model: model.parameter_count).wait(60) > 0
    failing = engine.call(lambda model: model.fill("nothing to fill"))
    with pytest.raises(RegardError):
        failing.wait(60)
    too_long.cancel()
    with pytest.raises(RegardError):
        engine.ask("translate", [TEXTS[0]], PredictionOptions(labels=("a", "b")))


def test_texts_are_written_while_a_function_is_called(engine: Engine) -> None:
    """A long recording of one request does not stop the others, and is waited for at the end."""
    goes_on = threading.Event()
    call = engine.call(lambda model: goes_on.wait(60))
    [result] = answers(engine, asked(engine, TEXTS[0]))
    assert result.choices[0].text
    assert not call.done
    assert engine.busy
    engine.refuse()
    goes_on.set()
    assert call.wait(60)
    assert engine.drain(60)


# ------------------------------------------------------------------ look


def test_look_is_that_of_the_model(engine: Engine, demo: Translator) -> None:
    request = LookRequest(
        attention=(AttentionRows("decoder.0.cross", (0, 2), (1,)), AttentionRows("encoder.0.self")),
        hidden=("decoder.1.residual", "encoder.output"),
        alignment=True,
        lens=3,
    )
    generations = [asked(engine, text, look=request) for text in TEXTS]
    neighbours = [asked(engine, text) for text in TEXTS]
    results = answers(engine, *generations, *neighbours)
    for text, result, neighbour in zip(TEXTS, results, results[4:], strict=False):
        assert plain(result) == plain(neighbour)
        found = result.look
        assert found is not None
        assert result.usage.look_values > 0
        ask = ("*.weights", "*.residual", "*.embedded", "*.output")
        run = demo.look(text, target=result.choices[0].text, ask=ask)
        for one in request.attention:
            name, rows, heads = astuple(one)
            weights = run.weights(name, rows, heads)
            np.testing.assert_allclose(found["attention"][name]["weights"], weights, atol=1e-6)
        for name in request.hidden:
            np.testing.assert_allclose(found["hidden"][name], run[name], atol=1e-6)
        assert found["alignment"] == alignment(run).to_dict()
        assert found["lens"] == lens(run, top=3).to_dict()


def test_heads_switched_off_change_this_answer_only(engine: Engine, demo: Translator) -> None:
    off = tuple((f"decoder.{layer}.cross", head) for layer in range(2) for head in range(2))
    request = LookRequest(heads_off=off, hidden=("decoder.0.residual",))
    generations = [asked(engine, text, BeamSearch()) for text in TEXTS]
    before = [plain(one) for one in answers(engine, *generations)]
    ablated = replace(generations[1], look=request)
    results = answers(engine, generations[0], ablated, *generations[2:])
    assert [plain(results[i]) for i in (0, 2, 3)] == [before[i] for i in (0, 2, 3)]
    expected = translate(demo, TEXTS[1], BeamSearch(), off=off)
    text = written(demo, expected[0])
    assert results[1].choices[0].text == text
    run = demo.look(TEXTS[1], target=text, ask="decoder.0.residual", off=off)
    assert results[1].look is not None
    found = results[1].look["hidden"]["decoder.0.residual"]
    np.testing.assert_allclose(found, run["decoder.0.residual"], atol=1e-6)


def test_patched_activations_change_this_answer_only(engine: Engine, demo: Translator) -> None:
    other = "The dog sees the dog."
    point = "encoder.0.residual"
    count = len(demo.input_tokenizer.input_ids(other))
    assert count == len(demo.input_tokenizer.input_ids(TEXTS[0]))
    everywhere = LookRequest(patch=Patch(point, other, tuple(range(count))))
    patched, there, here = answers(
        engine,
        asked(engine, TEXTS[0], look=everywhere),
        asked(engine, other),
        asked(engine, TEXTS[0]),
    )
    # All of a layer patched: the answer is that to the other text.
    assert patched.choices[0].ids == there.choices[0].ids != here.choices[0].ids


def test_a_patch_of_a_decoder_is_made_at_its_positions() -> None:
    model = language_model()
    engine = Engine(model, Limits(prefill_tokens=2))
    text, other = TEXTS[0], TEXTS[2]
    point = "decoder.0.residual"
    request = LookRequest(patch=Patch(point, other, (1, 3)), hidden=("decoder.1.residual",))
    [result] = answers(engine, asked(engine, text, max_new_tokens=4, look=request))
    clean = model.look(other, ask=point).tensor(point)
    ids = torch.tensor([[*model.tokenizer.input_ids(text), *result.choices[0].ids]])

    def patch(value: torch.Tensor) -> torch.Tensor:
        return value.index_copy(1, torch.tensor([1, 3]), clean[:, [1, 3]])

    probe = Probe(["decoder.1.residual"], {point: patch})
    with torch.inference_mode():
        hidden, _ = model.model(ids, None, Context(probe=probe))
        expected = model.model.head(hidden)[0].argmax(dim=-1)
    written = len(result.choices[0].ids)
    assert tuple(expected[-written - 1 : -1].tolist()) == result.choices[0].ids
    assert result.look is not None
    residual = probe.tensors["decoder.1.residual"][0]
    np.testing.assert_allclose(result.look["hidden"]["decoder.1.residual"], residual, atol=1e-6)
    engine.drain(0)


def test_random_translators_are_served_alike() -> None:
    model = translator()
    engine = Engine(model)
    found = answers(engine, *(asked(engine, text, BeamSearch()) for text in TEXTS))
    assert [one.choices[0].text for one in found] == model.translate(
        [*TEXTS], BeamSearch(), max_new_tokens=40
    )
    engine.drain(0)
