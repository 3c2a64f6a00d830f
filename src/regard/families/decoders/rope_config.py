"""Rotary positions (RoPE) in config.json, old and new.

transformers 5 has `rope_parameters`; 4 had `rope_theta` and `rope_scaling`, in which the first
files say `type` for `rope_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from functools import partial
from typing import Any

from regard import spec
from regard.core.positions.rotary import rope_frequencies
from regard.families.tensor_table import Constant
from regard.system.arguments import is_number
from regard.system.errors import ModelError

Scaling = type[spec.LinearScaling] | type[spec.BandedScaling]
_SMALLEST = 1e-9

# By `rope_type`: the scaling, and the keys of its options in the order of its fields.
_SCALINGS: dict[str, tuple[Scaling, tuple[str, ...]]] = {
    "linear": (spec.LinearScaling, ("factor",)),
    "llama3": (
        spec.BandedScaling,
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
}


def parse_rope(values: Mapping[str, Any], partial_factor: float | None = None) -> spec.Rope:
    """The rotary positions of a config.

    `partial_factor` is the share of each head's dimensions that is rotated, unless the parameters
    have another; None where a family always rotates all of them.
    """
    options = {
        "rope_theta": values["rope_theta"],
        **values["rope_scaling"],
        **values["rope_parameters"],
    }
    share = 1.0
    if partial_factor is not None:
        share = options.pop("partial_rotary_factor", partial_factor)
    base = options.pop("rope_theta")
    old_type = options.pop("type", "default")
    rope_type = str(options.pop("rope_type", old_type))  # a list is the name of nothing
    scaling, keys = _SCALINGS.get(rope_type, (None, ()))
    scaling_options = [options.pop(key, None) for key in keys]
    numbers = (base, share, *scaling_options)
    # All of them are positive: a base, factors, lengths.
    all_numbers = all(is_number(number, _SMALLEST) for number in numbers) and share <= 1
    if options or rope_type not in ("default", *_SCALINGS) or not all_numbers:
        unknown = f" with {', '.join(options)}" if options else ""
        raise ModelError(
            f"config.json: rope_type {rope_type!r}{unknown} is not supported, or has wrong numbers",
            "known: default; linear and llama3 with their options as positive numbers",
        )
    return spec.Rope(
        base,
        scaling=scaling(*scaling_options) if scaling else None,
        share=float(share),
    )


def rope_config(model: spec.Decoder, *, partial: bool = False) -> dict[str, Any]:
    """The config keys of rotary positions, for both versions of transformers."""
    rope = _rope(model)
    scaling_config: dict[str, Any] = {}
    for rope_type, (scaling, keys) in _SCALINGS.items():
        if isinstance(rope.scaling, scaling):
            options = dict(zip(keys, astuple(rope.scaling), strict=True))
            scaling_config = {"rope_type": rope_type, **options}
    parameters = {"rope_type": "default", **scaling_config, "rope_theta": rope.base}
    if partial:
        parameters["partial_rotary_factor"] = rope.share
    config = {"rope_parameters": parameters}
    if scaling_config:
        config["rope_scaling"] = scaling_config
    return config


def inv_freq_rule(model: spec.Decoder, hf: str) -> Constant:
    """The inverse frequencies of the rotation, which old files hold in every layer."""
    rope = _rope(model)
    # [rotated / 2]: one frequency for each pair of dimensions.
    rotated = int(model.stack.block.attention.d_k * rope.share)
    frequencies = partial(rope_frequencies, rotated, rope.base)
    return Constant(hf, frequencies, tolerance=1e-6, written=False)


def _rope(model: spec.Decoder) -> spec.Rope:
    """Its rotary positions; other positions are described as these and do not match."""
    position = model.stack.block.position
    return position if isinstance(position, spec.Rope) else spec.Rope()
