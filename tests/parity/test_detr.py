"""DETR against transformers: pixel masks, odd sizes, both kinds of positions, boxes, the loss."""

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
from regard.data.padding import IGNORED
from regard.families import folder as folders
from regard.system.errors import DataError, ModelError
from regard.training.objectives.detection import GIOU_WEIGHT, L1_WEIGHT, detection_losses
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SIZES: dict[str, dict[str, Any]] = {
    "basic": {
        "backbone_config": {
            "model_type": "resnet",
            "embedding_size": 6,
            "hidden_sizes": [6, 10],
            "depths": [1, 2],
            "layer_type": "basic",
            "out_features": ["stage2"],
        },
        "d_model": 12,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 17,
        "num_queries": 7,
        "num_labels": 4,
    },
    "bottleneck": {
        "backbone_config": {
            "model_type": "resnet",
            "embedding_size": 5,
            "hidden_sizes": [8, 12, 16],
            "depths": [2, 1, 1],
            "num_channels": 2,
            "hidden_act": "gelu",
            "downsample_in_bottleneck": True,
            "out_features": ["stage1", "stage3"],
        },
        "num_channels": 2,
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 9,
        "decoder_ffn_dim": 11,
        "activation_function": "gelu",
        "dropout": 0.2,
        "position_embedding_type": "learned",
        "num_queries": 3,
        "num_labels": 1,
    },
}
KINDS = ("DetrModel", "DetrForObjectDetection")
OUTPUTS = ("logits", "pred_boxes", "last_hidden_state", "encoder_last_hidden_state")


