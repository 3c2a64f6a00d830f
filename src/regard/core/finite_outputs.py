"""Checks that outputs are finite: NaN weights would otherwise answer as if nothing were wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.errors import ModelError


def require_finite(outputs: Tensor, model: nn.Module) -> Tensor:
    """The outputs, unless one of them is NaN or infinite: then `ModelError` names the cause."""
    if bool(torch.isfinite(outputs).all()):
        return outputs
    raise non_finite_error(model)


def require_finite_weights(model: nn.Module) -> None:
    """Raises the same error for weights alone: where all of them are read in any case."""
    if _non_finite_weights(model):
        raise non_finite_error(model)


def non_finite_error(model: nn.Module) -> ModelError:
    """The error of a model whose outputs are not finite; names the first such tensor in it."""
    names = _non_finite_weights(model)
    # Weights that were packed for inference are no parameters any more, and remain unnamed.
    where = f": {names[0]} holds NaN or infinity" if names else ""
    return ModelError(
        f"the model's output is not a number{where}",
        "its training diverged or its file is damaged: use an earlier checkpoint; in float16, "
        "use float32",
    )


def _non_finite_weights(model: nn.Module) -> list[str]:
    return [
        name
        for name, parameter in model.named_parameters()
        if not bool(torch.isfinite(parameter).all())
    ]
