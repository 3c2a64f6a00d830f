"""Every family on a GPU computes what it computes on a CPU: in float32, and loosely in bfloat16."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_blip
import test_calls
import test_captions
import test_decision_transformer
import test_detr
import test_dinov2
import test_fastspeech2
import test_idefics
import test_patchtst
import test_resnet
import test_segformer
import test_siglip
import test_sparse_encoders
import test_swin
import test_time_series_transformer
import test_video
import test_vilt
import test_vit_mae
import test_vits
import torch
from torch import Tensor

import regard
import zoo
from regard import spec
from regard.families import presets
from regard.families.registry import FAMILIES

transformers: Any = pytest.importorskip("transformers")

Inputs = dict[str, Tensor]


def sparse_encoder(family: str, out: Path) -> Inputs:
    test_sparse_encoders.saved(family, "ForMaskedLM", 0, out)
    return text_inputs(test_sparse_encoders.LENGTH)


def reformer(out: Path) -> Inputs:
    zoo.save("reformer", out)
    return text_inputs(48)


def deberta(out: Path) -> Inputs:
    model = presets.preset("deberta:tiny", 64, 48)
    assert isinstance(model, spec.Encoder)
    regard.TextEncoder(regard.build(model), model).save(out)
    return text_inputs(48)


def patchtst(out: Path) -> Inputs:
    model = test_patchtst.saved(out, "ForPrediction", 0)
    values, observed = test_patchtst.windows(model.config, 0)
    return {"past_values": values, "past_observed_mask": observed}


def time_series_transformer(out: Path) -> Inputs:
    options = {**test_time_series_transformer.STATIC, "scaling": "std"}
    model = test_time_series_transformer.saved(out, "ForPrediction", 0, **options)
    return test_time_series_transformer.series(model.config, 0)


def dinov2(out: Path) -> Inputs:
    test_dinov2.theirs("Dinov2ForImageClassification", "small", 0, out)
    return {"pixel_values": torch.randn(3, 3, 12, 12)}


def detr(kind: str, out: Path) -> Inputs:
    return test_detr.batch(test_detr.theirs(kind, "basic", 0, out))


def resnet(kind: str, out: Path) -> Inputs:
    model = test_resnet.theirs(kind, "basic", 0, out)
    return {"pixel_values": test_resnet.images(model)}


def segformer(kind: str, out: Path) -> Inputs:
    model = test_segformer.theirs(kind, "two", 0, out)
    return {"pixel_values": torch.randn(2, model.config.num_channels, 37, 53)}


def video(kind: str, sizes: dict[str, Any], out: Path) -> Inputs:
    return {"pixel_values": test_video.clips(test_video.theirs(kind, sizes, 0, out).config)}


def vilt(out: Path) -> Inputs:
    test_vilt.theirs("ViltModel", 0, out)
    return test_vilt.batches()["plain"]


def captioner(out: Path) -> Inputs:
    return test_captions.batch(test_captions.theirs("ViT", "GPT2", 0, out))


def blip(out: Path) -> Inputs:
    test_blip.theirs(0, out)
    return {"pixel_values": torch.randn(2, 3, 30, 30), "decoder_input_ids": ids(2, 7)}


def idefics(kind: str, out: Path) -> Inputs:
    test_idefics.theirs(kind, 0, out)
    return {"pixel_values": torch.randn(2, 3, 3, 30, 30), "decoder_input_ids": ids(2, 7)}


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(4, 41, (rows, length))


def decision_transformer(out: Path) -> Inputs:
    model = test_decision_transformer.theirs(out)
    return test_decision_transformer.batch(model.config)


def speaker(kind: str, out: Path) -> Inputs:
    """One text: rows of a batch last as long as the longest."""
    model = test_fastspeech2.theirs(f"FastSpeech2Conformer{kind}", "post-norm", 0, out)
    return test_fastspeech2.batch(model.config, (11,))


def vocoder(out: Path) -> Inputs:
    test_fastspeech2.theirs("FastSpeech2ConformerHifiGan", "", 0, out)
    return {"spectrogram": torch.randn(2, 13, 7)}


def vits(out: Path) -> Inputs:
    """Without noise, which each device draws by itself."""
    test_vits.theirs("one voice", 0, out, noise_scale=0.0, noise_scale_duration=0.0)
    return test_vits.batch(11)


def swin(out: Path) -> Inputs:
    model = test_swin.theirs("SwinForImageClassification", "odd", 0, out)
    return {"pixel_values": test_swin.images(model.config)}


def vit_mae(kind: str, out: Path) -> Inputs:
    model = test_vit_mae.theirs(kind, "small", 0, out)
    return test_vit_mae.batch(model.config)


def siglip(kind: str, out: Path) -> Inputs:
    tokens, _ = test_siglip.texts()
    words = {"input_ids": tokens}
    pixels = {"pixel_values": test_siglip.images()}
    if kind == "Model":
        # A pair compares as many texts as it likes with as many images.
        config = test_siglip.pair_config()
        inputs = words | pixels
    elif kind == "TextModel":
        config = transformers.SiglipTextConfig(**test_siglip.TEXT)
        inputs = words
    else:
        config = transformers.SiglipVisionConfig(**test_siglip.VISION)
        inputs = pixels
    test_siglip.saved(getattr(transformers, f"Siglip{kind}")(config), out)
    return inputs


def text_inputs(length: int) -> Inputs:
    padding_mask = torch.arange(length) < torch.tensor([[length], [length - 11]])
    tokens = torch.randint(5, 61, (2, length))
    return {"input_ids": tokens, "attention_mask": padding_mask.long()}


CASES: dict[str, Callable[[Path], Inputs]] = {
    **{name: lambda out, case=case: case(out)[1] for name, case in test_calls.CASES.items()},  # type: ignore[misc]
    "mt5": lambda out: test_calls.sequence("mt5", out)[1],
    "longformer": lambda out: sparse_encoder("Longformer", out),
    "bigbird": lambda out: sparse_encoder("BigBird", out),
    "reformer": reformer,
    "deberta": deberta,
    "dinov2": dinov2,
    "swin": swin,
    **{
        kind: lambda out, kind=kind: vit_mae(kind, out)  # type: ignore[misc]
        for kind in test_vit_mae.KINDS
    },
    **{kind: lambda out, kind=kind: detr(kind, out) for kind in test_detr.KINDS},  # type: ignore[misc]
    **{kind: lambda out, kind=kind: resnet(kind, out) for kind in test_resnet.KINDS},  # type: ignore[misc]
    **{
        kind: lambda out, kind=kind: segformer(kind, out)  # type: ignore[misc]
        for kind in test_segformer.KINDS
    },
    "timesformer": lambda out: video("TimesformerModel", test_video.SMALL, out),
    "videomae": lambda out: video("VideoMAEModel", {**test_video.SMALL, "tubelet_size": 2}, out),
    "vilt": vilt,
    "vision-encoder-decoder": captioner,
    "blip": blip,
    **{
        f"idefics, {kind}": lambda out, kind=kind: idefics(kind, out)  # type: ignore[misc]
        for kind in test_idefics.KINDS
    },
    "decision_transformer": decision_transformer,
    **{
        f"fastspeech2{kind}": lambda out, kind=kind: speaker(kind, out)  # type: ignore[misc]
        for kind in ("Model", "WithHifiGan")
    },
    "hifigan": vocoder,
    "vits": vits,
    "hubert": lambda out: test_calls.sound("HubertForCTC", out)[1],
    "patchtst": patchtst,
    "time_series_transformer": time_series_transformer,
    **{
        f"siglip, {kind}": lambda out, kind=kind: siglip(kind, out)  # type: ignore[misc]
        for kind in ("Model", "TextModel", "VisionModel")
    },
}


def outputs(folder: Path, inputs: Inputs, device: str, dtype: str) -> Inputs:
    """What a model computes, at positions that are no padding."""
    model = regard.load(folder, device=device, dtype=dtype, say=lambda text: None)
    assert model.dtype == getattr(torch, dtype)
    moved = {}
    for name, x in inputs.items():
        moved[name] = x.to(device, model.dtype) if x.is_floating_point() else x.to(device)
    results = test_calls.tensors(model, moved)
    return {
        name: test_calls.without_padding(x, moved, model).float().cpu()
        for name, x in results.items()
    }


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_family_computes_on_a_gpu_what_it_computes_on_a_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Convolutions would be in TF32 by default.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    inputs = CASES[name](tmp_path)
    expected = outputs(tmp_path, inputs, "cpu", "float32")
    for dtype, tolerance in (("float32", 2e-5), ("bfloat16", 0.1)):
        actual = outputs(tmp_path, inputs, "cuda", dtype)
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            error = (actual[key] - value).norm() / value.norm()
            assert error < tolerance, (dtype, key)


def test_every_family_is_among_the_cases(tmp_path: Path) -> None:
    """Also without a GPU, so that a new family gets its case."""
    model_types = set()
    for number, case in enumerate(CASES.values()):
        case(tmp_path / str(number))
        config = json.loads((tmp_path / str(number) / "config.json").read_text())
        model_types.add(config["model_type"])
    assert model_types >= FAMILIES.keys() - {"regard"}


@pytest.mark.gpu
def test_the_dtype_of_the_parameters_is_kept(tmp_path: Path) -> None:
    zoo.save("llama", tmp_path / "float32")
    zoo.save("llama", tmp_path / "bfloat16", dtype=torch.bfloat16)
    for stored, asked, expected in (
        ("float32", None, torch.float32),
        ("bfloat16", None, torch.bfloat16),
        ("float32", "bfloat16", torch.bfloat16),
        ("float32", "float16", torch.float16),
        ("bfloat16", "float32", torch.float32),
    ):
        model = regard.load(tmp_path / stored, device="cuda", dtype=asked, say=lambda text: None)
        parameters = list(model.model.parameters())
        assert {parameter.dtype for parameter in parameters} == {expected}
        assert {parameter.device.type for parameter in parameters} == {"cuda"}
