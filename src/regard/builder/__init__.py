"""Builds models from specs: one file per kind of part."""

from __future__ import annotations

from regard.builder.models import build, outline, trainable

__all__ = ["build", "outline", "trainable"]
