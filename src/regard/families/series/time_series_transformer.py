"""The time-series Transformer in transformers: presets, and the layout of its files.

An encoder–decoder in fairseq's layout over lagged values, whose decoder gives the parameters of a
distribution for each step. Both sides store their sinusoids. Informer and Autoformer, which have
the same inputs, attend otherwise: they are families of their own, and not supported.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from regard import spec
from regard.families.config_schema import (
    IGNORED_KEYS,
    Config,
    ConfigSchema,
    NonNegative,
    part_config,
    part_fields,
)
from regard.families.encoder_decoders.fairseq_layout import (
    LAYER,
    PRESET_KEYS,
    SYNONYMS,
    both_sides,
    both_sides_config,
)
from regard.families.heads import architecture
from regard.families.preset_settings import FromConfig, PresetFamily, Settings, size
from regard.families.series.forecast_options import (
    UNSUPPORTED,
    parse_distribution,
    parse_lags,
    parse_scaler,
)
from regard.families.tensor_table import Rename, Rules, module_rules
from regard.system.arguments import is_whole
from regard.system.errors import ModelError

SPEC_TYPES = (spec.SeriesEncoderDecoder, spec.LaggedValues)
PREFIX = "model."
_CLASS = "TimeSeriesTransformer"
_MODEL = "Model"  # without a head
_PREDICTION = "ForPrediction"

_SCHEMA = ConfigSchema(
    defaults={
        "prediction_length": None,
        "context_length": None,  # as many steps as are forecast
        "distribution_output": "student_t",
        "input_size": 1,
        "lags_sequence": [1, 2, 3, 4, 5, 6, 7],
        "num_dynamic_real_features": NonNegative(0),
        "num_static_categorical_features": NonNegative(0),
        "num_static_real_features": NonNegative(0),
        "num_time_features": NonNegative(0),
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "activation_function": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,
        "encoder_layerdrop": 0.1,
        "decoder_layerdrop": 0.1,
    },
    fixed={
        "loss": "nll",
        "is_encoder_decoder": True,
        "is_decoder": False,
        "add_cross_attention": False,
    },
    synonyms=SYNONYMS,
    # `num_parallel_samples` is of sampling. The others are read below: null is a value of theirs,
    # or they follow from others.
    ignored=IGNORED_KEYS
    | {"num_parallel_samples", "scaling", "cardinality", "embedding_dimension", "feature_size"},
    unsupported=UNSUPPORTED,
)

_INPUT_KEYS = {
    "input_size": "channels",
    "num_dynamic_real_features": "dynamic_features",
    "num_static_real_features": "static_features",
    "num_time_features": "time_features",
}

# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.SeriesEncoderDecoder, positions: int) -> Config:
    part = model.input
    kind = _MODEL if model.output is None else _PREDICTION
    config: Config = {
        "model_type": "time_series_transformer",
        "architectures": [_CLASS + kind],
        **both_sides_config(model.d_model, model.encoder, model.decoder),
        "encoder_layerdrop": _layer_drop(model.encoder),
        "decoder_layerdrop": _layer_drop(model.decoder),
        "prediction_length": model.horizon,
        "context_length": part.length,
        **part_config(part, _INPUT_KEYS),
        "lags_sequence": list(part.lags),
        "scaling": part.scaler,
        "num_static_categorical_features": len(part.categories),
        "feature_size": part.width,
    }
    if part.categories:
        config["cardinality"] = [category.count for category in part.categories]
        config["embedding_dimension"] = [category.width for category in part.categories]
    if model.output is not None:
        config["distribution_output"] = model.output.name
    return config


def _layer_drop(stack: spec.Stack) -> float:
    return stack.scheme.layer_drop if isinstance(stack.scheme, spec.Plain) else 0.0


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.SeriesEncoderDecoder:
    values = _SCHEMA.parse(config)
    horizon = values["prediction_length"]
    if horizon is None:
        raise ModelError("config.json has no prediction_length", "add it")
    part = spec.LaggedValues(
        values["context_length"] or horizon,
        **part_fields(values, _INPUT_KEYS),
        lags=tuple(values["lags_sequence"]),
        scaler=parse_scaler(config.get("scaling", "mean")),
        categories=_categories(config, values["num_static_categorical_features"]),
        dropout=values["dropout"],
    )
    # transformers writes it too, but it follows from the other keys.
    width = config.get("feature_size")
    if width is not None and width != part.width:
        raise ModelError(
            f"config.json: feature_size is {width!r}, but lags and features add up to {part.width}",
            "correct feature_size or the numbers of features",
        )
    encoder, decoder = both_sides(values, spec.PostNorm())
    return spec.SeriesEncoderDecoder(
        values["d_model"],
        part,
        replace(encoder, scheme=spec.Plain(float(values["encoder_layerdrop"]))),
        replace(decoder, scheme=spec.Plain(float(values["decoder_layerdrop"]))),
        horizon,
        _output(config, values["distribution_output"]),
    )


def _output(config: Config, kind: str) -> spec.Distribution | None:
    if architecture(config, _CLASS, (_MODEL, _PREDICTION), _PREDICTION) == _MODEL:
        return None
    return parse_distribution(kind)


def _categories(config: Config, count: int) -> tuple[spec.StaticCategory, ...]:
    """The static categorical features: how many values each has, and the widths of embeddings."""
    if not count:  # transformers then ignores both lists
        return ()
    counts = _sizes(config, "cardinality", count)
    if counts is None:
        raise ModelError("config.json has static categorical features but no cardinality", "add it")
    widths = _sizes(config, "embedding_dimension", count)
    if widths is None:
        widths = [min(50, (size + 1) // 2) for size in counts]  # transformers' rule
    return tuple(map(spec.StaticCategory, counts, widths))


def _sizes(config: Config, key: str, count: int) -> list[int] | None:
    sizes = config.get(key)
    if not sizes:
        return None
    if not isinstance(sizes, list) or not all(is_whole(size, 1) for size in sizes):
        raise ModelError(f"config.json: {key} cannot be {sizes!r}", "set it to a list of sizes")
    if len(sizes) != count:
        raise ModelError(
            f"config.json: {key} has {len(sizes)} values for {count} static categorical features",
            "set one number for each feature",
        )
    return sizes


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.SeriesEncoderDecoder, positions: int) -> Rules:
    prefix = "" if model.output is None else PREFIX
    rules: Rules = []
    for i in range(len(model.input.categories)):
        hf = f"{prefix}embedder.embedders.{i}.weight"
        rules.append(Rename(f"input.categories.{i}.weight", hf))
    for name, side, stack in (
        ("source", "encoder", model.encoder),
        ("target", "decoder", model.decoder),
    ):
        hf = prefix + side
        value_projection = f"{hf}.value_embedding.value_projection"
        rules += module_rules(f"{name}.projection", value_projection, bias=False)
        rules.append(Rename(f"{name}.position.table", f"{hf}.embed_positions.weight"))
        rules += module_rules(f"{name}.norm", f"{hf}.layernorm_embedding")
        rules += LAYER.stack_rules(stack, side, f"{hf}.")
    if model.output is not None:
        for i in range(model.output.parameters):
            rules += module_rules(f"series.maps.{i}", f"parameter_projection.proj.{i}")
    return rules


# ------------------------------------------------------------------ presets

# `base` has the widths of Informer's encoder–decoder (Zhou et al. 2021, Appendix E); `tiny` is
# half as wide as transformers' default.
SIZES = {
    "tiny": size(2, 32, 2, d_ff=64),
    "base": size(2, 512, 8, d_ff=2048),
}
_DEFAULTS: Settings = {
    "decoder_layers": None,  # as many as the encoder has
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "feedforward_dropout": 0.1,
    "layer_drop": 0.0,
    "activation": "gelu",
    "horizon": 96,  # steps that are forecast
    "lags": "1,2,3,4,5,6,7",  # time steps
    "channels": None,  # None: as many as the vocabulary says
    "time_features": 4,  # of the calendar: hour, weekday, and days of the month and the year
}


def _lags(settings: Settings) -> Config:
    return {"lags_sequence": list(parse_lags(settings["lags"]))}


_make = FromConfig(
    to_spec,
    {
        **PRESET_KEYS,
        "input_size": "channels",
        "context_length": "context",
        "prediction_length": "horizon",
        "num_time_features": "time_features",
        "encoder_layerdrop": "layer_drop",
        "decoder_layerdrop": "layer_drop",
    },
    {"architectures": [_CLASS + _PREDICTION], "scaling": "std"},
    _lags,
)
PRESETS = {
    "time-series-transformer": PresetFamily("series", _make, SIZES, _DEFAULTS, 7, 96, "tiny")
}
