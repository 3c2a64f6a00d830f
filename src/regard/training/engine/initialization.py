"""The first weights, where a recipe asks for others than the parts draw themselves."""

from __future__ import annotations

import math
from typing import assert_never

import torch
from torch import nn

from regard.core.attention import Attention
from regard.core.embedding import Table
from regard.core.feedforward import FeedForward, GatedFeedForward
from regard.core.linear import Linear
from regard.core.positional_encoding import AxialPosition, LearnedPosition
from regard.core.relative_position import T5Bias
from regard.training.recipe.options import Normal, Scaled, StartChoice, Xavier


@torch.no_grad()
def draw(model: nn.Module, choice: StartChoice) -> None:
    """Draws every matrix and table anew from torch's default generator; biases stay 0 and norms 1."""
    match choice:
        case Xavier():
            return
        case Normal(deviation) | Scaled(deviation):
            for module in model.modules():
                if isinstance(module, Linear | Table):
                    module.weight.normal_(std=deviation)
                elif isinstance(module, LearnedPosition | T5Bias):
                    module.table.normal_(std=deviation)
                elif isinstance(module, AxialPosition):
                    for table in module.tables:
                        table.normal_(std=deviation)
        case _:
            assert_never(choice)
    if isinstance(choice, Scaled):
        added = [m.output if isinstance(m, Attention) else m.outer for m in model.modules()
                 if isinstance(m, Attention | FeedForward | GatedFeedForward)]  # fmt: skip
        for linear in added:
            linear.weight.div_(math.sqrt(len(added)))
