"""Decision Transformer against transformers: outputs with and without padding, and tensors."""

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
from regard.families import folder as folders
from regard.system.errors import DataError, ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

STEPS = 7
SIZES = {
    "state_dim": 5,
    "act_dim": 3,
    "hidden_size": 20,
    "max_ep_len": 13,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 21,
    "n_positions": 11,  # fewer than tokens: they have the first position each
    "vocab_size": 2,
    "layer_norm_epsilon": 1e-3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unbounded": {"action_tanh": False, "activation_function": "gelu_new"},
    "a number": {"act_dim": 1, "state_dim": 1, "n_head": 1, "n_layer": 1},
}


def theirs(out: Path, seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = transformers.DecisionTransformerConfig(**SIZES | changes)
    model = transformers.DecisionTransformerModel(config).eval()
    model.set_attn_implementation("eager")  # which gives weights
    perturb(model, 0.1)
    model.save_pretrained(out)
    return model


def batch(config: Any, mask: Tensor | None = None, steps: int = STEPS) -> dict[str, Tensor]:
    inputs = {
        "states": torch.randn(3, steps, config.state_dim),
        "actions": torch.randn(3, steps, config.act_dim),
        "rewards": torch.randn(3, steps, 1),
        "returns_to_go": torch.randn(3, steps, 1),
        "timesteps": torch.randint(config.max_ep_len, (3, steps)),
    }
    return inputs if mask is None else {**inputs, "attention_mask": mask}


def padded(*, left: bool) -> Tensor:
    """1 at steps that are none of padding: rows of 7, 4 and 1 steps."""
    steps = torch.arange(STEPS)
    mask = (steps < torch.tensor([7, 4, 1])[:, None]).long()
    return mask.flip(1) if left else mask


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_open_run_and_write_back(variant: str, seed: int, tmp_path: Path) -> None:
    model = theirs(tmp_path / "theirs", seed, **VARIANTS[variant])
    loaded = regard.load(tmp_path / "theirs", device="cpu")
    assert trainable(loaded.model) == parameter_count(loaded.spec)
    assert spec.from_dict(spec.to_dict(loaded.spec)) == loaded.spec
    options = {"output_hidden_states": True, "output_attentions": True}
    for mask in (None, padded(left=False), padded(left=True)):
        inputs = batch(model.config, mask)
        with torch.inference_mode():
            wanted, result = model(**inputs, **options), loaded(**inputs, **options)
        assert {*result} == {*wanted}
        shown = torch.ones(3, STEPS, dtype=torch.bool) if mask is None else mask.bool()
        tokens = shown.repeat_interleave(3, dim=1)
        for name in ("state_preds", "action_preds", "return_preds"):
            assert close(result[name][shown], wanted[name][shown]), name
        assert close(result["last_hidden_state"][tokens], wanted["last_hidden_state"][tokens])
        assert len(result["hidden_states"]) == len(wanted["hidden_states"])
        for one, other in zip(result["hidden_states"], wanted["hidden_states"], strict=True):
            assert close(one[tokens], other[tokens])
        for one, other in zip(result["attentions"], wanted["attentions"], strict=True):
            # Of the queries that are no padding: [tokens, heads, keys]
            assert close(one.transpose(1, 2)[tokens], other.transpose(1, 2)[tokens])

    loaded.save(tmp_path / "ours")
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    configs = [json.loads((tmp_path / at / "config.json").read_text()) for at in ("theirs", "ours")]
    for config in configs:
        for key in ("transformers_version", "dtype"):
            config.pop(key, None)
    assert configs[0] == configs[1]


def test_an_action_is_not_seen_by_its_prediction(tmp_path: Path) -> None:
    config = theirs(tmp_path).config
    loaded = regard.load(tmp_path, device="cpu")
    inputs = batch(config)
    before = loaded(**inputs)
    inputs["actions"] = inputs["actions"].clone()
    inputs["actions"][:, 4] += 1
    after = loaded(**inputs)
    assert torch.equal(before.action_preds[:, :5], after.action_preds[:, :5])
    assert not close(before.action_preds[:, 5:], after.action_preds[:, 5:])
    assert not close(before.state_preds[:, 4], after.state_preds[:, 4])


def test_time_steps_that_it_does_not_know(tmp_path: Path) -> None:
    inputs = batch(theirs(tmp_path).config)
    inputs["timesteps"][1, 2] = SIZES["max_ep_len"]
    with pytest.raises(DataError, match="0 to 12, not 13"):
        regard.load(tmp_path, device="cpu")(**inputs)


@pytest.mark.parametrize(
    "change", [{"scale_attn_by_inverse_layer_idx": True}, {"add_cross_attention": True}]
)
def test_what_is_not_supported(change: dict[str, Any], tmp_path: Path) -> None:
    theirs(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=next(iter(change))):
        folders.peek(tmp_path)
