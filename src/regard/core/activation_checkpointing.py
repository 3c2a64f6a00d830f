"""Activation checkpointing (Chen et al. 2016): a block's activations are computed again in the
backward pass instead of being stored."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run_checkpointed(block: nn.Module, *arguments: Any) -> Tensor:
    """block(*arguments), of which only the arguments are stored for the backward pass."""
    output: Tensor = checkpoint(block, *arguments, use_reentrant=False)
    return output
