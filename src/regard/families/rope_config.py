"""Rotary positions as configs say them: transformers 5 has `rope_parameters`; 4 had `rope_theta` and `rope_scaling`, with
`type` for `rope_type`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from functools import partial
from typing import Any

from regard import spec as kinds
from regard.core.rotary import rope_frequencies
from regard.errors import ModelError
from regard.families.tensor_table import Constant

# Scalings by their names, with the keys of their options in our order.
_SCALINGS: dict[
    str, tuple[type[kinds.LinearScaling] | type[kinds.BandedScaling], tuple[str, ...]]
] = {
    "linear": (kinds.LinearScaling, ("factor",)),
    "llama3": (
        kinds.BandedScaling,
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
}


def rope(values: Mapping[str, Any], share: float | None = None) -> kinds.Rope:
    """`share`: that of each head's dimensions which is rotated, unless the parameters say another; None where a family has
    no word for it."""
    said = {
        "rope_theta": values["rope_theta"],
        **values["rope_scaling"],
        **values["rope_parameters"],
    }
    part = 1.0 if share is None else said.pop("partial_rotary_factor", share)
    base, old = said.pop("rope_theta"), said.pop("type", "default")
    kind = said.pop("rope_type", old)
    made, names = _SCALINGS.get(kind, (None, ()))
    numbers = [said.pop(name, None) for name in names]
    if (
        said
        or kind not in ("default", *_SCALINGS)
        or not all(type(n) in (int, float) for n in (base, part, *numbers))
    ):
        options = f" with {', '.join(said)}" if said else ""
        raise ModelError(
            f"rotary positions of the kind {kind!r}{options} are not understood",
            "known: default; linear and llama3 with their options",
        )
    return kinds.Rope(base, scaling=made(*numbers) if made else None, share=float(part))


def rope_words(model: kinds.Decoder, *, shared: bool = False) -> dict[str, Any]:
    """What both versions say of it, together."""
    turned = _rope(model)
    scaling: dict[str, Any] = {}
    for kind, (made, names) in _SCALINGS.items():
        if isinstance(turned.scaling, made):
            scaling = {"rope_type": kind, **dict(zip(names, astuple(turned.scaling), strict=True))}
    share = {"partial_rotary_factor": turned.share} if shared else {}
    new = {"rope_type": "default", **scaling, "rope_theta": turned.base, **share}
    return {"rope_parameters": new, **({"rope_scaling": scaling} if scaling else {})}


def frequencies(model: kinds.Decoder, theirs: str) -> Constant:
    """Old files hold those of the rotation in every layer."""
    rotated = int(model.stack.block.attention.d_k * _rope(model).share)
    return Constant(
        theirs, partial(rope_frequencies, rotated, _rope(model).base), tolerance=1e-6, written=False
    )


def _rope(model: kinds.Decoder) -> kinds.Rope:
    return model.stack.position if isinstance(model.stack.position, kinds.Rope) else kinds.Rope()
