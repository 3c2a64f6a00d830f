"""Linear probes: what is there to be read is found, and what is not there is not."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from looked import MODELS, WORDS, Tokenized, writer
from regard import models, spec
from regard.builder import build
from regard.cli.look import command
from regard.data.generated.builtin import sentences
from regard.look import linear_probes
from regard.look.linear_probing import fitted
from regard.system.errors import DataError, SettingError

TEXTS = [one.source for one in islice(sentences("train"), 60)]
TOKENS = [text.split() for text in TEXTS]


def rng(seed: int = 0) -> Any:
    return np.random.default_rng(seed)


def reader(position: spec.InputPosition | None) -> Tokenized:
    """A wide encoder with random weights."""
    tokens = spec.Tokens(len(WORDS), position, dropout=0.0)
    block = spec.Block(spec.Attention(2, 32, 32), spec.FeedForward(64), dropout=0.0)
    description = spec.Encoder(96, tokens, spec.Stack.of(1, block), (spec.LMHead(),))
    return Tokenized(build(description).eval(), description)


def test_a_linear_classifier_separates_what_a_plane_separates() -> None:
    x = torch.randn(200, 3)
    plane = (x @ torch.tensor([1.0, -2.0, 0.5]) > 0.3).long()
    found = fitted(x[:150], plane[:150], 2)(x[150:]).argmax(1)
    assert (found == plane[150:]).float().mean() > 0.9
    exclusive = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()
    found = fitted(x[:150], exclusive[:150], 2)(x[150:]).argmax(1)
    assert (found == exclusive[150:]).float().mean() < 0.8


def test_the_regression_is_at_its_optimum() -> None:
    x, y = torch.randn(40, 4).double(), torch.arange(40) % 3
    scores = fitted(x, y, 3)(x)
    # Its gradient by the biases vanishes: classes are as frequent as they are predicted.
    shares = scores.softmax(-1).mean(0)
    torch.testing.assert_close(shares, (y.bincount() / 40).double(), atol=1e-4, rtol=0)


def test_a_function_of_the_word_is_read_from_its_embedding() -> None:
    tags = [["long" if len(word) > 3 else "short" for word in words] for words in TOKENS]
    result = linear_probes(reader(None), TOKENS, tags)
    assert result.accuracy[0] > 0.75 > result.majority
    # A control task of words is learnt by heart where the embeddings have room for it.
    assert result.control[0] > result.majority


@pytest.mark.parametrize("name", ["writer", "reader", "translator"])
def test_every_layer_is_probed(name: str) -> None:
    tags = [["the" if word.lower() == "the" else "" for word in words] for words in TOKENS]
    tags = [[tag or "other" for tag in row[:-1]] + [""] for row in tags]  # "" is no label
    result = linear_probes(MODELS[name](), TOKENS, tags)
    assert result.layers == ("embedded", "layer 0", "layer 1")
    assert result.classes == ("other", "the")
    assert result.trained_on + result.tested_on == sum(len(words) - 1 for words in TOKENS)
    assert len(result.table()) == 6


def test_what_is_nowhere_is_not_found() -> None:
    draw = rng()
    coins = [[str(draw.integers(2)) for _ in words] for words in TOKENS]
    result = linear_probes(writer(), TOKENS, coins)
    assert result.accuracy.max() < 0.65


def test_inputs_are_held_out_as_a_whole() -> None:
    own = [str(number) for number in range(len(TEXTS))]
    result = linear_probes(writer(), TEXTS, own)
    assert result.accuracy.max() == 0.0
    assert result.tested_on == 15
    other = linear_probes(writer(), TEXTS, own, seed=1)
    assert set(other.classes) != set(result.classes)


@pytest.mark.parametrize("position", [spec.ConcatenatedPosition(32), None])
def test_positions_are_found_where_there_are_any(position: Any) -> None:
    draw = rng()
    words = sorted({word for words in TOKENS for word in words})
    # Any word at any place.
    texts = [" ".join(draw.choice(words, 10)) for _ in range(100)]
    result = linear_probes(reader(position), texts, "position")
    assert (result.accuracy[0] > 0.4) == (position is not None)
    # The same words have the same class here: those are read from their embeddings anyway.
    assert result.control[0] > 0.9


def test_a_word_alone_is_an_input_or_a_word() -> None:
    words = sorted({word for words in TOKENS for word in words})
    classes = [str(len(word) % 2) for word in words]
    whole = linear_probes(writer(), words, classes)
    listed = linear_probes(writer(), [[word] for word in words], [[one] for one in classes])
    np.testing.assert_array_equal(whole.accuracy, listed.accuracy)


def test_labels_must_fit() -> None:
    model = writer()
    with pytest.raises(DataError, match="60 inputs and 2 labels"):
        linear_probes(model, TEXTS, ["a", "b"])
    with pytest.raises(DataError, match="one class in all"):
        linear_probes(model, TEXTS, ["a"] * 60)
    with pytest.raises(DataError, match="input 0 has 1 labels for 0 words"):
        linear_probes(model, TEXTS[:2], [["a"], ["b"]])
    with pytest.raises(DataError, match="several inputs"):
        linear_probes(model, TEXTS[0], "position")
    with pytest.raises(SettingError, match="reads no labelled inputs"):
        linear_probes(MODELS["translator"](), TEXTS, "position", stack="decoder")


def test_the_command_reads_classes_tags_and_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = writer()
    monkeypatch.setattr(models, "load", lambda *_, **__: model)
    lines = {
        "labels": [f"{text}\t{'ab'[len(text) % 2]}" for text in TEXTS],
        "tags": ["".join(f"{word}\t{len(word) % 2}\n" for word in words) for words in TOKENS],
        "texts": TEXTS,
    }
    found = {}
    for name, rows in lines.items():
        (tmp_path / name).write_text("\n".join(rows) + "\n")
        flags = ["model", "--what", "probe", f"--{name}", str(tmp_path / name)]
        picture = str(tmp_path / "a.png")
        done = CliRunner().invoke(
            command, [*flags, "--json", "--png", picture], catch_exceptions=False
        )
        found[name] = json.loads(done.stdout)
        assert Path(picture).stat().st_size > 1000
    words = [[str(len(word) % 2) for word in words] for words in TOKENS]
    assert found["tags"]["accuracy"] == linear_probes(model, TOKENS, words).accuracy.tolist()
    assert found["labels"]["classes"] == ["a", "b"]
    assert found["texts"]["classes"][:3] == ["0", "1", "2"]
    with pytest.raises(SettingError, match="one file of labels"):
        CliRunner().invoke(command, ["model", "--what", "probe"], catch_exceptions=False)
