"""ResNet against transformers: stems, basic blocks and bottlenecks, images of odd sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_vision import check_back, close
from torch import Tensor

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.norm import BatchNorm2d
from regard.families import folder as folders
from regard.system.errors import DataError, ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SIZES: dict[str, dict[str, Any]] = {
    "basic": {
        "embedding_size": 10,
        "hidden_sizes": [10, 14],
        "depths": [1, 2],
        "layer_type": "basic",
        "num_labels": 5,
    },
    "bottleneck": {
        "embedding_size": 6,
        "hidden_sizes": [8, 12, 20],
        "depths": [2, 1, 2],
        "num_channels": 2,
        "hidden_act": "gelu",
        "downsample_in_first_stage": True,
        "downsample_in_bottleneck": True,
        "num_labels": 3,
    },
}
KINDS = ("ResNetModel", "ResNetForImageClassification")
OUTPUTS = ("logits", "last_hidden_state", "pooler_output")


def theirs(kind: str, name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(transformers.ResNetConfig(**SIZES[name])).eval()
    perturb(model, 0.2)
    for buffer in model.buffers():  # running statistics that matter
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer))
    model.save_pretrained(out)
    return model


def images(model: Any, height: int = 37, width: int = 52, rows: int = 3) -> Tensor:
    return torch.randn(rows, model.config.num_channels, height, width)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_open_run_and_write_back(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    pixels = images(model)

    def run(model: Any) -> dict[str, Tensor]:
        out = model(pixels)
        return {key: out[key] for key in OUTPUTS if key in out}

    with torch.inference_mode():
        wanted = run(model)
        result = run(regard.load(tmp_path / "theirs"))
        assert list(result) == list(wanted)
        for key, value in result.items():
            assert value.shape == wanted[key].shape
            assert close(value, wanted[key]), key
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (32, 33)])
def test_hidden_states_of_stages_of_images_of_any_shape(
    shape: tuple[int, int], tmp_path: Path
) -> None:
    model = theirs("ResNetModel", "bottleneck", 1, tmp_path)
    loaded = regard.load(tmp_path)
    pixels = images(model, *shape)
    with torch.inference_mode():
        wanted = model(pixels, output_hidden_states=True).hidden_states
        result = loaded(pixels, output_hidden_states=True).hidden_states
    for one, other in zip(result, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_training_gives_their_gradients_and_running_statistics(tmp_path: Path) -> None:
    model = theirs("ResNetForImageClassification", "bottleneck", 2, tmp_path).double().train()
    loaded = regard.load(tmp_path)
    loaded.model.double().train()
    for name, parameter in loaded.model.named_parameters():
        parameter.requires_grad_(not name.endswith((".batches", "_mean", "_variance")))
    pixels = images(model).double()
    model(pixels).logits.square().sum().backward()
    loaded(pixels).logits.square().sum().backward()
    layer = model.resnet.encoder.stages[1].layers[0].shortcut
    ours = loaded.model.get_submodule("stack.blocks.2.shortcut")
    for one, other in (
        (ours.weight.grad, layer.convolution.weight.grad),
        (ours.norm.bias.grad, layer.normalization.bias.grad),
        (ours.norm.running_variance, layer.normalization.running_var),
        (ours.norm.batches, layer.normalization.num_batches_tracked.double()),
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_the_size_of_images_is_kept_where_it_is_not_theirs(tmp_path: Path) -> None:
    model = regard.preset("resnet:18", 4, d_model=4, image_size=40)
    config = folders.describe(model)
    assert (config["model_type"], config["image_size"]) == ("resnet", 40)
    assert folders.describe(regard.preset("resnet:18", 4, d_model=4))["model_type"] == "resnet"
    # transformers has no stem without pooling.
    assert folders.describe(regard.preset("resnet-cifar:20", 4))["model_type"] == "regard"


def test_bad_configs_and_images_are_refused(tmp_path: Path) -> None:
    model = theirs("ResNetModel", "basic", 1, tmp_path)
    loaded = regard.load(tmp_path)
    with pytest.raises(DataError):
        loaded(torch.randn(1, model.config.num_channels + 1, 8, 8))
    config = json.loads((tmp_path / "config.json").read_text())
    changes: list[dict[str, Any]] = [
        {"layer_type": "dense"},
        {"depths": [1]},
        {"hidden_sizes": []},
        {"layer_type": "bottleneck", "hidden_sizes": [3, 4]},
    ]
    for change in changes:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError):
            regard.load(tmp_path)
    with pytest.raises(ModelError):
        spec.ConvStem(kernel=4)
    with pytest.raises(ModelError):
        spec.ConvolutionalEncoder(4, spec.ConvStem(), spec.ResidualStages(), (spec.LMHead(),))


def test_a_frozen_norm_trains_nothing_and_counts_nothing() -> None:
    norm = spec.BatchNorm(frozen=True)
    stages = spec.ResidualStages((8,), (1,), "basic", norm=norm)
    model = build(spec.ConvolutionalEncoder(8, spec.ConvStem(norm=norm), stages)).train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    hidden, _ = model(torch.randn(2, 3, 32, 32))
    hidden.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad == (".norm." not in name)
    hidden_again, _ = model.eval()(torch.randn(2, 3, 32, 32))
    assert hidden_again.shape == hidden.shape == (2, 64, 8)


@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (2, 5, 1, 1), (1, 5, 1, 1)])
def test_two_ways_of_one_norm(shape: tuple[int, ...]) -> None:
    """PyTorch's kernel, and the sums that several processes share."""

    class Alone:
        shares_batch = False
        row_share = 1.0
        data_rank = 0
        data_size = 1

        def sum(self, x: Tensor) -> Tensor:
            return x

    x = torch.randn(shape, dtype=torch.float64)
    one, other = (BatchNorm2d(5, 1e-5, 0.1, counts=True).double() for _ in range(2))
    other.share = Alone()
    torch.testing.assert_close(one(x), other(x), rtol=0, atol=1e-10)
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(parameter, other.get_parameter(name), rtol=0, atol=1e-12)
