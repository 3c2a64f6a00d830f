"""Parts from outside the package: checks of what their `build` returns, and of its output.

An object that is no nn.Module, or lacks a method, is refused when it is built; an output of a wrong
shape at the first call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor, nn

from regard import spec
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.positions import position_terms
from regard.system.errors import ModelError

_ABSENT = object()
# The arguments that each method of such a module is called with.
_KERNEL_METHODS = {
    "forward": ("q", "k", "v", "mask", "bias", "cache"),
    "weights": ("q", "k", "mask", "rows", "heads", "bias"),
    "start": ("like", "rows", "capacity", "shape", "max_lookback"),
}
# Only probes ask for weights, and only decoding for a cache: a kernel may lack them.
_OPTIONAL_METHODS = ("weights", "start")
_POSITION_METHODS = {"terms": ("mask", "ids", "length")}


def build_own_kernel(part: spec.BuildsAttention, sizes: spec.AttentionSizes) -> nn.Module:
    """The attention kernel of a mixer from outside."""
    kernel = _build(part, sizes)
    advice = "derive it from core.explicit_attention.ExplicitAttention, which has all of them"
    _check_methods(part, kernel, _KERNEL_METHODS, advice)
    if getattr(kernel, "start", _ABSENT) is _ABSENT:
        kernel.start = functools.partial(_raise_no_cache, _kind(kernel), advice)  # type: ignore[assignment]
    if getattr(kernel, "prepare", _ABSENT) is _ABSENT:
        kernel.prepare = _prepare_nothing  # type: ignore[assignment]
    kernel.register_forward_hook(_check_mixed_values)
    return kernel


def _prepare_nothing(mask: AttentionMask, bias: ScoreBias | None) -> None:
    """It asks for what it needs of a mask in each layer."""


def build_own_position(
    part: spec.BuildsPosition, sizes: spec.PositionSizes
) -> position_terms.Position:
    """The position of a stack from outside."""
    position: Any = _build(part, sizes)
    _check_methods(part, position, _POSITION_METHODS, "define this method")
    checked: position_terms.Position = position
    return checked


def _build(part: Any, sizes: Any) -> nn.Module:
    name = type(part).__name__
    if not _takes(part.build, ("sizes",)):
        raise ModelError(
            f"{name}.build does not accept the argument `sizes`",
            f"define it as build(self, sizes: spec.{type(sizes).__name__})",
        )
    module = part.build(sizes)
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{name}.build returned {_kind(module)}, not an nn.Module",
            "return an nn.Module from `build`",
        )
    return module


def _check_methods(
    part: Any, module: nn.Module, methods: Mapping[str, tuple[str, ...]], advice: str
) -> None:
    for method, arguments in methods.items():
        function = getattr(module, method, _ABSENT)
        if function is _ABSENT and method in _OPTIONAL_METHODS:
            continue
        if not _takes(function, arguments):
            called = f"{method}({', '.join(arguments)})"
            raise ModelError(
                f"{type(part).__name__}.build returned {_kind(module)}, which has no {called}",
                advice,
            )


def _raise_no_cache(kind: str, advice: str, *_: Any) -> NoReturn:
    """Stands for the missing `start` of a kernel."""
    raise ModelError(
        f"{kind} has no method `start`, which is needed to decode with a KV cache", advice
    )


def _takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Whether a function can be called with this number of arguments."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check_mixed_values(kernel: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
    """A forward hook: for each query there is one vector as wide as the values."""
    q, _, v, *_ = arguments
    expected = (*q.shape[:3], v.shape[-1])
    if isinstance(output, Tensor) and output.shape == expected:
        return
    shape = f"a tensor of {tuple(output.shape)}" if isinstance(output, Tensor) else _kind(output)
    raise ModelError(
        f"{type(kernel).__name__} returned {shape} for queries of {tuple(q.shape)} and values of "
        f"{tuple(v.shape)}",
        f"return a tensor of {expected} from its forward: [batch, heads, queries, d_v]",
    )
