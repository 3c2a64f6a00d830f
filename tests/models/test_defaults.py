"""What a folder says of generating is done when nobody says otherwise: the tokens are those of a bare `generate` there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.data.text.tokenizer_training import (
    SpecialTokenTemplate,
    train_lossless_tokenizer,
    train_tokenizer,
)
from regard.decode.strategy import (
    BeamSearch,
    GNMTPenalty,
    Greedy,
    Limit,
    PowerPenalty,
    Sampling,
)
from regard.models import LanguageModel, Translator
from regard.models.generation_config import GenerationDefaults, generation_defaults
from regard.system.errors import ModelError, SettingError

transformers = pytest.importorskip("transformers")

LINES = ["a cat sat", "the mat was flat, and the cat sat on it", "no"]


def sequence(place: Path, **said: Any) -> tuple[Any, Translator]:
    words = train_tokenizer(LINES, "bpe", 90)
    pad, eos = words.required_token_id("pad"), words.required_token_id("eos")
    torch.manual_seed(2)
    config = transformers.BartConfig(
        vocab_size=len(words), d_model=24, encoder_layers=1, decoder_layers=2, encoder_attention_heads=3,
        decoder_attention_heads=4, encoder_ffn_dim=34, decoder_ffn_dim=30, max_position_embeddings=64, bos_token_id=1,
        pad_token_id=pad, eos_token_id=eos, decoder_start_token_id=eos, forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.final_logits_bias[0, eos] = 2.0  # it would like to end soon
    never = sorted(words.framing_ids - {eos})
    model.final_logits_bias[
        0, never
    ] = -30.0  # so that it does not matter whether others get their share
    model.generation_config.update(bad_words_ids=[[i] for i in never], **said)
    model.save_pretrained(place)
    words.save(place / "tokenizer.json")
    held = regard.load(place, device="cpu")
    assert isinstance(held, Translator)
    return model.eval(), held


@pytest.mark.parametrize(
    "said",
    [
        {
            "num_beams": 3,
            "length_penalty": 2.0,
            "early_stopping": True,
            "max_length": 14,
            "min_length": 6,
        },
        {"num_beams": 4, "max_new_tokens": 9},
        {"num_beams": 1, "max_length": 12, "min_new_tokens": 4, "no_repeat_ngram_size": 2},
    ],
)
def test_translations_are_those_of_a_bare_generate(said: dict[str, Any], tmp_path: Path) -> None:
    model, ours = sequence(tmp_path, **said)
    for line in LINES:
        ids = ours.encode([line])
        wanted = model.generate(torch.tensor(ids))[0, 1:].tolist()
        found = ours.hypotheses([line], ours.settings())[0][0]
        assert [*found.tokens, *[ours.special_tokens.end] * found.finished] == wanted
        assert ours.translate(line) == ours.target_tokenizer.decode(wanted)
    assert ours.settings(Greedy(), Limit.fixed(3)).limit == Limit.fixed(3)


def test_what_is_not_obeyed_is_said_once(tmp_path: Path) -> None:
    _, ours = sequence(tmp_path, encoder_no_repeat_ngram_size=3, num_beams=2, max_new_tokens=3)
    heard: list[str] = []
    ours.say = heard.append
    ours.translate(LINES)
    ours.translate(LINES)
    assert heard == ["ignored in generation_config.json: encoder_no_repeat_ngram_size"]


def writer(place: Path, **said: Any) -> tuple[Any, LanguageModel]:
    words = train_lossless_tokenizer(LINES, "bpe", 290, SpecialTokenTemplate(("<|endoftext|>",)))
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=64, n_embd=24, n_layer=2, n_head=4
    )
    config.bos_token_id = config.eos_token_id = words.special_token_id("eos")
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.generation_config.update(**said)
    model.save_pretrained(place)
    (place / "tokenizer.json").write_text(words.to_json())
    held = regard.load(place, device="cpu")
    assert isinstance(held, LanguageModel)
    return model.eval(), held


@pytest.mark.parametrize(
    "said",
    [
        {
            "num_beams": 3,
            "length_penalty": 0.5,
            "max_new_tokens": 8,
            "no_repeat_ngram_size": 2,
            "early_stopping": True,
        },
        {"max_length": 20, "min_length": 18, "no_repeat_ngram_size": 1},
    ],
)
def test_texts_are_those_of_a_bare_generate(said: dict[str, Any], tmp_path: Path) -> None:
    model, ours = writer(tmp_path, **said)
    found = ours.generate(LINES[:2])
    for line, text in zip(LINES, found, strict=False):
        ids = ours.tokenizer.input_ids(line)
        new = model.generate(torch.tensor([ids]), pad_token_id=0)[0, len(ids) :].tolist()
        assert text == ours.tokenizer.decode([i for i in new if i != ours.special_tokens.end])


def test_words_of_transformers() -> None:
    def read(**said: Any) -> GenerationDefaults:
        return generation_defaults(said, {}, frozenset({1}))

    assert read() == GenerationDefaults()
    assert read(num_beams=1).strategy == Greedy()
    assert read(do_sample=True).strategy == Sampling(top_k=50)
    assert read(do_sample=True, temperature=0.6, top_p=0.9, top_k=0).strategy == Sampling(
        0.6, 0, 0.9
    )
    assert read(num_beams=5, early_stopping="never").strategy == BeamSearch(
        5, PowerPenalty(1.0), 1, "refilled", "certain"
    )
    assert read(num_beams=5, do_sample=True).unsupported == ("do_sample",)
    assert read(num_beams=5, renormalize_logits=True).unsupported == ()
    assert read(num_beams=5, renormalize_logits=True, min_length=3).unsupported == (
        "renormalize_logits",
    )
    assert read(bad_words_ids=[[1]], suppress_tokens=[]).unsupported == ()
    assert read(bad_words_ids=[[1], [2, 3]], typical_p=0.5).unsupported == (
        "typical_p",
        "bad_words_ids",
    )
    assert generation_defaults(None, {"num_beams": 1, "max_length": 7}, frozenset()).max_length == 7
    assert (
        generation_defaults({}, {"num_beams": 1, "max_length": 7}, frozenset())
        == GenerationDefaults()
    )
    own = {"num_beams": 4, "max_length": 512, "length_penalty": 0.6}
    assert read(**own, regard_search={"gnmt": 0.6}) == GenerationDefaults(
        BeamSearch(4, GNMTPenalty(0.6))
    )
    assert read(**own, regard_search={}) == GenerationDefaults()
    for wrong in (
        {"num_beams": 0},
        {"num_beams": "4"},
        {"num_beams": 2, "early_stopping": 3},
        {"max_length": -1},
    ):
        with pytest.raises(ModelError, match="cannot be"):
            read(**wrong)
    with pytest.raises(SettingError, match="temperature"):
        read(do_sample=True, temperature=0.0)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    writer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": [4]}))
    with pytest.raises(ModelError, match="num_beams"):
        regard.load(tmp_path)
