"""VisionEncoderDecoder against transformers: outputs, the loss, captions token for token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_vision import close
from torch import Tensor

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy, Limit, PowerPenalty, Strategy
from regard.families import folder as folders
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

START, END, PAD = 1, 2, 3
VIT = {
    "image_size": 30,
    "patch_size": 7,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 19,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "ViT": VIT,
    "DeiT": {**VIT, "hidden_size": 12},  # mapped to the decoder's width
    "Swin": {
        "image_size": 30,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [1, 2],
        "num_heads": [2, 4],
        "window_size": 3,
    },
}
TOKENS = {"vocab_size": 41, "bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
DECODERS: dict[str, dict[str, Any]] = {
    "GPT2": {**TOKENS, "n_positions": 30, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_inner": 27},
    "Bert": {
        **TOKENS,
        "max_position_embeddings": 30,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 21,
    },
}
PAIRS = (("ViT", "GPT2"), ("DeiT", "Bert"), ("Swin", "GPT2"), ("ViT", "Bert"))
EXACT = ("encoder_attentions", "decoder_attentions", "cross_attentions")


def theirs(encoder: str, decoder: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    sides = (
        getattr(transformers, f"{name}Config")(**sizes[name])
        for name, sizes in ((encoder, ENCODERS), (decoder, DECODERS))
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        *sides, decoder_start_token_id=START, eos_token_id=END, pad_token_id=PAD
    )
    model = transformers.VisionEncoderDecoderModel(config).eval()
    for side in (model.encoder, model.decoder):
        side.set_attn_implementation("eager")
    perturb(model, 0.1)
    model.save_pretrained(out)
    return model


def batch(model: Any) -> dict[str, Tensor]:
    side = model.config.encoder.image_size
    return {
        "pixel_values": torch.randn(3, 3, side, side),
        "decoder_input_ids": torch.randint(4, 41, (3, 7)),
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_open_run_and_write_back(encoder: str, decoder: str, seed: int, tmp_path: Path) -> None:
    model = theirs(encoder, decoder, seed, tmp_path / "theirs")
    loaded = regard.load(tmp_path / "theirs", say=lambda text: None)
    assert trainable(loaded.model) == parameter_count(loaded.spec)
    assert spec.from_dict(spec.to_dict(loaded.spec)) == loaded.spec
    inputs = batch(model)
    asked = {"output_hidden_states": True, "output_attentions": True}
    with torch.inference_mode():
        wanted, result = model(**inputs, **asked), loaded(**inputs, **asked)
        assert [*result] == [key for key in wanted if key != "past_key_values"]
        for key, value in result.items():
            both = (value, wanted[key])
            pairs = zip(*both, strict=True) if isinstance(value, tuple) else [both]
            assert all(close(one, other) for one, other in pairs), key
        labels = inputs["decoder_input_ids"]
        pixels = inputs["pixel_values"]
        losses = [one(pixel_values=pixels, labels=labels)["loss"] for one in (model, loaded)]
        torch.testing.assert_close(*losses)

    loaded.save(tmp_path / "ours")
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    configs = [json.loads((tmp_path / at / "config.json").read_text()) for at in ("theirs", "ours")]
    for config in configs:
        for key in ("transformers_version", "dtype"):
            config.pop(key, None)
    assert configs[0] == configs[1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS[:2])
def test_captions_token_for_token(encoder: str, decoder: str, seed: int, tmp_path: Path) -> None:
    model = theirs(encoder, decoder, seed, tmp_path)
    ours, _ = folders.open_model(tmp_path)
    pixels = batch(model)["pixel_values"]
    searches: dict[int, Strategy] = {
        1: Greedy(),
        4: BeamSearch(4, PowerPenalty(1.0), slots="refilled", stop="likely"),
    }
    for beams, strategy in searches.items():
        expected = model.generate(pixels, num_beams=beams, max_new_tokens=11, do_sample=False)
        special = SpecialTokens(PAD, START, END)
        settings = DecodingSettings(strategy, Limit.fixed(11))
        found = decode(ours, [*pixels], special, settings)  # type: ignore[arg-type]
        for row, hypotheses in zip(expected.tolist(), found, strict=True):
            tokens = row[1:]
            if END in tokens:
                tokens = tokens[: tokens.index(END)]
            best = list(hypotheses[0].tokens)
            assert best == [i for i in tokens if i != PAD or PAD in best]


def test_ids_that_only_the_decoder_names(tmp_path: Path) -> None:
    """`generate` finds them there, and pads by the end token where nothing else does."""
    theirs("ViT", "GPT2", 0, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for key in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
        config.pop(key)
    config["decoder"].pop("pad_token_id")
    path.write_text(json.dumps(config))
    (tmp_path / "generation_config.json").unlink()
    ids = folders.peek(tmp_path).ids
    assert ids is not None
    assert (ids.start, ids.end, ids.pad) == (START, END, END)


@pytest.mark.parametrize(
    ("side", "change", "word"),
    [
        ("decoder", {"model_type": "xlnet"}, "xlnet"),
        ("encoder", {"model_type": "resnet"}, "resnet"),
        ("decoder", {"cross_attention_hidden_size": 12}, "cross_attention_hidden_size"),
    ],
)
def test_what_is_not_supported(side: str, change: Any, word: str, tmp_path: Path) -> None:
    theirs("ViT", "Bert", 0, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config[side] |= change
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=word):
        folders.peek(tmp_path)
