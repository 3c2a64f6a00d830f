"""Builds models from specs: one file per kind of part."""

from __future__ import annotations

from regard.builder.models import build, make_fake, outline, trainable

__all__ = ["build", "make_fake", "outline", "trainable"]
