"""Folders that hold SentencePiece files and no tokenizer.json: models open with text, are fine-tuned and saved."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.data.text.sentencepiece import read_sentencepiece
from regard.decode.strategy import BeamSearch, Limit, PowerPenalty
from regard.models import LanguageModel, Translator
from regard.system.errors import DataError, SettingError

spm = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

LINES = [
    "a cat sat",
    "the mat was flat, and the cat sat on it",
    "no dog is here",
    "Hello world, café!",
]
SIZES = {
    "d_model": 24, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 34, "decoder_ffn_dim": 30, "max_position_embeddings": 64,
}  # fmt: skip


def pieces(**options: Any) -> bytes:
    made = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 5), model_writer=made, hard_vocab_limit=False, minloglevel=2,
        **{"vocab_size": 60, "character_coverage": 1.0, **options},
    )  # fmt: skip
    return made.getvalue()


def shaken(model: Any, place: Path) -> Any:
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(place)
    return model.eval()


@pytest.mark.filterwarnings("ignore")
def test_opus_mt(tmp_path: Path) -> None:
    """Two files of pieces and one vocabulary; the language is a token before the source."""
    place = tmp_path / "marian"
    place.mkdir()
    for name, size in (("source.spm", 55), ("target.spm", 60)):
        (place / name).write_bytes(pieces(vocab_size=size))
    found = {
        p.text: p
        for name in ("target.spm", "source.spm")
        for p in read_sentencepiece(place / name).pieces
        if p.kind == 1
    }
    order = ["</s>", "<unk>", *found, ">>fra<<", ">>deu<<", "<pad>"]
    (place / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(order)}))
    torch.manual_seed(0)
    pad = len(order) - 1
    config = transformers.MarianConfig(
        **SIZES, vocab_size=len(order), pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, bos_token_id=0,
        forced_eos_token_id=0,
    )  # fmt: skip
    model = shaken(transformers.MarianMTModel(config), place)
    words = transformers.MarianTokenizer.from_pretrained(place)
    ours = regard.load(place, device="cpu")
    assert isinstance(ours, Translator)
    for line in LINES:
        given = words(f">>fra<< {line}", return_tensors="pt")
        assert ours.encode([f">>fra<< {line}"]) == given["input_ids"].tolist()
        bad = [[i] for i in ours.special_tokens.banned]
        search: dict[str, Any] = {"num_beams": 3, "early_stopping": True, "max_new_tokens": 9}
        out = model.generate(**given, **search, bad_words_ids=bad, renormalize_logits=True)
        settings = ours.settings(
            BeamSearch(3, PowerPenalty(1.0), 1, "refilled", "full"), Limit.fixed(9)
        )
        best = ours.hypotheses([line], settings, language="fra")[0][0]
        assert [*best.tokens, *[0] * best.finished] == out[0, 1:].tolist()
    with pytest.raises(SettingError, match="ita"):
        ours.translate("a", language="ita")
    again = regard.load(ours.save(tmp_path / "saved"), device="cpu")
    assert isinstance(again, Translator)
    assert again.translate(LINES) == ours.translate(LINES)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{line}\t{line}\n" for line in LINES * 4))
    regard.finetune(
        place,
        "translate",
        pairs,
        out=tmp_path / "run",
        epochs=1,
        threads=1,
        quiet=True,
        batch_tokens=64,
    )
    tuned = regard.load(tmp_path / "run", device="cpu")
    assert isinstance(tuned, Translator)
    assert tuned.encode(LINES) == ours.encode(LINES)


def test_llama(tmp_path: Path) -> None:
    place = tmp_path / "llama"
    torch.manual_seed(0)
    data = pieces(
        model_type="bpe", byte_fallback=True, vocab_size=330, normalization_rule_name="identity"
    )
    config = transformers.LlamaConfig(
        vocab_size=330, hidden_size=24, intermediate_size=30, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=3, pad_token_id=0,
    )  # fmt: skip
    model = shaken(transformers.LlamaForCausalLM(config), place)
    (place / "tokenizer.model").write_bytes(data)
    ours = regard.load(place, device="cpu")
    assert isinstance(ours, LanguageModel)
    ids = ours.tokenizer.input_ids("a cat")
    assert ids == [1, *spm.SentencePieceProcessor(model_proto=data).encode("a cat")]
    out = model.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False, eos_token_id=None)[
        0, len(ids) :
    ]
    held = ours.tokenizer.decode(out.tolist())
    assert ours.generate("a cat", max_new_tokens=5).strip() == held.strip()
    text = tmp_path / "text.txt"
    text.write_text("\n".join(LINES * 20))
    options: dict[str, Any] = {
        "epochs": 1,
        "threads": 1,
        "quiet": True,
        "batch_tokens": 64,
        "context": 16,
        "samples": 0,
    }
    regard.finetune(place, "lm", text, out=tmp_path / "run", **options)
    tuned = regard.load(tmp_path / "run", device="cpu")
    assert isinstance(tuned, LanguageModel)
    assert tuned.tokenizer.input_ids("a cat") == ids
    (place / "tokenizer.model").write_bytes(data[:300])
    with pytest.raises(DataError, match="SentencePiece"):
        regard.load(place)
