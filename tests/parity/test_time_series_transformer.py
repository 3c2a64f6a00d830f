"""The time-series Transformer against transformers: odd sizes, three seeds, both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import spec
from regard.models import SeriesModel
from regard.system.errors import DataError, ModelError, SettingError
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "prediction_length": 5,
    "context_length": 11,
    "input_size": 3,
    "lags_sequence": [1, 4, 2],
    "num_time_features": 2,
    "d_model": 15,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 13,
    "num_parallel_samples": 4,
}
STATIC = {
    "num_static_categorical_features": 2,
    "cardinality": [5, 9],
    "num_static_real_features": 3,
    "num_dynamic_real_features": 1,
}
# Each changes what the model computes.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one channel": {"input_size": 1},
    "static": STATIC,
    "embedding": {**STATIC, "embedding_dimension": [2, 7], "input_size": 1},
    "one category": {"num_static_categorical_features": 1, "cardinality": [4], "input_size": 1},
    "no features": {"num_time_features": 0},
    "std": {"scaling": "std", "activation_function": "relu"},
    "unscaled": {"scaling": None, "distribution_output": "normal"},
    "normal": {"distribution_output": "normal", "scaling": "std", "input_size": 1},
    "counts": {"distribution_output": "negative_binomial"},
    "one count": {"distribution_output": "negative_binomial", "input_size": 1, "scaling": True},
    "context": {"context_length": None, "lags_sequence": [3], "encoder_layers": 1},
}
HEADS = ("Model", "ForPrediction")
CASES = [(head, name) for head in HEADS for name in VARIANTS]


def saved(folder: Path, head: str, seed: int, **options: Any) -> Any:
    """A random model of transformers'."""
    config = transformers.TimeSeriesTransformerConfig(**{**SMALL, **options})
    torch.manual_seed(seed)
    model = getattr(transformers, f"TimeSeriesTransformer{head}")(config)
    perturb(model)
    model.eval().save_pretrained(folder)
    return model


def series(config: Any, seed: int) -> dict[str, Tensor]:
    """Arguments of a call: windows with what follows them, and their features."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    past = config.context_length + max(config.lags_sequence)
    channels = () if config.input_size == 1 else (config.input_size,)
    values = draw(4, past + config.prediction_length, *channels).cumsum(dim=1)
    if config.distribution_output == "negative_binomial":
        values = values.abs().round()
    covariates = config.num_time_features + config.num_dynamic_real_features
    features = draw(4, past + config.prediction_length, covariates)
    inputs = {
        "past_values": values[:, :past],
        "past_time_features": features[:, :past],
        "future_values": values[:, past:],
        "future_time_features": features[:, past:],
    }
    if config.num_static_real_features:
        inputs["static_real_features"] = draw(4, config.num_static_real_features)
    if config.num_static_categorical_features:
        columns = [torch.randint(0, n, (4,), generator=generator) for n in config.cardinality]
        inputs["static_categorical_features"] = torch.stack(columns, dim=1)
    return inputs


def masks(inputs: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The same arguments with values that are missing, and one series of which none is known."""
    generator = torch.Generator().manual_seed(seed)
    past = torch.rand(inputs["past_values"].shape, generator=generator) > 0.3
    past[2] = False
    future = torch.rand(inputs["future_values"].shape, generator=generator) > 0.3
    return {
        **inputs,
        "past_values": inputs["past_values"] * past,
        "past_observed_mask": past,
        "future_values": inputs["future_values"] * future,
        "future_observed_mask": future.float(),
    }


def call_theirs(model: Any, inputs: dict[str, Tensor], **keywords: Any) -> dict[str, Any]:
    if "past_observed_mask" not in inputs:  # required there, although ones are the default
        keywords["past_observed_mask"] = torch.ones_like(inputs["past_values"])
    if not hasattr(model, "parameter_projection"):
        inputs = {key: value for key, value in inputs.items() if key != "future_observed_mask"}
    output = dict(model(**inputs, **keywords))
    output.pop("past_key_values", None)
    return output


