"""PatchTST in transformers: patches of time series, each channel a sequence of its own.

Its heads forecast, reconstruct masked patches, classify, or give numbers of a whole series. In its
files, attention over channels and a head for each channel are options; the latter does not run
there with several channels, and neither is understood here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from regard import spec
from regard.errors import ModelError
from regard.families.block_config import activation_name, attention_spec, parse_activation
from regard.families.config_schema import IGNORED_KEYS, NOT_ENCODER_DECODER, ConfigSchema
from regard.families.preset_settings import ConfigPresets, config_activation
from regard.families.tensor_table import (
    Count,
    Rename,
    Reshape,
    Rule,
    fused_module_rules,
    module_rules,
    per_layer,
)
from regard.spec.validation import is_number, is_whole

SPEC_TYPES = (spec.Encoder, spec.SeriesPatches)
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
    },
)  # fmt: skip
_Pool = Literal["mean", "max", "first"]

# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> dict[str, Any]:
    windows = model.windows
    block = model.stack.block
    feedforward = block.feedforward
    return {
        "model_type": "patchtst",
        "architectures": [f"PatchTST{_suffix(model.series)}"],
        "num_input_channels": windows.channels,
        "context_length": windows.length,
        "patch_length": windows.scales[0].length,
        "patch_stride": windows.scales[0].stride,
        "num_hidden_layers": model.stack.layers,
        "d_model": model.d_model,
        "num_attention_heads": block.attention.heads,
        "share_embedding": windows.shared,
        "ffn_dim": feedforward.d_ff,
        "norm_type": "batchnorm" if isinstance(block.norm, spec.BatchNorm) else "layernorm",
        "norm_eps": block.norm.eps,
        "attention_dropout": block.attention.mixer.dropout,
        "positional_dropout": windows.dropout,
        "path_dropout": block.dropout,
        "ff_dropout": feedforward.dropout,
        "bias": feedforward.bias,
        "activation_function": activation_name(feedforward.activation),
        "pre_norm": isinstance(block.residual, spec.PreNorm),
        "positional_encoding_type": "random" if windows.position == "learned" else "sincos",
        "use_cls_token": windows.class_token,
        "scaling": windows.scaler,
        **_masking_config(windows.masking),
        **_head_config(model.series),
    }


def _suffix(head: spec.SeriesHead | None) -> str:
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


def _masking_config(masking: spec.RandomMasking | spec.ForecastMasking | None) -> dict[str, Any]:
    if masking is None:
        return {"do_mask_input": False}
    config: dict[str, Any] = {
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


def _head_config(head: spec.SeriesHead | None) -> dict[str, Any]:
    if head is None:
        return {}
    config: dict[str, Any] = {"head_dropout": head.dropout}
    if isinstance(head, spec.PatchHead):
        return config
    if isinstance(head.output, spec.Distribution):
        config |= {"loss": "nll", "distribution_output": head.output.kind}
    # At the class token whatever else is said.
    config["pooling_type"] = None if head.pool == "first" else head.pool
    if isinstance(head, spec.ForecastHead):
        return {**config, "prediction_length": head.horizon}
    if head.range is not None:
        config["output_range"] = list(head.range)
    return {**config, "num_targets": head.count}


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    architecture = (config.get("architectures") or ["PatchTSTModel"])[0]
    kind = architecture.removeprefix("PatchTST")
    masks = kind == "ForPretraining" or (kind == "Model" and bool(config.get("do_mask_input")))
    windows = spec.SeriesPatches(
        values["context_length"],
        values["num_input_channels"],
        (spec.TimeScale(values["patch_length"], values["patch_stride"]),),
        class_token=values["use_cls_token"],
        scaler=_scaler(config),
        position=_position(values["positional_encoding_type"]),
        dropout=values["positional_dropout"],
        shared=values["share_embedding"],
        masking=_masking(config, values) if masks else None,
    )
    stack = spec.Stack(values["num_hidden_layers"], _block(values))
    head = _head(kind, config, values)
    return spec.Encoder(values["d_model"], windows, stack, series=head)


def _block(values: Mapping[str, Any]) -> spec.Block:
    attention = attention_spec(
        values["d_model"], values["num_attention_heads"], values["attention_dropout"]
    )
    feedforward = spec.FeedForward(
        values["ffn_dim"],
        parse_activation(values["activation_function"]),
        values["ff_dropout"],
        values["bias"],
    )
    norm: spec.Norm
    match values["norm_type"]:
        case "batchnorm":
            norm = spec.BatchNorm(values["norm_eps"])
        case "layernorm":
            norm = spec.LayerNorm(values["norm_eps"])
        case other:
            raise ModelError(f"the norm_type {other!r} is not understood", "batchnorm or layernorm")
    residual = spec.PreNorm() if values["pre_norm"] else spec.PostNorm()
    return spec.Block(
        attention, feedforward, residual=residual, norm=norm, dropout=values["path_dropout"]
    )


def _position(kind: str) -> Literal["learned", "fixed"]:
    match kind:
        case "random":
            return "learned"
        case "sincos":
            return "fixed"
    raise ModelError(f"positions of the type {kind!r} are not understood", "random or sincos")


def _scaler(config: Mapping[str, Any]) -> Literal["std", "mean"] | None:
    scaling = config.get("scaling", "std")
    match scaling:
        case "std":
            return "std"
        case "mean" | True:
            return "mean"
        case None | False:
            return None
    raise ModelError(f"config.json: scaling cannot be {scaling!r}", "std, mean or null")


def _masking(
    config: Mapping[str, Any], values: Mapping[str, Any]
) -> spec.RandomMasking | spec.ForecastMasking:
    value = config.get("mask_value", 0)
    if not is_number(value):
        raise ModelError(f"config.json: mask_value cannot be {value!r}", "give a number")
    never = tuple(sorted(_numbers(config, "unmasked_channel_indices", [])))
    if values["mask_type"] == "random":
        share = values["random_mask_ratio"]
        return spec.RandomMasking(share, values["channel_consistent_masking"], never, value)
    if values["mask_type"] == "forecast":
        counts = _numbers(config, "num_forecast_mask_patches", [2])
        return spec.ForecastMasking(counts, never, value)
    raise ModelError(f"the mask_type {values['mask_type']!r} is not understood", "random, forecast")


def _numbers(config: Mapping[str, Any], key: str, default: list[int]) -> tuple[int, ...]:
    """A list of whole numbers, or a single one."""
    value = config.get(key, default)
    if value is None:
        value = default
    numbers = value if isinstance(value, list) else [value]
    if not all(is_whole(number) for number in numbers):
        raise ModelError(f"config.json: {key} cannot be {value!r}", "give whole numbers")
    return tuple(numbers)


def _head(
    kind: str, config: Mapping[str, Any], values: Mapping[str, Any]
) -> spec.SeriesHead | None:
    dropout = values["head_dropout"]
    match kind:
        case "Model":
            return None
        case "ForPretraining":
            return spec.PatchHead(dropout)
        case "ForPrediction":
            horizon = values["prediction_length"]
            return spec.ForecastHead(horizon, _output(config, values), _pool(config, values), dropout)
        case "ForClassification" | "ForRegression":
            pool = _pool(config, values)
            if pool is None:
                raise ModelError("a series of several patches has no pool", "set pooling_type")
            count = values["num_targets"]
            if kind == "ForClassification":
                return spec.ChannelHead(count, pool=pool, dropout=dropout)
            output = _output(config, values)
            return spec.ChannelHead(count, "regress", output, pool, dropout, _range(config))
    raise ModelError(
        f"a patchtst model of the kind {kind!r} is not understood",
        "known: Model, ForPrediction, ForPretraining, ForClassification, ForRegression",
    )


def _output(
    config: Mapping[str, Any], values: Mapping[str, Any]
) -> spec.Points | spec.Distribution:
    if config.get("loss", "mse") == "mse":
        return spec.Points()
    kind = values["distribution_output"]
    if kind not in ("student_t", "normal", "negative_binomial"):
        raise ModelError(
            f"the distribution_output {kind!r} is not understood",
            "known: student_t, normal, negative_binomial",
        )
    return spec.Distribution(kind)


def _range(config: Mapping[str, Any]) -> tuple[float, float] | None:
    match config.get("output_range"):
        case None:
            return None
        case [least, most] if is_number(least) and is_number(most):
            return least, most
    raise ModelError("config.json: output_range is no pair of numbers", "give [least, most]")


def _pool(config: Mapping[str, Any], values: Mapping[str, Any]) -> _Pool | None:
    if values["use_cls_token"]:
        return "first"
    pool = config.get("pooling_type", "mean")
    match pool:
        case "mean" | "max":
            return "mean" if pool == "mean" else "max"
        case None:
            return None
    raise ModelError(f"config.json: pooling_type cannot be {pool!r}", "mean, max or null")


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> list[Rule]:
    windows = model.windows
    prefix = "" if model.series is None else PREFIX
    encoder = f"{prefix}encoder"
    embedding = f"{encoder}.embedder.input_embedding"
    rules: list[Rule] = []
    if windows.shared:
        rules += module_rules("input.projections.0.0", embedding)
    else:
        for i in range(windows.channels):
            rules += module_rules(f"input.projections.0.{i}", f"{embedding}.{i}")
    if windows.class_token:
        hf_shape = (1, 1, 1, model.d_model)
        name = f"{encoder}.positional_encoder.cls_token"
        rules.append(Reshape("input.class_token", name, hf_shape))
    rules.append(Rename("input.position.table", f"{encoder}.positional_encoder.position_enc"))
    rules += per_layer(model.stack.layers, _layer_rules(model, f"{encoder}.layers.{{i}}"))
    return rules + _head_rules(model.series)


def _layer_rules(model: spec.Encoder, hf: str) -> list[Rule]:
    block = model.stack.block
    name = "stack.blocks.{i}"
    projections = [f"{hf}.self_attn.{one}_proj" for one in "qkv"]
    rules: list[Rule] = [
        *fused_module_rules(f"{name}.attention.project.qkv", projections, [model.d_model] * 3),
        *module_rules(f"{name}.attention.output", f"{hf}.self_attn.out_proj"),
        *module_rules(f"{name}.feedforward.inner", f"{hf}.ff.0", block.feedforward.bias),
        *module_rules(f"{name}.feedforward.outer", f"{hf}.ff.3", block.feedforward.bias),
    ]
    # The second of three is that of attention over channels.
    for i, number in enumerate((1, 3)):
        norm = f"{name}.residual.each.{i}.norm"
        if isinstance(block.norm, spec.BatchNorm):
            rules += batch_norm_rules(norm, f"{hf}.norm_sublayer{number}.batchnorm")
        else:
            rules += module_rules(norm, f"{hf}.norm_sublayer{number}")
    return rules


def batch_norm_rules(parameter: str, hf: str) -> list[Rule]:
    """PyTorch's BatchNorm1d: weight, bias and the running statistics."""
    statistics = [
        Rename(f"{parameter}.{name}", f"{hf}.{name}") for name in ("running_mean", "running_var")
    ]
    count = Count(f"{parameter}.batches", f"{hf}.num_batches_tracked")
    return [*module_rules(parameter, hf), *statistics, count]


