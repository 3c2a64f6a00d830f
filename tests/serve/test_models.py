"""Models by name: loaded when first asked for, put away when idle, their memory known before."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from regard.core.quantized_linear import PackedFloat32
from regard.decode.strategy import Greedy
from regard.serve.models import Models
from regard.serve.requests import Generation, QueueFull
from regard.studio.model_store import DEMO
from regard.system.errors import SettingError

TEXT = "The cat sees the dog."


def answer(models: Models, name: str) -> str:
    async def ask() -> str:
        engine = await models.engine(name)
        stream = engine.submit(Generation(engine.read(TEXT), Greedy(), 20))
        return (await stream.result()).choices[0].text

    return asyncio.run(ask())


def test_loaded_when_asked_for_and_put_away_when_idle() -> None:
    said: list[str] = []
    models = Models({"a": DEMO, "b": DEMO}, device="cpu", idle_seconds=0.2, say=said.append)
    assert models.names() == ["a", "b"]
    assert models.engines() == {}
    assert [line.partition(":")[0] for line in said] == ["a", "b"]  # the memory of each
    text = answer(models, "a")
    assert models.describe("a").loaded
    assert not models.describe("b").loaded
    deadline = time.monotonic() + 30
    while models.engines() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert models.engines() == {}
    assert answer(models, "a") == text
    with pytest.raises(SettingError):
        models.describe("c")
    assert models.drain(30)


def test_the_memory_of_weights_is_known_beforehand() -> None:
    models = Models({"demo": DEMO}, device="cpu", say=lambda _: None)
    needs = models.describe("demo").needs
    engine = models.load("demo")
    core = engine.model.model
    packed = [part.packed for part in core.modules() if getattr(part, "packed", None)]
    weights = sum(one.nbytes for one in core.parameters())
    for one in packed:
        assert isinstance(one, PackedFloat32)
        weights += one.weight.numel() * 4
        weights += 0 if one.bias is None else one.bias.nbytes
    assert packed
    assert needs.weights == pytest.approx(weights, rel=0.05)  # oneDNN rounds rows up
    assert needs.caches > 0
    assert models.drain(30)


def test_another_model_takes_the_place_of_the_one_used_longest_ago() -> None:
    needs = Models({"a": DEMO}, device="cpu", say=lambda _: None).describe("a").needs.weights
    models = Models(
        dict.fromkeys("abc", DEMO), device="cpu", memory_bytes=2 * needs, say=lambda _: None
    )
    for name in "abc":
        models.load(name)
    assert [*models.engines()] == ["b", "c"]
    assert models.drain(30)


def test_int8_answers(tmp_path: Path) -> None:
    models = Models({"demo": DEMO}, device="cpu", precision="int8", say=lambda _: None)
    described = models.describe("demo")
    assert described.parameters < described.needs.weights < 4 * described.parameters  # tables stay
    assert answer(models, "demo").endswith("Katze sieht den Hund.")
    engine = models.engines()["demo"]
    assert models.drain(30)
    with pytest.raises(QueueFull):
        engine.submit(Generation(engine.read(TEXT)))
