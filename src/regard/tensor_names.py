"""Names of tensors in files that earlier versions wrote, and of the same tensors now.

Our own folders go on writing the names they always had; checkpoints are read under both.
"""

from __future__ import annotations

# One part of a dotted name, as it is stored → as it is now.
_NOW = {
    "everywhere": "global_attention",  # Longformer's second projections
    "beside": "conv_layer",  # DeBERTa's convolution
    "real": "padding_mask",  # which positions of a segment memory are tokens
}
_STORED = {now: stored for stored, now in _NOW.items()}


def current_name(name: str) -> str:
    """The name that a stored tensor has in a model of this version."""
    return _translate(name, _NOW)


def stored_name(name: str) -> str:
    """The name under which our own folders store a parameter."""
    return _translate(name, _STORED)


def _translate(name: str, table: dict[str, str]) -> str:
    return ".".join(table.get(part, part) for part in name.split("."))