def largest_difference(ours: Any, theirs: dict[str, Any]) -> float:
    """Over all outputs, whose names must be the same; relative to their size if that is above 1."""
    assert set(ours) == {name for name, value in theirs.items() if value is not None}
    worst = 0.0
    for name, value in theirs.items():
        both = [(ours[name], value)]
        if isinstance(value, tuple):
            both = list(zip(ours[name], value, strict=True))
        for one, other in both:
            assert one.shape == other.shape, name
            magnitude = max(1.0, other.abs().mean().item())
            worst = max(worst, (one - other).abs().max().item() / magnitude)
    return worst


@pytest.mark.parametrize(("head", "name"), CASES, ids=lambda value: str(value))
def test_equals_transformers(head: str, name: str, tmp_path: Path) -> None:
    for seed in range(3):
        theirs = saved(tmp_path / str(seed), head, seed, **VARIANTS[name])
        model = regard.load(tmp_path / str(seed), device="cpu")
        inputs = series(theirs.config, seed)
        keywords = {"output_hidden_states": True, "output_attentions": True}
        for arguments in (inputs, masks(inputs, seed)):
            with torch.inference_mode():
                expected = call_theirs(theirs, arguments, **keywords)
                names = [one.name for one in model.spec.inputs]
                ours = {key: value for key, value in arguments.items() if key in names}
                actual = model(**ours, **keywords)
            assert largest_difference(actual, expected) <= 1e-5


@pytest.mark.parametrize("name", ["static", "std", "normal"])
def test_equals_transformers_in_float64(name: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, "ForPrediction", 7, **VARIANTS[name]).double()
    model = regard.load(tmp_path, device="cpu").to(dtype=torch.float64)
    inputs = masks(series(theirs.config, 7), 7)
    inputs = {key: one.double() if one.is_floating_point() else one for key, one in inputs.items()}
    with torch.inference_mode():
        assert largest_difference(model(**inputs), call_theirs(theirs, inputs)) <= 1e-12


@pytest.mark.parametrize("head", HEADS)
def test_without_a_future_the_encoder_is_what_there_is(head: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, head, 3, **VARIANTS["static"])
    model = regard.load(tmp_path, device="cpu")
    inputs = series(theirs.config, 3)
    del inputs["future_values"]
    with torch.inference_mode():
        assert largest_difference(model(**inputs), call_theirs(theirs, inputs)) <= 1e-5


def test_a_decoder_attention_mask_is_the_same(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "ForPrediction", 4)
    model = regard.load(tmp_path, device="cpu")
    inputs = series(theirs.config, 4)
    inputs["decoder_attention_mask"] = torch.ones(4, 5, dtype=torch.long)
    inputs["decoder_attention_mask"][1, 2] = 0
    with torch.inference_mode():
        assert largest_difference(model(**inputs), call_theirs(theirs, inputs)) <= 1e-5


