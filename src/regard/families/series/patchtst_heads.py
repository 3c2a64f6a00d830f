"""The heads of PatchTST and the masks of its pre-training, in config.json and in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec
from regard.families.series.forecast_options import parse_distribution
from regard.families.tensor_table import Rule, module_rules
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


def masking_config(masking: spec.RandomMasking | spec.ForecastMasking | None) -> dict[str, Any]:
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


def head_config(head: spec.SeriesHead | None) -> dict[str, Any]:
    if head is None:
        return {}
    config: dict[str, Any] = {"head_dropout": head.dropout}
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
    config: Mapping[str, Any], values: Mapping[str, Any]
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


def _numbers(config: Mapping[str, Any], key: str, default: list[int]) -> tuple[int, ...]:
    """A list of whole numbers, or a single one."""
    value = config.get(key, default)
    if value is None:
        value = default
    # transformers takes a single number as a list of one.
    numbers = value if isinstance(value, list) else [value]
    if not all(is_whole(number) for number in numbers):
        raise ModelError(f"config.json: {key} cannot be {value!r}", "set it to whole numbers")
    return tuple(numbers)


def head_from_config(
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
            return spec.ForecastHead(
                horizon, _output(config, values), _pool(config, values), dropout
            )
        case "ForClassification" | "ForRegression":
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
    raise ModelError(
        f"the architecture {kind!r} of patchtst is not supported",
        "known: Model, ForPrediction, ForPretraining, ForClassification, ForRegression",
    )


def _output(
    config: Mapping[str, Any], values: Mapping[str, Any]
) -> spec.Points | spec.Distribution:
    # Any other loss is −log p, null too: so transformers reads it.
    if config.get("loss", "mse") == "mse":
        return spec.Points()
    return parse_distribution(values["distribution_output"])


def _range(config: Mapping[str, Any]) -> tuple[float, float] | None:
    match config.get("output_range"):
        case None:
            return None
        case [least, most] if is_number(least) and is_number(most):
            return least, most
    raise ModelError(
        "config.json: output_range is not a pair of numbers", "set it to [minimum, maximum]"
    )


def _pool(config: Mapping[str, Any], values: Mapping[str, Any]) -> spec.ChannelPool | None:
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


def head_rules(head: spec.SeriesHead | None) -> list[Rule]:
    if head is None:
        return []
    if isinstance(head, spec.PatchHead):
        return list(module_rules("series.output", "head.linear"))
    # Only the classifier's map has another name.
    name = "linear" if architecture_suffix(head) == "ForClassification" else "projection"
    if not isinstance(head.output, spec.Distribution):
        return list(module_rules("series.output", f"head.{name}"))
    rules: list[Rule] = []
    for i in range(head.output.parameters):
        rules += module_rules(f"series.output.maps.{i}", f"head.{name}.proj.{i}")
    return rules
