"""Weight initialization, where a recipe asks for another than the modules' own (Xavier)."""

from __future__ import annotations

import math
from typing import assert_never

import torch
from torch import nn

from regard.core.attention import Attention
from regard.core.convolution import DilatedConvolution
from regard.core.feedforward import ConvFeedForward, FeedForward, GatedFeedForward
from regard.core.frontends.embedding import Table
from regard.core.linear import Linear
from regard.core.positions.positional_encoding import AxialPosition, LearnedPosition
from regard.core.positions.relative_position import T5Bias
from regard.training.recipe.options import Initialization, Normal, Scaled, Xavier


@torch.no_grad()
def initialize(model: nn.Module, choice: Initialization) -> None:
    """Draws every matrix and table from torch's default generator; biases stay 0 and norms 1."""
    match choice:
        case Xavier():
            pass  # the modules were initialized so when they were built
        case Normal(deviation):
            _normal(model, deviation)
        case Scaled(deviation):
            _normal(model, deviation)
            _scale_residual_projections(model)
        case _:
            assert_never(choice)


def _normal(model: nn.Module, deviation: float) -> None:
    for module in model.modules():
        # A shared table is visited once: modules() yields each module once.
        if isinstance(module, Linear | Table):
            module.weight.normal_(std=deviation)
        elif isinstance(module, LearnedPosition | T5Bias):
            module.table.normal_(std=deviation)
        elif isinstance(module, ConvFeedForward):
            module.inner.weight.normal_(std=deviation)
            module.outer.weight.normal_(std=deviation)
        elif isinstance(module, AxialPosition):
            for table in module.tables:
                table.normal_(std=deviation)


def _scale_residual_projections(model: nn.Module) -> None:
    """GPT-2, Section 2.3: weights of residual layers are divided by √N, their number."""
    # Each adds its output to the residual stream, whose variance would grow with their number.
    projections: list[Linear | DilatedConvolution] = []
    for module in model.modules():
        if isinstance(module, Attention):
            projections.append(module.output)
        elif isinstance(module, FeedForward | GatedFeedForward | ConvFeedForward):
            projections.append(module.outer)
    for projection in projections:
        projection.weight.div_(math.sqrt(len(projections)))