def _head_rules(head: spec.SeriesHead | None) -> list[Rule]:
    if head is None:
        return []
    if isinstance(head, spec.PatchHead):
        return list(module_rules("series.output", "head.linear"))
    name = "linear" if _suffix(head) == "ForClassification" else "projection"
    if not isinstance(head.output, spec.Distribution):
        return list(module_rules("series.output", f"head.{name}"))
    parameters = 2 if head.output.kind != "student_t" else 3
    rules: list[Rule] = []
    for i in range(parameters):
        rules += module_rules(f"series.output.maps.{i}", f"head.{name}.proj.{i}")
    return rules


# ------------------------------------------------------------------ presets

# Nie et al. 2023, Appendix A.1.4: the sizes for small sets (ETTh), and for all others.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 3, "d_model": 16, "heads": 4, "d_ff": 128, "dropout": 0.3},
    "base": {"layers": 3, "d_model": 128, "heads": 16, "d_ff": 256, "dropout": 0.2},
}
_DEFAULTS: dict[str, Any] = {
    "attention_dropout": 0.0,
    "activation": "gelu",
    "horizon": 96,  # steps that are forecast
    "patch": 16,  # time steps
    "stride": 8,  # time steps
    "channels": None,  # None: as many as the vocabulary says
}


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a preset: the vocabulary are channels, the context is the look-back."""
    return {
        "architectures": ["PatchTSTForPrediction"],
        "num_input_channels": settings["channels"] or settings["vocabulary"],
        "context_length": settings["context"],
        "patch_length": settings["patch"],
        "patch_stride": settings["stride"],
        "num_hidden_layers": settings["layers"],
        "d_model": settings["d_model"],
        "num_attention_heads": settings["heads"],
        "ffn_dim": settings["d_ff"],
        "activation_function": config_activation(settings["activation"]),
        "attention_dropout": settings["attention_dropout"],
        "positional_dropout": settings["dropout"],
        "path_dropout": settings["dropout"],
        "ff_dropout": settings["dropout"],
        "pre_norm": False,
        "positional_encoding_type": "random",
        "pooling_type": None,  # the flatten head
        "prediction_length": settings["horizon"],
    }


preset = ConfigPresets("patchtst", PRESETS, _DEFAULTS, _config, to_spec)
