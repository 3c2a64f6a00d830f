"""SegFormer against transformers: odd sizes of images, stages of several widths, post-processing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_vision import check_back, close
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

SIZES: dict[str, dict[str, Any]] = {
    "two": {
        "num_encoder_blocks": 2,
        "depths": [1, 2],
        "hidden_sizes": [8, 12],
        "sr_ratios": [3, 1],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [1, 2],
        "mlp_ratios": [2, 3],
        "decoder_hidden_size": 10,
        "num_labels": 5,
    },
    "three": {
        "num_channels": 2,
        "num_encoder_blocks": 3,
        "depths": [2, 1, 1],
        "hidden_sizes": [6, 9, 4],
        "sr_ratios": [4, 2, 1],
        "patch_sizes": [3, 5, 3],
        "strides": [2, 3, 1],
        "num_attention_heads": [2, 3, 1],
        "mlp_ratios": [3, 1, 4],
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.2,
        "drop_path_rate": 0.0,
        "decoder_hidden_size": 7,
        "num_labels": 3,
    },
}
KINDS = ("SegformerModel", "SegformerForImageClassification", "SegformerForSemanticSegmentation")


def theirs(kind: str, name: str, seed: int, out: Path, **options: Any) -> Any:
    torch.manual_seed(seed)
    config = transformers.SegformerConfig(**SIZES[name], **options)
    model = getattr(transformers, kind)(config).eval()
    perturb(model, 0.1)
    for buffer in model.buffers():  # the running statistics of the decoder
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer))
    model.save_pretrained(out)
    return model


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_open_run_and_write_back(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    pixels = torch.randn(2, model.config.num_channels, 37, 53)

    def run(model: Any) -> dict[str, Tensor]:
        out = model(pixels)
        return {key: out[key] for key in ("last_hidden_state", "logits") if key in out}

    with torch.inference_mode():
        wanted = run(model)
        result = run(regard.load(tmp_path / "theirs"))
        assert list(result) == list(wanted)
        for key, value in result.items():
            assert value.shape == wanted[key].shape
            assert close(value, wanted[key]), key
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


@pytest.mark.parametrize("size", [(16, 16), (64, 12), (33, 97)])
def test_hidden_states_and_attentions_of_any_size(size: tuple[int, int], tmp_path: Path) -> None:
    kind = "SegformerForSemanticSegmentation"
    model = theirs(kind, "two", 1, tmp_path, attn_implementation="eager")
    pixels = torch.randn(2, 3, *size)
    options = {"output_hidden_states": True, "output_attentions": True}
    with torch.inference_mode():
        wanted = model(pixels, **options)
        result = regard.load(tmp_path)(pixels, **options)
    for key in ("hidden_states", "attentions"):
        assert len(result[key]) == len(wanted[key])
        for one, other in zip(result[key], wanted[key], strict=True):
            assert one.shape == other.shape
            assert close(one, other), key


@pytest.mark.parametrize("seed", SEEDS)
def test_masks_are_those_of_post_processing(seed: int, tmp_path: Path) -> None:
    model = theirs("SegformerForSemanticSegmentation", "two", seed, tmp_path)
    processor = transformers.SegformerImageProcessor(size={"height": 36, "width": 44})
    processor.save_pretrained(tmp_path)
    draw = np.random.default_rng(seed)
    shapes = [(50, 90), (64, 33)]
    images = [draw.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    loaded = regard.load(tmp_path)
    with torch.inference_mode():
        outputs = model(**processor(images, return_tensors="pt"))
    expected = processor.post_process_semantic_segmentation(outputs, shapes)
    for found, mask, shape in zip(loaded.segment(images), expected, shapes, strict=True):
        assert found.mask.shape == shape
        # A pixel between two classes that are equally likely may go either way.
        assert (torch.from_numpy(found.mask) == mask).float().mean() > 0.999
        assert sum(found.shares.values()) == pytest.approx(1)


def test_training_moves_the_same_statistics(tmp_path: Path) -> None:
    model = theirs(
        "SegformerForSemanticSegmentation", "two", 2, tmp_path,
        classifier_dropout_prob=0.0, drop_path_rate=0.0,
    ).train()  # fmt: skip
    ours, _ = folders.open_model(tmp_path)
    pixels = torch.randn(3, 3, 32, 32)
    wanted = model(pixels).logits
    hidden, _ = ours.train()(pixels)
    result = ours.input.as_maps(ours.classes(hidden, None, pixels), pixels)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    result.square().sum().backward()
    wanted.square().sum().backward()
    norm = model.decode_head.batch_norm
    own = ours.stack.fusion.norm
    torch.testing.assert_close(own.running_mean.data, norm.running_mean)
    torch.testing.assert_close(own.weight.grad, norm.weight.grad, rtol=1e-4, atol=1e-4)


def test_configs_of_another_model_are_refused(tmp_path: Path) -> None:
    theirs("SegformerModel", "two", 1, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changes: list[dict[str, Any]] = [
        {"depths": [1, 2, 1]},
        {"patch_sizes": [7, 4]},
        {"reshape_last_stage": False},
        {"hidden_sizes": [8, 13]},
    ]
    for change in changes:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError):
            folders.read(tmp_path)


def test_an_image_too_small_to_reduce_is_refused(tmp_path: Path) -> None:
    theirs("SegformerModel", "two", 1, tmp_path)
    with pytest.raises(DataError):
        regard.load(tmp_path)(torch.randn(1, 3, 8, 40))
