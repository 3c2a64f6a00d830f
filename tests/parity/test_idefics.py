"""Idefics against transformers; at the start, its language model is what it was without images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_vision import close

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.families.presets import preset
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

VISION = {
    "embed_dim": 12, "image_size": 30, "patch_size": 7, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 19,
}  # fmt: skip
PERCEIVER = {
    "use_resampler": True, "resampler_n_latents": 5, "resampler_depth": 2, "resampler_n_heads": 3,
    "resampler_head_dim": 4,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"cross_layer_interval": 2},
    "resampled": {"use_resampler": True, "perceiver_config": PERCEIVER, "alpha_type": "vector"},
    "normed": {
        "use_resampler": True,
        "perceiver_config": {**PERCEIVER, "qk_layer_norms_perceiver": True},
        "qk_layer_norms": True,
    },
}


def theirs(kind: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    config = transformers.IdeficsConfig(
        vocab_size=41, hidden_size=16, intermediate_size=27, num_hidden_layers=4,
        num_attention_heads=4, max_position_embeddings=40, vision_config=VISION,
        pad_token_id=3, bos_token_id=1, eos_token_id=2, **KINDS[kind],
    )  # fmt: skip
    model = transformers.IdeficsForVisionText2Text(config).eval()
    perturb(model, 0.3)  # the gates too, which are closed at the start
    model.save_pretrained(out)
    return model


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_open_run_and_write_back(kind: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, seed, tmp_path / "theirs")
    loaded = regard.load(tmp_path / "theirs", say=lambda text: None)
    assert isinstance(loaded, regard.ImageCaptioner)
    assert trainable(loaded.model) == parameter_count(loaded.spec)
    assert spec.from_dict(spec.to_dict(loaded.spec)) == loaded.spec
    ids = torch.randint(4, 41, (2, 7))
    pixels = torch.randn(2, 3, 3, 30, 30)  # three images a text
    seen = torch.tensor([[t > 0, t > 2, t > 4] for t in range(7)]).long().repeat(2, 1, 1)
    seen[1, :, 1] = 0  # and the first word of both sees no image
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, :2] = 0  # left padding
    ours: Any = {
        "pixel_values": pixels, "decoder_input_ids": ids, "decoder_attention_mask": mask,
        "image_attention_mask": seen,
    }  # fmt: skip
    with torch.inference_mode():
        wanted = model(
            input_ids=ids, attention_mask=mask, pixel_values=pixels, image_attention_mask=seen
        )
        result = loaded(**ours)
        assert close(result.logits[mask.bool()], wanted.logits[mask.bool()])
        assert close(result.encoder_last_hidden_state, wanted.image_hidden_states.flatten(1, 2))
        # A mask of ones is none, and another one is not.
        whole = loaded(**{**ours, "image_attention_mask": None}).logits
        assert close(whole, loaded(**{**ours, "image_attention_mask": seen * 0 + 1}).logits)
        assert not torch.allclose(whole, result.logits)

    loaded.save(tmp_path / "ours")
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    configs = [json.loads((tmp_path / at / "config.json").read_text()) for at in ("theirs", "ours")]
    for config in configs:
        for key in ("transformers_version", "dtype"):
            config.pop(key, None)
    assert configs[0] == configs[1]


def test_at_the_start_it_is_the_frozen_language_model() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "heads": 2, "d_ff": 24, "image_size": 16, "patch": 8}
    described: Any = preset("idefics:tiny", 41, 40, **sizes)
    model = build(described)
    stack = described.decoder.with_blocks(gated=None)
    alone = build(spec.Decoder(16, described.target, stack, described.heads, tied=False))
    names = {"tokens.": "target.", "stack.": "decoder."}
    weights = model.state_dict()
    for name, tensor in alone.state_dict().items():
        old = next((part for part in names if name.startswith(part)), "")
        weights[names.get(old, "") + name.removeprefix(old)].copy_(tensor)
    ids = torch.randint(0, 41, (2, 9))
    pixels = torch.randn(2, 3, 16, 16)
    assert torch.equal(model.eval()(pixels, ids)[0], alone.eval()(ids)[0])
    # One step of the new layers alone: gates open, and nothing of the language model moves.
    new = (".gates.", ".cross.", "resampler.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in f".{name}" for part in new))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-2)
    logits = model.head(model(pixels, ids[:, :-1])[0])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    after = model.state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert all(any(part in f".{name}" for part in new) for name in changed)
    assert any("alphas" in name for name in changed)
    assert not torch.equal(model(pixels, ids)[0], alone(ids)[0])
