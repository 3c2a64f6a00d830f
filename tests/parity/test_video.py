"""TimeSformer and VideoMAE against transformers: tiny random models, odd sizes, three seeds, masks,
both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_vision import check_back, close, shaken
from torch import Tensor

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system.errors import DataError, ModelError
from seeds import SEEDS

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 31,
    "image_size": 13,
    "patch_size": 4,
    "num_frames": 5,
    "num_labels": 3,
}
OTHER: dict[str, Any] = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 30,
    "image_size": 9,
    "patch_size": 3,
    "num_frames": 4,
    "num_channels": 2,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "num_labels": 4,
}
DECODER = {
    "decoder_hidden_size": 12,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 2,
    "decoder_intermediate_size": 17,
}
ATTENTION = ("divided_space_time", "joint_space_time", "space_only")
HIDDEN = (4, 9)  # how many tubelets are masked

CASES: list[tuple[str, dict[str, Any]]] = [
    *(
        (f"Timesformer{ending}", {**sizes, "attention_type": kind})
        for kind in ATTENTION
        for ending, sizes in (
            ("Model", SMALL),
            ("ForVideoClassification", {**OTHER, "qkv_bias": False}),
        )
    ),
    ("VideoMAEModel", {**SMALL, "tubelet_size": 2}),
    ("VideoMAEModel", {**OTHER, "tubelet_size": 1, "use_mean_pooling": False, "qv_bias": False}),
    ("VideoMAEForVideoClassification", {**SMALL, "tubelet_size": 5}),
    ("VideoMAEForVideoClassification", {**OTHER, "tubelet_size": 2, "use_mean_pooling": False}),
    ("VideoMAEForPreTraining", {**SMALL, **DECODER, "image_size": 12, "tubelet_size": 1}),
    ("VideoMAEForPreTraining", {**OTHER, **DECODER, "tubelet_size": 2}),
    (
        "VideoMAEForPreTraining",
        {**OTHER, **DECODER, "num_channels": 3, "tubelet_size": 2, "norm_pix_loss": False},
    ),
]


def theirs(kind: str, sizes: dict[str, Any], seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    name = "TimesformerConfig" if kind.startswith("Timesformer") else "VideoMAEConfig"
    model_class = getattr(transformers, kind)
    config = getattr(transformers, name)(**sizes)
    # Only its plain attention gives weights.
    model = shaken(model_class._from_config(config, attn_implementation="eager"))
    model.save_pretrained(out)
    return model


def clips(config: Any, rows: int = 2) -> Tensor:
    side = config.image_size
    return torch.randn(rows, config.num_frames, config.num_channels, side, side)


def masks(config: Any, rows: int, count: int) -> Tensor:
    """As many tubelets in each row, others in each."""
    patches = (config.image_size // config.patch_size) ** 2
    places = patches * (config.num_frames // config.tubelet_size)
    return torch.rand(rows, places).argsort(dim=1) < count


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "sizes"), CASES)
def test_open_run_and_write_back(
    kind: str, sizes: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    model = theirs(kind, sizes, seed, tmp_path / "theirs")
    ours = regard.load(tmp_path / "theirs")
    core, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(core) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    pixels = clips(model.config)
    inputs: list[dict[str, Tensor]] = [{}]
    if kind == "VideoMAEModel":
        inputs += [{"bool_masked_pos": masks(model.config, 2, count)} for count in HIDDEN]
    if kind == "VideoMAEForPreTraining":
        inputs = [{"bool_masked_pos": masks(model.config, 2, count)} for count in HIDDEN]
    asked = {"output_hidden_states": True, "output_attentions": True}
    with torch.inference_mode():
        for more in inputs:
            wanted = model(pixels, **more, **asked)
            answer = ours(pixels, **more, **asked)
            assert list(answer) == list(wanted)
            for name, value in wanted.items():
                pairs = [(answer[name], value)]
                if isinstance(value, tuple):
                    pairs = list(zip(answer[name], value, strict=True))
                for got, expected in pairs:
                    assert got.shape == expected.shape, name
                    assert close(got, expected), name

        def run(model: Any) -> dict[str, Tensor]:
            out = model(pixels, **inputs[-1])
            names = ("last_hidden_state", "logits", "loss")
            return {key: out[key] for key in names if out.get(key) is not None}

        check_back(opened, core, tmp_path, type(model).from_pretrained, run, run(model))


def test_biases_under_the_names_of_today_are_read(tmp_path: Path) -> None:
    """Files have q_bias and v_bias; the modules of this transformers have query.bias."""
    theirs("VideoMAEModel", CASES[6][1], 0, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    before = regard.load(tmp_path).model.state_dict()
    names = {"q_bias": "query.bias", "v_bias": "value.bias"}
    renamed = {
        ".".join(names.get(part, part) for part in name.split(".")): tensor
        for name, tensor in weights.items()
    }
    assert renamed.keys() != weights.keys()
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    after = regard.load(tmp_path).model.state_dict()
    assert all(before[name].equal(tensor) for name, tensor in after.items())


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"attention_type": "time_only"}, "timesformer"),
        ({"image_size": [16, 8]}, "timesformer"),
        ({"tubelet_size": 9, "num_frames": 4}, "videomae"),
        (
            {
                "architectures": ["VideoMAEForPreTraining"],
                "num_channels": 1,
                "norm_pix_loss": False,
            },
            "videomae",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(
    changes: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **changes}))
    with pytest.raises(ModelError):
        folders.peek(tmp_path)


def test_clips_of_another_length_and_masks_of_other_numbers_are_refused(tmp_path: Path) -> None:
    model = theirs("VideoMAEModel", CASES[6][1], 0, tmp_path)
    ours = regard.load(tmp_path)
    pixels = clips(model.config)
    with pytest.raises(DataError, match="shape"):
        ours(pixels[:, :4])
    uneven = masks(model.config, 2, 3)
    uneven[0, int(uneven[0].logical_not().nonzero()[0])] = True
    with pytest.raises(DataError, match="masked"):
        ours(pixels, bool_masked_pos=uneven)
