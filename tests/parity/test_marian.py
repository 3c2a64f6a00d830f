"""Post-norm models and MarianMTModel of transformers: the same logits and the same files, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from regard import spec
from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.data.text.tokenizer import END, PAD, START, UNKNOWN
from regard.data.text.tokenizer_training import train_tokenizer
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.families.encoder_decoders.transformer import transformer
from regard.families.folder import (
    SpecialTokenIds,
    append_end_token,
    describe,
    generation_config,
    open_model,
    read,
    tokenizer_config,
    write_weights,
)
from regard.system import disk
from regard.wirings.encoder_decoder import EncoderDecoder
from seeds import SEEDS

transformers = pytest.importorskip("transformers")

IDS = SpecialTokenIds(pad=0, start=1, end=2, unk=3)
SHARES = ["all", "target", "none"]
DETAILS = [
    {"activation": "relu"},
    {"activation": "gelu", "feedforward_dropout": 0.1},
    {"activation": "silu"},
]


class Batch(NamedTuple):
    source: Tensor
    padding_mask: Tensor
    target: Tensor
    scored: Tensor  # target positions that are no padding


def batch(source_vocabulary: int, target_vocabulary: int) -> Batch:
    padding_mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    scored = torch.arange(5) < torch.tensor([3, 5, 2])[:, None]
    source = torch.randint(4, source_vocabulary, padding_mask.shape).masked_fill(
        ~padding_mask, IDS.pad
    )
    target = torch.randint(4, target_vocabulary, scored.shape).masked_fill(~scored, IDS.pad)
    return Batch(source, padding_mask, target, scored)


@torch.no_grad()
def stir(parts: Any) -> None:
    """Moves every number, so that no bias is zero and no two norms are alike."""
    for part in parts:
        part.add_(torch.randn_like(part) * 0.1)


@torch.no_grad()
def ours(model: EncoderDecoder, data: Batch) -> Tensor:
    hidden, _ = model.eval()(data.source, data.target, data.padding_mask)
    return model.head(hidden)[data.scored]


@torch.no_grad()
def theirs(model: Any, data: Batch) -> Tensor:
    out = model.eval()(
        input_ids=data.source,
        attention_mask=data.padding_mask.long(),
        decoder_input_ids=data.target,
    )
    return out.logits[data.scored]


def same_logits(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-5 * max(1.0, float(a.abs().mean())))


def write(folder: Path, model: EncoderDecoder, model_spec: spec.Model, positions: int = 64) -> None:
    folder.mkdir(exist_ok=True)
    disk.write_json(folder / "config.json", describe(model_spec, IDS, positions))
    write_weights(folder / "model.safetensors", model, model_spec, positions)


def open_theirs(folder: Path) -> Any:
    """As transformers opens it, with nothing missing, unexpected or initialised."""
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    return model


def random_theirs(kind: Any, config: Any, **changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 37, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 28,
        "max_position_embeddings": 64,
        "pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    model = kind(config(**{**sizes, **changes}))
    stir([part for part in model.parameters() if part.requires_grad])
    stir([model.final_logits_bias])
    return model


def check_there_and_back(model: Any, folder: Path) -> None:
    """transformers → folder → ours → folder → transformers: equal logits, and the same bytes in every tensor."""
    first, second = folder / "first", folder / "second"
    model.save_pretrained(first)
    mine, opened = open_model(first)
    assert isinstance(mine, EncoderDecoder)
    data = batch(opened.spec.source.vocabulary, opened.spec.target.vocabulary)
    assert same_logits(theirs(model, data), ours(mine, data))
    assert parameter_count(opened.spec) == sum(part.numel() for part in mine.parameters())
    write(second, mine, opened.spec, opened.positions)
    before, after = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(
        torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype
        for name in before
    )
    assert torch.equal(theirs(model, data), theirs(open_theirs(second), data))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", SHARES)
def test_ours_opens_there(share: Any, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    target = 37 if share == "all" else 41
    sizes = {
        "d_model": 24 - 3 * (seed % 2),
        "d_ff": 40,
        "heads": 3,
        "layers": 2,
        "decoder_layers": 3,
    }
    model_spec = transformer(37, target, share=share, **sizes, **DETAILS[seed])  # type: ignore[arg-type]
    model = build(model_spec)
    stir(model.parameters())
    write(tmp_path, model, model_spec)
    other, data = open_theirs(tmp_path), batch(37, target)
    assert type(other).__name__ == "MarianMTModel"
    assert same_logits(ours(model, data), theirs(other, data))
    assert other.config.forced_eos_token_id is None
    opened = read(tmp_path)
    assert (opened.spec, opened.ids) == (model_spec, IDS)
    assert all(torch.equal(opened.weights[name], part) for name, part in model.named_parameters())


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "swish", "scale_embedding": True},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 41},
        {
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 41,
            "tie_word_embeddings": False,
        },
    ],
    ids=SHARES,
)
def test_theirs_opens_here_and_goes_back(changes: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(3)
    check_there_and_back(
        random_theirs(transformers.MarianMTModel, transformers.MarianConfig, **changes), tmp_path
    )


def test_shards_and_half_precision_open_as_float32(tmp_path: Path) -> None:
    torch.manual_seed(4)
    random_theirs(transformers.MarianMTModel, transformers.MarianConfig).half().save_pretrained(
        tmp_path, max_shard_size="10KB"
    )
    assert not (tmp_path / "model.safetensors").exists()
    mine, _ = open_model(tmp_path)
    assert isinstance(mine, EncoderDecoder)
    data = batch(37, 37)
    assert {part.dtype for part in mine.parameters()} == {torch.float32}
    assert same_logits(ours(mine, data), theirs(open_theirs(tmp_path), data))


def test_a_whole_folder_translates_alike(tmp_path: Path) -> None:
    """Text in, tokens out, through the files alone: tokenizer.json, config.json, generation_config.json."""
    torch.manual_seed(5)
    tokenizer = train_tokenizer(
        ["a dog runs", "the small house </s> is here", "two dogs"] * 9, "bpe", 60
    )
    model_spec = transformer(len(tokenizer), len(tokenizer), d_model=24, d_ff=40, heads=3, layers=2)
    model = build(model_spec)
    stir(model.parameters())
    write(tmp_path, model, model_spec)
    (tmp_path / "tokenizer.json").write_text(append_end_token(tokenizer.to_json(), END))
    disk.write_json(
        tmp_path / "tokenizer_config.json", tokenizer_config(PAD, START, END, UNKNOWN, positions=64)
    )
    disk.write_json(tmp_path / "generation_config.json", generation_config(IDS, max_length=13))

    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["the dogs", "a small house </s> runs here"]
    sources = [[*ids, IDS.end] for ids in tokenizer.encode_batch(texts)]
    rows = other(texts, padding=True, return_tensors="pt")
    assert [[i for i in row if i != IDS.pad] for row in rows["input_ids"].tolist()] == sources
    assert (other.pad_token_id, other.bos_token_id, other.eos_token_id, other.unk_token_id) == (
        0,
        1,
        2,
        3,
    )

    result = decode(
        model,
        sources,
        SpecialTokens(0, 1, 2, banned=(0,)),
        DecodingSettings(Greedy(), Limit(factor=0.0, extra=12)),
    )
    generated = (
        open_theirs(tmp_path)
        .generate(**{k: rows[k] for k in ("input_ids", "attention_mask")})
        .tolist()
    )
    for (mine,), row in zip(result, generated, strict=True):
        ended = row[1:].index(IDS.end) if IDS.end in row[1:] else len(row[1:])
        assert list(mine.tokens) == row[1 : 1 + ended]


def test_generation_config_is_valid_there(tmp_path: Path) -> None:
    disk.write_json(
        tmp_path / "generation_config.json", generation_config(IDS, beam=4, length_penalty=0.6)
    )
    settings = transformers.GenerationConfig.from_pretrained(tmp_path)
    settings.validate(strict=True)
    assert (settings.num_beams, settings.length_penalty, settings.bad_words_ids) == (4, 0.6, [[0]])
    assert (settings.decoder_start_token_id, settings.eos_token_id, settings.pad_token_id) == (
        1,
        2,
        0,
    )
