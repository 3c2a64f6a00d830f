"""Model folders: ours come back bit for bit, and each bad one gets its error."""

from __future__ import annotations

import dataclasses
import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import models

import zoo
from regard import spec
from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.core.positions.positional_encoding import Sinusoidal
from regard.families.encoder_decoders.transformer import transformer
from regard.families.folder import (
    SpecialTokenIds,
    append_end_token,
    describe,
    generation_config,
    open_model,
    read,
    write_weights,
)
from regard.system import disk
from regard.system.errors import CheckpointError, DataError, DiskError, ModelError, RegardError
from regard.wirings.encoder_decoder import EncoderDecoder

IDS = SpecialTokenIds(pad=0, start=1, end=2, unk=3)
PLAIN = transformer(37, 37, d_model=24, d_ff=40, heads=3, layers=2)


def changed(part: Any, **changes: Any) -> Any:
    """A spec with both blocks changed."""
    encoder, decoder = part.encoder, part.decoder
    return dataclasses.replace(
        part,
        encoder=encoder.with_blocks(**changes),
        decoder=decoder.with_blocks(**changes),
    )


WITHOUT_COUNTERPART: dict[str, spec.Model] = {
    "learned": transformer(
        37, 37, d_model=24, d_ff=40, heads=3, layers=2, position=spec.LearnedPosition(30)
    ),
    "interleaved": transformer(
        37,
        41,
        d_model=24,
        heads=3,
        layers=1,
        share="target",
        position=spec.Sinusoidal("interleaved"),
    ),
    "base": transformer(
        37, 37, d_model=24, heads=3, layers=1, position=spec.Sinusoidal(base=500.0)
    ),
    "narrow keys": transformer(
        37, 41, d_model=24, d_ff=40, heads=3, layers=2, d_k=5, d_v=7, share="none"
    ),
    "indivisible": transformer(37, 37, d_model=24, d_ff=40, heads=5, layers=1, d_k=4, d_v=4),
    "groups": changed(PLAIN, attention=spec.Attention(4, 6, 6, groups=2)),
    "no bias": changed(PLAIN, attention=spec.Attention(3, 8, 8, bias="")),
    "eps": changed(PLAIN, norm=spec.LayerNorm(1e-6)),
    "dropouts": dataclasses.replace(
        PLAIN, target=dataclasses.replace(PLAIN.target_tokens, dropout=0.3)
    ),
    "pre-norm, untied": transformer(
        37, 37, d_model=24, heads=3, layers=1, share="none", residual=spec.PreNorm()
    ),
    "no positions": transformer(37, 37, d_model=24, heads=3, layers=1, position=None),
}


def write(folder: Path, model_spec: spec.Model = PLAIN) -> EncoderDecoder:
    torch.manual_seed(0)
    model = build(model_spec)
    assert isinstance(model, EncoderDecoder)
    disk.write_json(folder / "config.json", describe(model_spec, IDS))
    write_weights(folder / "model.safetensors", model, model_spec)
    return model


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    assert isinstance(model, EncoderDecoder)
    source, target = torch.arange(12).view(2, 6), torch.arange(8).view(2, 4)
    return model.head(model.eval()(source, target)[0])


@pytest.mark.parametrize("name", WITHOUT_COUNTERPART)
def test_a_model_without_counterpart_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model_spec = WITHOUT_COUNTERPART[name]
    model = write(tmp_path, model_spec)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("regard", ["EncoderDecoder"])
    again, opened = open_model(tmp_path)
    assert (opened.spec, opened.ids) == (model_spec, IDS)
    assert load_file(tmp_path / "model.safetensors").keys() == dict(model.named_parameters()).keys()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert torch.equal(logits(model), logits(again))
    assert parameter_count(opened.spec) == sum(part.numel() for part in again.parameters())


@pytest.mark.parametrize("share", ["all", "target", "none"])
@pytest.mark.parametrize("residual", [spec.PostNorm(), spec.PreNorm()])
def test_what_is_shared_stays_one_trainable_parameter(
    share: Any, residual: spec.Residual, tmp_path: Path
) -> None:
    model_spec = transformer(37, 37, d_model=24, heads=3, layers=1, share=share, residual=residual)
    write(tmp_path, model_spec)
    model, opened = open_model(tmp_path)
    assert opened.spec == model_spec
    assert (model.source.table.weight is model.target.table.weight) == (share == "all")
    assert (model.head.table.weight is model.target.table.weight) == (share != "none")
    assert parameter_count(model_spec) == sum(
        part.numel() for part in model.parameters() if part.requires_grad
    )
    model(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))[
        0
    ].sum().backward()
    assert all(
        part.grad is not None
        for name, part in model.named_parameters()
        if not name.startswith("head")
    )


