"""PatchTST in transformers: patches of time series, each channel a sequence of its own.

Its heads forecast, reconstruct masked patches, classify, or give numbers of a whole series. In its
files, attention over channels and a head for each channel are options; the latter does not run
there with several channels, and neither is supported here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from regard import spec
from regard.families.block_config import block_from_config, stack_config
from regard.families.config_schema import (
    IGNORED_KEYS,
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import FromConfig, PresetFamily, Settings, size
from regard.families.series.forecast_options import UNSUPPORTED, parse_distribution, parse_scaler
from regard.families.tensor_table import Rename, Reshape, Rules, module_rules
from regard.system.arguments import is_number, is_whole
from regard.system.errors import ModelError

# ------------------------------------------------------------------ spec → config.json


def architecture_suffix(head: spec.SeriesHead | None) -> str:
    match head:
        case None:
            return "Model"
        case spec.ForecastHead():
            return "ForPrediction"
        case spec.PatchHead():
            return "ForPretraining"
        case spec.ChannelHead(_, "classify"):
            return "ForClassification"
        case _:
            return "ForRegression"


def masking_config(masking: spec.RandomMasking | spec.ForecastMasking | None) -> Config:
    if masking is None:
        return {"do_mask_input": False}
    config: Config = {
        "do_mask_input": True,
        "mask_value": masking.value,
        "unmasked_channel_indices": list(masking.never) or None,
    }
    if isinstance(masking, spec.ForecastMasking):
        return {
            **config,
            "mask_type": "forecast",
            "num_forecast_mask_patches": list(masking.patches),
        }
    return {
        **config,
        "mask_type": "random",
        "random_mask_ratio": masking.share,
        "channel_consistent_masking": masking.same_for_channels,
    }


def head_config(head: spec.SeriesHead | None) -> Config:
    if head is None:
        return {}
    config: Config = {"head_dropout": head.dropout}
    if isinstance(head, spec.PatchHead):
        return config
    if isinstance(head.output, spec.Distribution):
        config |= {"loss": "nll", "distribution_output": head.output.name}
    # At the class token whatever else is said.
    config["pooling_type"] = None if head.pool == "first" else head.pool
    if isinstance(head, spec.ForecastHead):
        return {**config, "prediction_length": head.horizon}
    # Absent and null are the same to transformers; absent is its default.
    if head.range is not None:
        config["output_range"] = list(head.range)
    return {**config, "num_targets": head.count}


# ------------------------------------------------------------------ config.json → spec


def masking_from_config(
    config: Config, values: Config
) -> spec.RandomMasking | spec.ForecastMasking:
    value = config.get("mask_value", 0)
    if not is_number(value):
        raise ModelError(f"config.json: mask_value cannot be {value!r}", "set it to a number")
    # Sorted there too.
    never = tuple(sorted(_numbers(config, "unmasked_channel_indices", [])))
    if values["mask_type"] == "random":
        share = values["random_mask_ratio"]
        return spec.RandomMasking(share, values["channel_consistent_masking"], never, value)
    if values["mask_type"] == "forecast":
        counts = _numbers(config, "num_forecast_mask_patches", [2])
        return spec.ForecastMasking(counts, never, value)
    raise ModelError(
        f"config.json: mask_type {values['mask_type']!r} is not supported",
        "known: random, forecast",
    )


def _numbers(config: Config, key: str, default: list[int]) -> tuple[int, ...]:
    """A list of whole numbers, or a single one."""
    value = config.get(key, default)
    if value is None:
        value = default
    # transformers takes a single number as a list of one.
    numbers = value if isinstance(value, list) else [value]
    if not all(is_whole(number) for number in numbers):
        raise ModelError(f"config.json: {key} cannot be {value!r}", "set it to whole numbers")
    return tuple(numbers)


def head_from_config(kind: str, config: Config, values: Config) -> spec.SeriesHead | None:
    dropout = values["head_dropout"]
    match kind:
        case "Model":
            return None
        case "ForPretraining":
            return spec.PatchHead(dropout)
        case "ForPrediction":
            horizon = values["prediction_length"]
            return spec.ForecastHead(
                horizon, _output(config, values), _pool(config, values), dropout
            )
        case _:
            pool = _pool(config, values)
            if pool is None:
                raise ModelError(
                    f"config.json: PatchTST{kind} needs a pooling_type",
                    "set pooling_type to mean or max",
                )
            count = values["num_targets"]
            if kind == "ForClassification":
                return spec.ChannelHead(count, pool=pool, dropout=dropout)
            output = _output(config, values)
            return spec.ChannelHead(count, "regress", output, pool, dropout, _range(config))


def _output(config: Config, values: Config) -> spec.Points | spec.Distribution:
    # Any other loss is −log p, null too: so transformers reads it.
    if config.get("loss", "mse") == "mse":
        return spec.Points()
    return parse_distribution(values["distribution_output"])


def _range(config: Config) -> tuple[float, float] | None:
    match config.get("output_range"):
        case None:
            return None
        case [least, most] if is_number(least) and is_number(most):
            return least, most
    raise ModelError(
        "config.json: output_range is not a pair of numbers", "set it to [minimum, maximum]"
    )


def _pool(config: Config, values: Config) -> spec.ChannelPool | None:
    if values["use_cls_token"]:
        return "first"
    pool = config.get("pooling_type", "mean")
    match pool:
        case "mean" | "max":
            return "mean" if pool == "mean" else "max"
        case None:
            return None
    raise ModelError(f"config.json: pooling_type cannot be {pool!r}", "set it to mean, max or null")


# ------------------------------------------------------------------ tensors


def head_rules(head: spec.SeriesHead | None) -> Rules:
    if head is None:
        return []
    if isinstance(head, spec.PatchHead):
        return list(module_rules("series.output", "head.linear"))
    # Only the classifier's map has another name.
    name = "linear" if architecture_suffix(head) == "ForClassification" else "projection"
    if not isinstance(head.output, spec.Distribution):
        return list(module_rules("series.output", f"head.{name}"))
    rules: Rules = []
    for i in range(head.output.parameters):
        rules += module_rules(f"series.output.maps.{i}", f"head.{name}.proj.{i}")
    return rules


SPEC_TYPES = (spec.Encoder, spec.SeriesPatches)
_ENDINGS = ("Model", "ForPrediction", "ForPretraining", "ForClassification", "ForRegression")
PREFIX = "model."

_SCHEMA = ConfigSchema(
    defaults={
        "num_input_channels": 1,
        "context_length": 32,
        "distribution_output": "student_t",
        "patch_length": 1,
        "patch_stride": 1,
        "num_hidden_layers": 3,
        "d_model": 128,
        "num_attention_heads": 4,
        "share_embedding": True,
        "ffn_dim": 512,
        "norm_type": "batchnorm",
        "norm_eps": 1e-5,
        "attention_dropout": 0.0,
        "positional_dropout": 0.0,
        "path_dropout": 0.0,
        "ff_dropout": 0.0,
        "bias": True,
        "activation_function": "gelu",
        "pre_norm": True,
        "positional_encoding_type": "sincos",
        "use_cls_token": False,
        "head_dropout": 0.0,
        "prediction_length": 24,
        "num_targets": 1,
        "channel_consistent_masking": False,
        "mask_type": "random",
        "random_mask_ratio": 0.5,
    },
    fixed={**NOT_ENCODER_DECODER, "channel_attention": False, "share_projection": True},
    synonyms={"hidden_size": "d_model"},
    # `num_parallel_samples` is of sampling. The others are read below: null is a value of theirs.
    ignored=IGNORED_KEYS
    | {
        "num_parallel_samples", "loss", "scaling", "do_mask_input", "num_forecast_mask_patches",
        "unmasked_channel_indices", "mask_value", "pooling_type", "output_range",
        "vocab_size",
    },
    unsupported=UNSUPPORTED,
)  # fmt: skip

_KEYS = {
    "d_model": "d_model",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "ffn_dim": "d_ff",
    "activation_function": "activation",
    "path_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "ff_dropout": "feedforward_dropout",
    "norm_eps": "eps",
    "bias": "feedforward_bias",
}
_WINDOW_KEYS = {
    "num_input_channels": "channels",
    "context_length": "length",
    "use_cls_token": "class_token",
    "positional_dropout": "dropout",
    "share_embedding": "shared",
}
_SCALE_KEYS = {"patch_length": "length", "patch_stride": "stride"}

_LAYER = LayerNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.out_proj",
    attention_norm="norm_sublayer1",
    feedforward_inner=("ff.0",),
    feedforward_outer="ff.3",
    feedforward_norm="norm_sublayer3",  # the second is that of attention over channels
    layer="layers.{i}",
)
_BATCH_NORM_LAYER = replace(
    _LAYER,
    attention_norm="norm_sublayer1.batchnorm",
    feedforward_norm="norm_sublayer3.batchnorm",
)

# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    windows = model.windows
    block = model.stack.block
    norm_type = "batchnorm" if isinstance(block.norm, spec.BatchNorm) else "layernorm"
    position = "random" if windows.position == "learned" else "sincos"
    return {
        "model_type": "patchtst",
        "architectures": [f"PatchTST{architecture_suffix(model.series)}"],
        **part_config(windows, _WINDOW_KEYS),
        **part_config(windows.scales[0], _SCALE_KEYS),
        **stack_config(model.d_model, model.stack, _KEYS),
        "norm_type": norm_type,
        "pre_norm": isinstance(block.residual, spec.PreNorm),
        "positional_encoding_type": position,
        "scaling": windows.scaler,
        **masking_config(windows.masking),
        **head_config(model.series),
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    kind = architecture(config, "PatchTST", _ENDINGS)
    # Heads for other tasks switch masking off, whatever the config says.
    masks = kind == "ForPretraining" or (kind == "Model" and bool(config.get("do_mask_input")))
    windows = spec.SeriesPatches(
        **part_fields(values, _WINDOW_KEYS),
        scales=(spec.TimeScale(**part_fields(values, _SCALE_KEYS)),),
        scaler=parse_scaler(config.get("scaling", "std")),
        position=_position(values["positional_encoding_type"]),
        masking=masking_from_config(config, values) if masks else None,
    )
    # Positions are added at the input; attention itself knows none.
    stack = spec.Stack.of(values["num_hidden_layers"], _block(values))
    head = head_from_config(kind, config, values)
    return spec.Encoder(values["d_model"], windows, stack, spec.heads(head))


def _block(values: Config) -> spec.Block:
    # No final norm follows, with pre-norm neither.
    residual = spec.PreNorm() if values["pre_norm"] else spec.PostNorm()
    block = block_from_config(values, residual, _KEYS)
    norm: spec.Norm
    match values["norm_type"]:
        case "batchnorm":
            norm = spec.BatchNorm(values["norm_eps"], counts=True)
        case "layernorm":
            norm = block.norm
        case other:
            raise ModelError(
                f"config.json: norm_type {other!r} is not supported", "known: batchnorm, layernorm"
            )
    return replace(block, norm=norm)


def _position(kind: str) -> Literal["learned", "fixed"]:
    match kind:
        case "random":
            return "learned"
        case "sincos":
            return "fixed"
    raise ModelError(
        f"config.json: positional_encoding_type {kind!r} is not supported", "known: random, sincos"
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    windows = model.windows
    prefix = "" if model.series is None else PREFIX
    encoder = f"{prefix}encoder"
    embedding = f"{encoder}.embedder.input_embedding"
    rules: Rules = []
    if windows.shared:
        rules += module_rules("input.projections.0.0", embedding)
    else:
        for i in range(windows.channels):
            rules += module_rules(f"input.projections.0.{i}", f"{embedding}.{i}")
    if windows.class_token:
        hf_shape = (1, 1, 1, model.d_model)
        name = f"{encoder}.positional_encoder.cls_token"
        rules.append(Reshape("input.class_token", name, hf_shape))
    # Stored even where it is not trained.
    rules.append(Rename("input.position.table", f"{encoder}.positional_encoder.position_enc"))
    batch_norm = isinstance(model.stack.block.norm, spec.BatchNorm)
    names = _BATCH_NORM_LAYER if batch_norm else _LAYER
    rules += names.stack_rules(model.stack, hf=f"{encoder}.")
    return rules + head_rules(model.series)


# ------------------------------------------------------------------ presets

# Nie et al. 2023, Appendix A.1.4: the sizes for small sets (ETTh), and for all others.
SIZES = {
    "tiny": size(3, 16, 4, d_ff=128, dropout=0.3),
    "base": size(3, 128, 16, d_ff=256, dropout=0.2),
}
_DEFAULTS: Settings = {
    "attention_dropout": 0.0,
    "activation": "gelu",
    "horizon": 96,  # steps that are forecast
    "patch": 16,  # time steps
    "stride": 8,  # time steps
    "channels": None,  # None: as many as the vocabulary says
}


_make = FromConfig(
    to_spec,
    {
        **_KEYS,
        "num_input_channels": "channels",
        "context_length": "context",
        "patch_length": "patch",
        "patch_stride": "stride",
        "positional_dropout": "dropout",
        "ff_dropout": "dropout",
        "prediction_length": "horizon",
    },
    # As the authors' code, where transformers' defaults differ.
    {
        "architectures": ["PatchTSTForPrediction"],
        "pre_norm": False,
        "positional_encoding_type": "random",
        "pooling_type": None,  # the flatten head
    },
)
PRESETS = {"patchtst": PresetFamily("series", _make, SIZES, _DEFAULTS, 7, 336, "tiny")}
