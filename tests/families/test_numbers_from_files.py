"""Every number that a file says has bounds: a model opens, or a typed error says which is wrong."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import regard
from regard import spec
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.decode.strategy import BeamSearch
from regard.families import folder as folders
from regard.families.encoder_decoders import transformer
from regard.models.generation_config import generation_defaults
from regard.system.errors import DataError, ModelError, RegardError
from zoo import save

pytest.importorskip("transformers")

# Numbers that a size, a rate or an id cannot be, and some that it can.
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2**31 - 1, 2**31, 2**63, 10**30, 10**400, -(10**400)]),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-320, 0.5, 2.0]),
    st.integers(),
    st.floats(),
    st.booleans(),
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    NUMBERS, st.lists(NUMBERS, max_size=3), st.none(), st.just("7"), st.just({})
)
FAMILIES = [
    "marian", "bart, classes", "t5", "mt5", "whisper", "gpt2", "neox", "llama", "mistral", "bert",
    "roberta", "albert", "electra", "deberta", "bigbird, answers", "reformer", "vit", "clip",
    "wav2vec2",
]  # fmt: skip
JsonPath = tuple[str | int, ...]
QUICK = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def numbers(value: Any, path: JsonPath = ()) -> Iterator[JsonPath]:
    """The paths of all numbers, lists and absent values in a JSON value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, list):
        yield path
        for i, inner in enumerate(value):
            yield from numbers(inner, (*path, i))
    elif value is None or isinstance(value, (int, float)):
        yield path


def changed(config: Any, path: JsonPath, value: Any) -> str:
    """The JSON of a config with another value at this path."""
    config = copy.deepcopy(config)
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(config)


def opens_or_says_why(folder: Path) -> None:
    try:
        regard.load(folder, say=lambda text: None)
    except RegardError as error:
        assert error.repair


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in FAMILIES:
        made[name] = tmp_path_factory.mktemp("model")
        save(name, made[name])
    return made


@pytest.fixture(scope="module")
def configs(saved: dict[str, Path]) -> dict[str, Any]:
    return {
        name: json.loads((folder / "config.json").read_text()) for name, folder in saved.items()
    }


@given(data=st.data())
@QUICK
def test_of_config_json(
    data: st.DataObject, saved: dict[str, Path], configs: dict[str, Any]
) -> None:
    name = data.draw(st.sampled_from(FAMILIES))
    path = data.draw(st.sampled_from(list(numbers(configs[name]))))
    text = changed(configs[name], path, data.draw(VALUES))
    (saved[name] / "config.json").write_text(text)
    opens_or_says_why(saved[name])


@given(data=st.data())
@QUICK
def test_of_our_own_config_json(data: st.DataObject, tmp_path: Path) -> None:
    model = transformer.transformer(37, 37, layers=1, d_model=8, heads=2, d_ff=8)
    config = {"model_type": "regard", "spec": spec.to_dict(model)}
    path = data.draw(st.sampled_from(list(numbers(config))))
    value = data.draw(VALUES)
    (tmp_path / "config.json").write_text(changed(config, path, value))
    try:
        folders.peek(tmp_path)
    except RegardError as error:
        assert error.repair


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_size_that_nothing_holds_is_refused_at_once(key: str, tmp_path: Path) -> None:
    save("bert", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for size in (10**7, 2**40, 10**300, 7.0, -3):
        (tmp_path / "config.json").write_text(changed(config, (key,), size))
        with pytest.raises(ModelError):
            regard.load(tmp_path)


# ------------------------------------------------------------------ generation_config.json

GENERATION_KEYS = [
    "num_beams", "length_penalty", "early_stopping", "do_sample", "temperature", "top_k", "top_p",
    "min_p", "max_length", "max_new_tokens", "min_length", "min_new_tokens",
    "no_repeat_ngram_size", "repetition_penalty", "bad_words_ids", "regard_search",
]  # fmt: skip


@given(
    config=st.dictionaries(st.sampled_from(GENERATION_KEYS), VALUES, max_size=4),
    penalty=VALUES,
)
@settings(max_examples=400, deadline=None)
def test_of_generation_config_json(config: dict[str, Any], penalty: Any) -> None:
    """What is accepted can be computed with, for outputs of any length."""
    if "regard_search" in config:
        config["regard_search"] = {"gnmt": penalty}
    for beams in ({}, {"num_beams": 4}, {"do_sample": True}):
        try:
            defaults = generation_defaults({**beams, **config}, {}, frozenset())
        except RegardError as error:
            assert error.repair
            continue
        limits = (defaults.max_length, defaults.max_new_tokens)
        assert all(limit is None or 1 <= limit < 2**31 for limit in limits)
        if isinstance(defaults.strategy, BeamSearch):
            for length in (1, 10, 2**31 - 1):
                assert 0 < defaults.strategy.penalty.divisor(length) < math.inf


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("generation_config.json", "length_penalty", 1e308),
        ("generation_config.json", "max_length", 10**30),
        ("generation_config.json", "num_beams", 10**9),
        ("generation_config.json", "eos_token_id", 10**30),
        ("config.json", "eos_token_id", 1e308),
        ("config.json", "max_length", 10**30),
    ],
)
def test_what_overflowed_before_is_refused(file: str, key: str, value: Any, tmp_path: Path) -> None:
    save("marian", tmp_path)
    tokens = {"</s>": 2, "<pad>": 1, "<unk>": 0, **{f"w{i}": i for i in range(3, 53)}}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(tokens, unk_token="<unk>"))  # type: ignore[call-arg]
    backend.save(str(tmp_path / "tokenizer.json"))
    assert regard.load(tmp_path).translate("w5 w6") is not None
    if file == "config.json":  # whose settings count where the other file is missing
        (tmp_path / "generation_config.json").unlink()
    content = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**content, "num_beams": 4, key: value}))
    with pytest.raises(ModelError, match=key):
        regard.load(tmp_path)


# ------------------------------------------------------------------ tokenizer files


@given(value=VALUES)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_of_added_tokens(value: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"new": value}))
    decoder = {str(value): {"content": "new"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    try:
        tokenizer = open_encoder_tokenizer(tmp_path)
    except DataError as error:
        assert error.repair
    else:
        assert value == 6  # the one that follows the vocabulary
        assert tokenizer.token_to_id("new") == 6
