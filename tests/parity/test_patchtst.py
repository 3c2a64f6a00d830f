"""PatchTST against transformers: random models of odd sizes, three seeds, both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import spec
from regard.system.errors import DataError, ModelError
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "num_input_channels": 3,
    "context_length": 37,
    "patch_length": 5,
    "patch_stride": 3,
    "d_model": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "ffn_dim": 17,
    "prediction_length": 7,
    "num_targets": 4,
    "random_mask_ratio": 0.4,
}
# Each changes what the model computes.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layer norm": {"norm_type": "layernorm", "pre_norm": False, "norm_eps": 1e-3},
    "class token": {"use_cls_token": True, "positional_encoding_type": "random"},
    "channels apart": {"share_embedding": False, "pooling_type": "max", "scaling": "mean"},
    "unscaled": {"scaling": None, "bias": False, "activation_function": "relu"},
    "one channel": {"num_input_channels": 1, "patch_stride": 5, "context_length": 40},
}
FORECASTS: dict[str, dict[str, Any]] = {
    "flatten": {"pooling_type": None},
    "student": {"loss": "nll"},
    "normal": {"loss": "nll", "distribution_output": "normal"},
    "counts": {"loss": "nll", "distribution_output": "negative_binomial", "scaling": "mean"},
}
PRETRAINING: dict[str, dict[str, Any]] = {
    "consistent": {"channel_consistent_masking": True, "unmasked_channel_indices": [1]},
    "last": {"mask_type": "forecast", "num_forecast_mask_patches": [2, 3], "mask_value": 2},
}
REGRESSION: dict[str, dict[str, Any]] = {
    "bounded": {"output_range": [-1.0, 2.0]},
    "distribution": {"loss": "nll", "num_targets": 1},
}
HEADS = ("Model", "ForPrediction", "ForPretraining", "ForClassification", "ForRegression")
CASES = [(head, name, options) for head in HEADS for name, options in VARIANTS.items()]
CASES += [("ForPrediction", name, options) for name, options in FORECASTS.items()]
CASES += [("ForPretraining", name, options) for name, options in PRETRAINING.items()]
CASES += [("ForRegression", name, options) for name, options in REGRESSION.items()]


def saved(folder: Path, head: str, seed: int, **options: Any) -> Any:
    """A random model of transformers', with running statistics that training would leave."""
    config = transformers.PatchTSTConfig(**{**SMALL, **options})
    torch.manual_seed(seed)
    model = getattr(transformers, f"PatchTST{head}")(config)
    model.set_attn_implementation("eager")  # which gives weights
    perturb(model)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
        elif name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("num_batches_tracked"):
            buffer.fill_(seed + 17)
    model.eval().save_pretrained(folder)
    return model


def windows(config: Any, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (4, config.context_length, config.num_input_channels)
    values = torch.randn(shape, generator=generator).cumsum(dim=1)
    observed = torch.rand(shape, generator=generator) > 0.2
    observed[1, :, 0] = False  # a channel of which nothing is known
    return values * observed, observed


def assert_equal_outputs(ours: Any, theirs: Any) -> None:
    assert set(ours) == {name for name, value in theirs.items() if value is not None}
    for name, value in theirs.items():
        both = zip(ours[name], value, strict=True) if isinstance(value, tuple) else None
        for one, other in both or [(ours[name], value)]:
            assert one.shape == other.shape, name
            tolerance = 2e-5 * max(1.0, other.float().abs().mean().item())
            assert (one.float() - other.float()).abs().max().item() <= tolerance, name


@pytest.mark.parametrize(("head", "name", "options"), CASES, ids=lambda value: str(value)[:14])
def test_equals_transformers(head: str, name: str, options: dict[str, Any], tmp_path: Path) -> None:
    for seed in range(3):
        folder = tmp_path / str(seed)
        theirs = saved(folder, head, seed, **options)
        model = regard.load(folder, device="cpu")
        values, observed = windows(theirs.config, seed)
        for mask in (None, observed):
            keywords = {"output_hidden_states": True, "output_attentions": True}
            with torch.inference_mode():
                torch.manual_seed(seed)  # of the masks of pre-training
                expected = theirs(values, past_observed_mask=mask, **keywords)
                torch.manual_seed(seed)
                actual = model(values, past_observed_mask=mask, **keywords)
            assert_equal_outputs(actual, expected)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["plain", "class token", "channels apart"])
def test_is_written_back_byte_for_byte(head: str, name: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", head, 1, **VARIANTS[name])
    model = regard.load(tmp_path / "theirs", device="cpu")
    model.save(tmp_path / "ours")
    written = (tmp_path / "ours" / "model.safetensors").read_bytes()
    # The header of our file says more; the tensors are the same bytes.
    from safetensors.torch import load

    original = load((tmp_path / "theirs" / "model.safetensors").read_bytes())
    again = load(written)
    assert original.keys() == again.keys()
    for key, tensor in original.items():
        assert tensor.dtype == again[key].dtype
        assert torch.equal(tensor, again[key]), key
    # And they open there, as the same model.
    opened = type(theirs).from_pretrained(tmp_path / "ours").eval()
    values, _ = windows(theirs.config, 2)
    with torch.inference_mode():
        torch.manual_seed(0)
        expected = theirs(values)
        torch.manual_seed(0)
        actual = opened(values)
    assert_equal_outputs(dict(actual), expected)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"channel_attention": True}, "channel_attention"),
        ({"norm_type": "groupnorm"}, "norm_type"),
        ({"positional_encoding_type": "none"}, "positional_encoding_type 'none'"),
        ({"scaling": "max"}, "scaling"),
        ({"minimum_scale": 0.1}, "minimum_scale"),
        ({"architectures": ["PatchTSTForImputation"]}, "ForImputation"),
    ],
)
def test_what_is_not_understood_is_refused(
    options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    saved(tmp_path, "ForPrediction", 0)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | options))
    with pytest.raises(ModelError, match=problem):
        regard.load(tmp_path, device="cpu")


def test_a_window_of_another_shape_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "ForPrediction", 0)
    model = regard.load(tmp_path, device="cpu")
    with pytest.raises(DataError, match="time steps"):
        model(torch.zeros(2, 36, 3))


def test_parts_of_series_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="9 steps does not fit"):
        spec.SeriesPatches(8, 1, (spec.TimeScale(9, 1),))
    with pytest.raises(ModelError, match="levels"):
        spec.Quantiles((0.5, 0.1))