def test_an_opened_model_draws_no_numbers_and_has_its_positions(tmp_path: Path) -> None:
    fresh = write(tmp_path)
    before = torch.get_rng_state()
    model, _ = open_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    tables = [part.table for part in model.modules() if isinstance(part, Sinusoidal)]
    assert len(tables) == 2
    assert all(torch.equal(table, fresh.source.position.table) for table in tables)  # type: ignore[union-attr, arg-type]
    long = torch.zeros(1, 600, dtype=torch.long)
    with torch.no_grad():
        assert torch.equal(model.source(long), fresh.eval().source(long))


@pytest.mark.parametrize("name", ["marian", "gpt2", "llama"])
def test_a_model_opens_in_the_precision_that_is_asked_for(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    zoo.save(name, tmp_path, dtype=torch.bfloat16)
    tokens = torch.randint(5, 40, (2, 7))
    for dtype, expected in (
        (None, torch.float32),
        ("auto", torch.bfloat16),
        (torch.float64, torch.float64),
    ):
        model, opened = open_model(tmp_path, dtype=dtype)  # type: ignore[arg-type]
        assert {parameter.dtype for parameter in model.parameters()} == {expected}
        assert {tensor.dtype for tensor in opened.weights.values()} == {torch.bfloat16}
        with torch.inference_mode():
            if isinstance(model, EncoderDecoder):
                hidden = model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool)).hidden
            else:
                hidden, _ = model(tokens)  # type: ignore[misc]
        assert hidden.dtype == expected


