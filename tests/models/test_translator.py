"""Encoder–decoders over text as transformers runs them: the frame of a source, and what an output is made to begin and end
with, from folders that hold a vocabulary and no tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import AddedToken, models, pre_tokenizers, processors, trainers

import regard
from regard.data.text.tokenizer_files import open_language_model_tokenizer
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import (
    BeamSearch,
    Greedy,
    Limit,
    PowerPenalty,
    Strategy,
)
from regard.models import Translator
from regard.system.errors import SettingError

transformers = pytest.importorskip("transformers")

LINES = ["a cat sat", "the mat was flat, and the cat sat on it", "no"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SIZES = {
    "vocab_size": 320, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 34, "decoder_ffn_dim": 30, "max_position_embeddings": 64,
    "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip


def pieces() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        LINES * 3,
        trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet),
    )
    return backend


def shaken(model: Any, out: Path, **forced: Any) -> Any:
    model.generation_config.update(**forced)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(out)
    return model.eval()


def bart(out: Path) -> tuple[Any, Any]:
    """As BART's first folders are: vocab.json and merges.txt."""
    torch.manual_seed(0)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES))
    model = shaken(model, out, forced_bos_token_id=0, forced_eos_token_id=2)
    pieces().model.save(str(out))
    (out / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BartTokenizer"}))
    return model, transformers.BartTokenizer.from_pretrained(out)


def mbart(out: Path) -> tuple[Any, Any]:
    """The frame of mBART-50: the language, the text, the end."""
    torch.manual_seed(1)
    model = shaken(
        transformers.MBartForConditionalGeneration(transformers.MBartConfig(**SIZES)),
        out,
        forced_eos_token_id=2,
    )
    backend = pieces()
    backend.add_special_tokens([AddedToken(code, special=True) for code in ("en_XX", "de_DE")])
    named = [(token, backend.token_to_id(token)) for token in ("en_XX", "</s>")]
    backend.post_processor = processors.TemplateProcessing(
        single="en_XX $A </s>", special_tokens=named
    )
    backend.save(str(out / "tokenizer.json"))
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(out / "tokenizer.json"), pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )  # fmt: skip
    return model, words


def generated(model: Any, words: Any, line: str, beam: int, **more: Any) -> list[int]:
    given = {
        key: value
        for key, value in words(line, return_tensors="pt").items()
        if key != "token_type_ids"
    }
    made = model.generate(
        **given, num_beams=beam, do_sample=False, max_new_tokens=9, bad_words_ids=[[0], [1], [3]], length_penalty=1.0,
        early_stopping="never", **more,
    )[0, 1:].tolist()  # fmt: skip
    return made[: made.index(2)] if 2 in made else made


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("kind", ["bart", "mbart"])
def test_the_same_tokens_as_generate(kind: str, width: int, tmp_path: Path) -> None:
    model, words = (bart if kind == "bart" else mbart)(tmp_path)
    ours = regard.load(tmp_path)
    assert isinstance(ours, Translator)
    assert ours.encode(LINES) == [words(line)["input_ids"] for line in LINES]
    code = None if kind == "bart" else "de_DE"
    first = 0 if code is None else words.convert_tokens_to_ids(code)
    strategy: Strategy = (
        Greedy() if width == 1 else BeamSearch(width, PowerPenalty(1.0), 1, "refilled", "certain")
    )
    found = ours.hypotheses(LINES, DecodingSettings(strategy, Limit.fixed(9)), language=code)
    for line, hypotheses in zip(LINES, found, strict=True):
        assert hypotheses[0].tokens[0] == first
        assert list(hypotheses[0].tokens) == generated(
            model, words, line, width, forced_bos_token_id=first
        )


def test_several_translations(tmp_path: Path) -> None:
    bart(tmp_path)
    ours = regard.load(tmp_path)
    assert isinstance(ours, Translator)
    lines = [LINES[0], "", LINES[1]]
    best = ours.translate(lines, beam=4, num_return_sequences=3, max_new_tokens=9)
    settings = ours.settings(BeamSearch(4, n_best=3), Limit.fixed(9))
    for texts, found in zip(best, ours.hypotheses(lines, settings), strict=True):
        assert texts == ([ours.text(one) for one in found] or ["", "", ""])
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert ours.translate(lines[0], beam=4, num_return_sequences=3, max_new_tokens=9) == best[0]
    assert ours.translate(lines[0], beam=4, max_new_tokens=9) == best[0][0]
    drawn = ours.translate(lines, temperature=5.0, num_return_sequences=3, max_new_tokens=9)
    assert [len(set(texts)) for texts in drawn] == [3, 1, 3]
    with pytest.raises(SettingError, match="greedy"):
        ours.translate("a", beam=1, num_return_sequences=2)


def test_a_language_that_is_not_there(tmp_path: Path) -> None:
    mbart(tmp_path)
    ours = regard.load(tmp_path)
    assert isinstance(ours, Translator)
    with pytest.raises(SettingError, match="fr_FR"):
        ours.translate("a", language="fr_FR")


def test_what_is_forced_is_saved(tmp_path: Path) -> None:
    bart(tmp_path / "one")
    ours = regard.load(tmp_path / "one")
    again = regard.load(ours.save(tmp_path / "two"))
    assert isinstance(ours, Translator)
    assert isinstance(again, Translator)
    assert (again.special_tokens.forced_bos, again.special_tokens.forced_eos) == (0, True)
    assert again.translate(LINES) == ours.translate(LINES)


def test_a_decoder_with_a_vocabulary_only(tmp_path: Path) -> None:
    """As GPT-2's first folders are."""
    backend = pieces()
    backend.model.save(str(tmp_path))
    ours = open_language_model_tokenizer(tmp_path)
    for line in LINES:
        assert ours.encode(line) == backend.encode(line, add_special_tokens=False).ids
        assert ours.decode(ours.encode(line)) == line
