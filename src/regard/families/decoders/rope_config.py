"""Rotary positions (RoPE) in config.json, old and new.

transformers 5 has `rope_parameters`; 4 had `rope_theta` and `rope_scaling`, in which the first
files say `type` for `rope_type`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard import spec
from regard.families.config_schema import Config
from regard.families.tensor_table import Constant
from regard.system.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

# By `rope_type`: the scaling, and the key of each of its options.
_SCALINGS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "linear": (spec.LinearScaling, {"factor": "factor"}),
    "llama3": (
        spec.BandedScaling,
        {
            "factor": "factor",
            "low": "low_freq_factor",
            "high": "high_freq_factor",
            "length": "original_max_position_embeddings",
        },
    ),
    "yarn": (
        spec.YarnScaling,
        {
            "factor": "factor",
            "length": "original_max_position_embeddings",
            "fast": "beta_fast",
            "slow": "beta_slow",
            "truncate": "truncate",
            "attention": "attention_factor",
        },
    ),
}


def parse_rope(values: Config, partial_factor: float | None = None) -> spec.Rope:
    """The rotary positions of a config.

    `partial_factor` is the share of each head's dimensions that is rotated, unless the parameters
    have another; None where a family always rotates all of them.
    """
    options = {
        "rope_theta": values["rope_theta"],
        **(values["rope_parameters"] or values["rope_scaling"]),
    }
    share = 1.0
    if partial_factor is not None:
        share = options.pop("partial_rotary_factor", partial_factor)
    base = options.pop("rope_theta")
    old_type = options.pop("type", "default")
    rope_type = str(options.pop("rope_type", old_type))  # a list is the name of nothing
    kind, keys = _SCALINGS.get(rope_type, (None, {}))
    stated = {field: options.pop(key, None) for field, key in keys.items()}
    stated = {field: value for field, value in stated.items() if value is not None}
    try:
        if options or rope_type not in ("default", *_SCALINGS):
            raise TypeError(f"unknown: {', '.join(options)}")
        return spec.Rope(base, scaling=kind(**stated) if kind else None, share=share)
    except (TypeError, ModelError) as error:
        raise ModelError(
            f"config.json: rope_type {rope_type!r} is not supported, or has wrong options: {error}",
            f"known: default, {', '.join(_SCALINGS)}, with their options as positive numbers",
        ) from None


def rope_parameters(rope: spec.Rope, *, partial: bool = False) -> Config:
    """The parameters of rotary positions, as transformers 5 has them."""
    parameters: Config = {"rope_type": "default"}
    for rope_type, (kind, keys) in _SCALINGS.items():
        if isinstance(rope.scaling, kind):
            options = {key: getattr(rope.scaling, field) for field, key in keys.items()}
            parameters = {"rope_type": rope_type, **options}
    parameters["rope_theta"] = rope.base
    if partial:
        parameters["partial_rotary_factor"] = rope.share
    return {key: value for key, value in parameters.items() if value is not None}


def rope_config(model: spec.Decoder, *, partial: bool = False) -> Config:
    """The config keys of rotary positions, for both versions of transformers."""
    parameters = rope_parameters(rope_of(model.stack.block), partial=partial)
    config = {"rope_parameters": parameters}
    if parameters["rope_type"] != "default":
        others = ("rope_theta", "partial_rotary_factor")
        config["rope_scaling"] = {k: v for k, v in parameters.items() if k not in others}
    return config


def inv_freq_rule(model: spec.Decoder, hf: str) -> Constant:
    """The inverse frequencies of the rotation, which old files hold in every layer."""
    rope = rope_of(model.stack.block)
    # [rotated / 2]: one frequency for each pair of dimensions.
    rotated = int(model.stack.block.attention.d_k * rope.share)

    def frequencies() -> Tensor:
        from regard.core.positions.rotary import rope_frequencies

        return rope_frequencies(rotated, rope.base)

    return Constant(hf, frequencies, tolerance=1e-6, written=False)


def rope_of(block: spec.Block) -> spec.Rope:
    """Its rotary positions; other positions are described as these and do not match."""
    return block.position if isinstance(block.position, spec.Rope) else spec.Rope()
