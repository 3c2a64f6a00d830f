"""Activation checkpointing (Chen et al. 2016): a block's activations are computed again in the
backward pass instead of being stored."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core.norm import BatchNorm, fixed_running_statistics


def run_checkpointed(block: nn.Module, *arguments: Any) -> Tensor:
    """block(*arguments), of which only the arguments are stored for the backward pass."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The contexts of the first and of the second forward pass."""
        return nullcontext(), fixed_running_statistics(block)

    options: dict[str, Any] = {}
    if any(isinstance(part, BatchNorm) for part in block.modules()):
        options["context_fn"] = contexts
    output: Tensor = checkpoint(block, *arguments, use_reentrant=False, **options)
    return output
