"""build(spec) → model: the only room that matches on kinds of specs, one file a subject."""

from __future__ import annotations

from regard.builder.models import CoreModel, build, outline, trainable

__all__ = ["CoreModel", "build", "outline", "trainable"]