def test_the_file_says_what_wrote_it_and_leaves_nothing_else(tmp_path: Path) -> None:
    write(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_full_disk_leaves_the_old_weights(tmp_path: Path) -> None:
    model = write(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with pytest.raises(DiskError, match="disk is full"):
            write_weights(tmp_path / "model.safetensors", model, PLAIN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_weights_are_written_only_for_their_own_spec(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="lacks"):
        write_weights(
            tmp_path / "model.safetensors", build(PLAIN), dataclasses.replace(PLAIN, share="target")
        )
    assert not list(tmp_path.iterdir())


def test_shards_are_read_together(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = write(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    files = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in files if files[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    disk.write_json(index, {"weight_map": files})
    assert torch.equal(logits(open_model(folder)[0]), logits(model))
    damaged: list[Any] = [
        {"weight_map": {**files, "lm_head.weight": "model-0.safetensors"}},
        {"weight_map": {**files, "lm_head.weight": "model-2.safetensors"}},
        {"weight_map": dict.fromkeys(files, "../outside.safetensors")},
        {"weight_map": 3},
        [],
    ]
    for bad in damaged:
        disk.write_json(index, bad)
        with pytest.raises(CheckpointError):
            read(folder)


# ------------------------------------------------------------------ bad folders


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        disk.write_json(folder / "config.json", {**config, **changes})

    return edit


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = {
            name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()
        }
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def edit_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return edit


def as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


NORM = "model.decoder.layers.1.final_layer_norm.weight"

BAD: dict[str, tuple[Callable[[Path], Any], type[RegardError], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ModelError, "not a model or run folder"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ModelError,
    "holds no model.safetensors"),
    "a pickle": (as_pickle, ModelError, "safe_serialization=True"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), ModelError, "not valid JSON"),
    "no UTF-8": (lambda f: (f / "config.json").write_bytes(b'{"\xff": 1}'), ModelError,
    "not UTF-8"),
    "no object": (lambda f: (f / "config.json").write_text("[]"), ModelError, "is not a JSON object"),
    "unknown type": (edit_config(model_type="mariann"), ModelError, "did you mean 'marian'"),
    "strange type": (edit_config(model_type="rwkv7"), ModelError, "known: .*marian"),
    "another version": (edit_config(model_type="swinv2"), ModelError, "known: .*swin"),
    "no type": (edit_config(model_type=None), ModelError, "has no model_type"),
    "pre-norm": (edit_config(normalize_before=True), ModelError, "normalize_before is True"),
    "layer drop": (edit_config(encoder_layerdrop=0.1), ModelError, "encoder_layerdrop"),
    "unknown key": (edit_config(sliding_window=5), ModelError, "sliding_window"),
    "remote code": (edit_config(auto_map={"AutoModel": "evil.Model"}), ModelError, "auto_map"),
    "activation": (edit_config(activation_function="mish"), ModelError, "'mish'.*\n.*known: gelu"),
    "heads": (edit_config(decoder_attention_heads=5), ModelError, "is not divisible by 5 heads"),
    "half tied": (edit_config(tie_word_embeddings=False), ModelError,
    "share_encoder_decoder_embeddings"),
    "vocabularies": (edit_config(decoder_vocab_size=36), ModelError, "one vocabulary"),
    "no padding": (edit_config(pad_token_id=None), ModelError, "pad_token_id"),
    "two ends": (edit_config(eos_token_id=[2, 5]), ModelError, "eos_token_id"),
    "more layers": (edit_config(encoder_layers=3), ModelError, "lacks model.encoder.layers.2"),
    "fewer layers": (edit_config(encoder_layers=1), ModelError, "unexpected tensors: .* and 11 more"),
    "wider": (edit_config(encoder_ffn_dim=41), ModelError,
    r"fc1\S+ has the shape \(40, 24\), but \(41, 24\)"),
    "absurd": (edit_config(d_model=3 * 10**19), ModelError, "d_model cannot be 3"),
    "too large": (edit_config(encoder_ffn_dim=2 * 10**9), ModelError,
    r"take \S+ [GT]B of memory, and \S+ \SB are free"),
    "trained bias": (edit_tensors(lambda t: t["final_logits_bias"].add_(1)), ModelError,
    "final_logits_bias"),
    "missing": (edit_tensors(lambda t: t.pop(NORM)), ModelError, f"lacks {NORM}"),
    "extra": (edit_tensors(lambda t: t.update(more=torch.zeros(1))), ModelError,
    "has unexpected tensors: more"),
    "shape": (edit_tensors(lambda t: t.update({NORM: torch.zeros(5)})), ModelError,
    r"\(5,\), but \(24,\)"),
    "untied": (edit_tensors(lambda t: t.update({"lm_head.weight": torch.zeros(37, 24)})),
    ModelError, "are tied"),
    "positions": (
        edit_tensors(lambda t: t.update({"model.encoder.embed_positions.weight": torch.zeros(1024,
        24)})),
        ModelError,
        "has other values than config.json implies",
    ),
    "cut": (edit_bytes(lambda b: b[:-7]), CheckpointError, "damaged or incomplete"),
    "cut in the header": (edit_bytes(lambda b: b[:50]), CheckpointError, "damaged or incomplete"),
    "empty": (edit_bytes(lambda b: b""), CheckpointError, "damaged or incomplete"),
    "longer": (edit_bytes(lambda b: b + b"\0"), CheckpointError, "damaged or incomplete"),
    "altered header": (edit_bytes(lambda b: b[:12] + b"\xff" + b[13:]), CheckpointError,
    "damaged or incomplete"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_gets_its_error(name: str, tmp_path: Path) -> None:
    harm, kind, message = BAD[name]
    write(tmp_path)
    harm(tmp_path)
    with pytest.raises(kind, match=message) as caught:
        open_model(tmp_path)
    assert caught.value.repair


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec": {"kind": "CausalMask"}}, "no model"),
        ({"spec": None}, "no model"),
        ({"window": 3}, "window"),
        ({"spec": {"kind": "Mamba"}}, "Mamba"),
    ],
)
def test_a_bad_config_of_our_own_gets_its_error(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, WITHOUT_COUNTERPART["learned"])
    edit_config(**changes)(tmp_path)
    with pytest.raises(ModelError, match=message):
        read(tmp_path)


def test_the_way_old_versions_wrote_marian_is_understood(tmp_path: Path) -> None:
    """Keys as in the folders of Helsinki-NLP, whose files hold tied copies and position tables too."""
    model = write(tmp_path)
    edit_config(
        add_bias_logits=False, add_final_layer_norm=False, bad_words_ids=[[0]],
        classif_dropout=0.0, num_beams=6,
        extra_pos_embeddings=37, id2label={"0": "LABEL_0"}, max_length=512, normalize_before=False,
        hidden_size=24,
        normalize_embedding=False, num_hidden_layers=2, static_position_embeddings=True,
        transformers_version="4.22.0",
    )(tmp_path)  # fmt: skip
    names = [
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    ]
    sines = Sinusoidal(24, "halves", 10_000.0).rows(1024)[:1024]
    edit_tensors(
        lambda t: t.update(
            {name: t["model.shared.weight"].clone() for name in names},
            **{
                f"model.{side}.embed_positions.weight": sines.clone()
                for side in ("encoder", "decoder")
            },
        )
    )(tmp_path)
    assert torch.equal(logits(open_model(tmp_path)[0]), logits(model))


# ------------------------------------------------------------------ the smaller files


def test_generation_config_speaks_of_beams_only_to_beams() -> None:
    assert generation_config(IDS, length_penalty=0.6, max_length=9) == {
        "pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2,
        "num_beams": 1,
        "bad_words_ids": [[0]], "renormalize_logits": True, "max_length": 9, "regard_search": {},
    }  # fmt: skip
    beams = generation_config(IDS, beam=4, length_penalty=0.6)
    assert (beams["num_beams"], beams["length_penalty"], beams["early_stopping"]) == (4, 0.6, True)
    assert "length_penalty" not in generation_config(IDS, beam=4)
    assert generation_config(IDS, search={"gnmt": 0.6})["regard_search"] == {"gnmt": 0.6}
    assert "bad_words_ids" not in generation_config(SpecialTokenIds(pad=2, start=1, end=2))


def test_the_end_token_is_appended_for_other_libraries_only() -> None:
    plain = tokenizers.Tokenizer(
        models.WordLevel({"a": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>")
    )
    ended = tokenizers.Tokenizer.from_str(append_end_token(plain.to_str(), "</s>"))
    assert ended.encode("a").ids == [0, 1]
    assert ended.encode("a", add_special_tokens=False).ids == [0]
    with pytest.raises(DataError, match="<end>"):
        append_end_token(plain.to_str(), "<end>")