def theirs(kind: str, name: str, seed: int, out: Path, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = transformers.DetrConfig(use_timm_backbone=False, **{**SIZES[name], **changes})
    model = getattr(transformers, kind)(config).eval()
    perturb(model, 0.1, frozen=True)
    for buffer in model.buffers():  # the frozen norms
        buffer.add_(torch.rand_like(buffer))
    model.save_pretrained(out)
    return model


def batch(model: Any, height: int = 70, width: int = 53) -> dict[str, Tensor]:
    """Images of several sizes, padded to one."""
    pixels = torch.randn(3, model.config.num_channels, height, width)
    mask = torch.zeros(3, height, width, dtype=torch.long)
    for row, (high, wide) in enumerate([(height, width // 2), (height // 3, width), (33, 41)]):
        mask[row, :high, :wide] = 1
    return {"pixel_values": pixels * mask[:, None], "pixel_mask": mask}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_open_run_and_write_back(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    inputs = batch(model)

    def run(model: Any) -> dict[str, Tensor]:
        out = model(**inputs)
        return {key: out[key] for key in OUTPUTS if key in out}

    with torch.inference_mode():
        loaded = regard.load(tmp_path / "theirs")
        wanted = run(model)
        result = run(loaded)
        assert list(result) == list(wanted)
        for key, value in result.items():
            assert value.shape == wanted[key].shape
            assert close(value, wanted[key]), key
        alone = {"pixel_values": inputs["pixel_values"]}
        assert close(loaded(**alone)[0], model(**alone)[0])
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


@pytest.mark.parametrize("size", [(1, 1), (32, 200)])
def test_hidden_states_and_attentions_of_any_size(size: tuple[int, int], tmp_path: Path) -> None:
    model = theirs("DetrForObjectDetection", "basic", 1, tmp_path, attn_implementation="eager")
    pixels = torch.randn(2, 3, *size)
    options = {"output_hidden_states": True, "output_attentions": True}
    with torch.inference_mode():
        wanted = model(pixels, **options)
        result = regard.load(tmp_path)(pixels, **options)
    for key in ("encoder_hidden_states", "decoder_hidden_states", "decoder_attentions",
                "cross_attentions", "encoder_attentions"):  # fmt: skip
        pairs = zip(result[key], wanted[key], strict=key != "decoder_hidden_states")
        assert all(close(one, other) for one, other in pairs), key


def test_masked_queries(tmp_path: Path) -> None:
    model = theirs("DetrForObjectDetection", "basic", 3, tmp_path)
    inputs = batch(model) | {"decoder_attention_mask": torch.ones(3, 7, dtype=torch.long)}
    inputs["decoder_attention_mask"][1, 4:] = 0
    with torch.inference_mode():
        result = regard.load(tmp_path)(**inputs)
        assert close(result.logits, model(**inputs).logits)


def test_a_padded_image_is_detected_as_it_is_alone(tmp_path: Path) -> None:
    # By 32 pixels a position: padding that a position shares with pixels would be seen.
    theirs("DetrForObjectDetection", "basic", 4, tmp_path)
    loaded = regard.load(tmp_path)
    pixels = torch.zeros(1, 3, 96, 64)
    pixels[:, :, :64, :32] = torch.randn(1, 3, 64, 32)
    mask = (pixels[:, 0] != 0).long()
    with torch.inference_mode():
        both = loaded(pixels, mask)
        wrong = loaded(pixels)
        alone = loaded(pixels[:, :, :64, :32])
    # The convolutions see zeros behind the border in either case, but the mean of a norm.
    assert (both.logits - alone.logits).abs().max() < (wrong.logits - alone.logits).abs().max()


@pytest.mark.parametrize("seed", SEEDS)
def test_post_processing(seed: int, tmp_path: Path) -> None:
    model = theirs("DetrForObjectDetection", "basic", seed, tmp_path)
    with torch.no_grad():
        model.class_labels_classifier.weight.mul_(8)  # so that some scores are high
    model.save_pretrained(tmp_path)
    processor = transformers.DetrImageProcessor(size={"shortest_edge": 40, "longest_edge": 70})
    processor.save_pretrained(tmp_path)
    draw = np.random.default_rng(seed)
    shapes = [(50, 90), (64, 33), (41, 41)]
    images = [draw.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    found = regard.load(tmp_path).detect(images, threshold=0.1)
    inputs = processor(images, return_tensors="pt", do_pad=True)
    with torch.inference_mode():
        outputs = model(**inputs)
    expected = processor.post_process_object_detection(outputs, 0.1, shapes)
    assert any(found)
    for ours, other in zip(found, expected, strict=True):
        order = other["scores"].argsort(descending=True, stable=True)
        names = [model.config.id2label[int(i)] for i in other["labels"][order]]
        assert [one.label for one in ours] == names
        scores = torch.tensor([one.score for one in ours])
        torch.testing.assert_close(scores, other["scores"][order], rtol=0, atol=2e-5)
        if ours:
            corners = torch.tensor([one.box for one in ours])
            torch.testing.assert_close(corners, other["boxes"][order], rtol=0, atol=5e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_and_the_matching(seed: int, tmp_path: Path) -> None:
    model = theirs("DetrForObjectDetection", "basic", seed, tmp_path)
    counts = (3, 0, 6)
    targets = [
        {"class_labels": torch.randint(0, 4, (count,)), "boxes": torch.rand(count, 4) * 0.3 + 0.2}
        for count in counts
    ]
    labels = torch.full((3, 6), IGNORED)
    boxes = torch.zeros(3, 6, 4)
    for row, one in enumerate(targets):
        labels[row, : counts[row]] = one["class_labels"]
        boxes[row, : counts[row]] = one["boxes"]
    with torch.inference_mode():
        outputs = model(**batch(model), labels=targets)
        sums = detection_losses(outputs.logits, outputs.pred_boxes, labels, boxes)
    each = outputs.loss_dict
    objects = sum(counts)
    torch.testing.assert_close(sums.classes / sums.weights, each["loss_ce"])
    torch.testing.assert_close(sums.l1 / objects, each["loss_bbox"])
    torch.testing.assert_close(sums.giou / objects, each["loss_giou"])
    assert (model.config.bbox_cost, model.config.giou_cost) == (L1_WEIGHT, GIOU_WEIGHT)


def test_configs_of_another_model_are_refused(tmp_path: Path) -> None:
    theirs("DetrModel", "basic", 1, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    backbone = config["backbone_config"]
    changes: list[dict[str, Any]] = [
        {"use_timm_backbone": True},
        {"backbone_config": {"model_type": "timm_backbone"}},
        {"backbone_config": {**backbone, "model_type": "swin"}},
        {"backbone_config": {**backbone, "out_features": ["stage1"]}},
        {"position_embedding_type": "rope"},
        {"auxiliary_loss": True},
        {"architectures": ["DetrForSegmentation"]},
    ]
    for change in changes:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError):
            folders.read(tmp_path)


def test_a_mask_of_another_size_is_refused(tmp_path: Path) -> None:
    model = theirs("DetrModel", "basic", 1, tmp_path)
    inputs = batch(model)
    with pytest.raises(DataError):
        regard.load(tmp_path)(inputs["pixel_values"], inputs["pixel_mask"][:, 1:])