@pytest.mark.parametrize("name", ["plain", "embedding", "normal", "counts", "one count"])
def test_samples_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """From the same seed the same trajectories, although here the past is in KV caches."""
    for seed in range(3):
        theirs = saved(tmp_path / str(seed), "ForPrediction", seed, **VARIANTS[name])
        model = regard.load(tmp_path / str(seed), device="cpu")
        assert isinstance(model, SeriesModel)
        inputs = series(theirs.config, seed)
        del inputs["future_values"]
        torch.manual_seed(seed)
        expected = theirs.generate(**inputs).sequences
        torch.manual_seed(seed)
        actual = model.generate_sequences(**inputs).sequences
        assert actual.shape == expected.shape
        tolerance = 2e-5 * max(1.0, expected.abs().mean().item())
        assert (actual - expected).abs().max().item() <= tolerance


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["plain", "embedding", "context"])
def test_is_written_back_byte_for_byte(head: str, name: str, tmp_path: Path) -> None:
    options = {**VARIANTS[name], "encoder_layerdrop": 0.2}
    theirs = saved(tmp_path / "theirs", head, 1, **options)
    model = regard.load(tmp_path / "theirs", device="cpu")
    model.save(tmp_path / "ours")
    from safetensors.torch import load

    # The header of our file says more; the tensors are the same bytes.
    original = load((tmp_path / "theirs" / "model.safetensors").read_bytes())
    again = load((tmp_path / "ours" / "model.safetensors").read_bytes())
    assert original.keys() == again.keys()
    for key, tensor in original.items():
        assert tensor.dtype == again[key].dtype
        assert torch.equal(tensor, again[key]), key
    opened = type(theirs).from_pretrained(tmp_path / "ours").eval()
    # Notes of the file aside, the config is the same.
    notes = ("dtype", "transformers_version", "_name_or_path", "architectures")
    before = {key: value for key, value in theirs.config.to_dict().items() if key not in notes}
    after = {key: value for key, value in opened.config.to_dict().items() if key not in notes}
    assert before == after
    inputs = series(theirs.config, 2)
    with torch.inference_mode():
        expected = call_theirs(theirs, inputs)
        assert largest_difference(call_theirs(opened, inputs), expected) == 0


# ------------------------------------------------------------------ training


def test_layers_are_skipped_in_training_only(tmp_path: Path) -> None:
    """LayerDrop: with a rate near 1 the decoder hands on what its embedding gives."""
    saved(tmp_path, "Model", 0, decoder_layerdrop=0.0, encoder_layerdrop=0.5, dropout=0.0)
    model = regard.load(tmp_path, device="cpu")
    assert isinstance(model.spec, spec.SeriesEncoderDecoder)
    assert model.spec.encoder.scheme == spec.Plain(0.5)
    stack = model.model.encoder
    x = torch.randn(2, 6, 15)
    with torch.inference_mode():
        layers = [stack(x), *(regard.build(model.spec).encoder.eval()(x) for _ in range(2))]
    assert not torch.equal(layers[0], x)
    stack.train()
    torch.manual_seed(0)
    with torch.no_grad():
        skipped = sum(torch.equal(stack(x), x) for _ in range(400))
    # Both layers are skipped in a quarter of the calls.
    assert 70 <= skipped <= 130


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"loss": "mse"}, "loss"),
        ({"scaling": "max"}, "scaling"),
        ({"minimum_scale": 0.1}, "minimum_scale"),
        ({"distribution_output": "poisson"}, "distribution_output"),
        ({"lags_sequence": [0, 1]}, "lags"),
        ({"prediction_length": None}, "prediction_length"),
        ({"feature_size": 99}, "feature_size"),
        ({"num_static_categorical_features": 1, "cardinality": None}, "cardinality"),
        ({"num_static_categorical_features": 1, "cardinality": [3, 4]}, "cardinality has 2 values"),
        ({"architectures": ["TimeSeriesTransformerForImputation"]}, "ForImputation"),
        ({"model_type": "informer"}, "unknown type 'informer'"),
        ({"model_type": "autoformer"}, "unknown type 'autoformer'"),
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


def test_inputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "ForPrediction", 0, **STATIC)
    model = regard.load(tmp_path, device="cpu")
    inputs = series(theirs.config, 0)
    with pytest.raises(DataError, match="time steps"):
        model(**{**inputs, "past_values": inputs["past_values"][:, 1:]})
    with pytest.raises(DataError, match="future"):
        model(**{**inputs, "future_values": inputs["future_values"][:, 1:]})
    with pytest.raises(DataError, match="3 past time features, not 2"):
        model(**{**inputs, "past_time_features": inputs["past_time_features"][..., 1:]})
    with pytest.raises(DataError, match="has only 5 categories"):
        model(**{**inputs, "static_categorical_features": torch.full((4, 2), 5)})
    with pytest.raises(SettingError, match="static_real_features"):
        model(**{key: one for key, one in inputs.items() if key != "static_real_features"})
