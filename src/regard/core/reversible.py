"""Two streams that take turns, so that what came in can be computed from what came out (Gomez et al. 2017, Kitaev et al. 2020).

One sublayer maps (a, b) to (b, a + f(b)); knowing that, f is made again and taken away. Activations of a whole stack are
then those of one sublayer, for the price of a second forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.core.dropout import Dropout
from regard.core.norm import Norm

Sublayer = Callable[[Tensor], Tensor]


class ReversibleResidual(nn.Module):
    """The residual scheme: both streams side by side, [B, T, 2·D]."""

    def __init__(self, norms: list[Norm], dropout: float, gives: str = "mean") -> None:
        super().__init__()
        self.gives = gives
        self.norms = nn.ModuleList(norms)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayers: list[Sublayer]) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        for step in self.steps(sublayers):
            a, b = b, a + step(b)
        return torch.cat([a, b], dim=-1)

    def steps(self, sublayers: list[Sublayer]) -> list[Sublayer]:
        """What each sublayer adds to the other stream."""

        def step(norm: nn.Module, sublayer: Sublayer) -> Sublayer:
            return lambda x: self.dropout(sublayer(norm(x)))

        return [step(norm, sublayer) for norm, sublayer in zip(self.norms, sublayers, strict=True)]

    def merged(self, x: Tensor) -> Tensor:
        """What comes out of a stack: the mean of both streams, or both."""
        if self.gives == "both":
            return x
        a, b = x.chunk(2, dim=-1)
        return (a + b) / 2


def doubled(x: Tensor) -> Tensor:
    """Both streams begin as the same."""
    return torch.cat([x, x], dim=-1)


def run(x: Tensor, steps: Sequence[Sublayer], used: Sequence[Tensor]) -> Tensor:
    """All `steps` on both streams [B, T, 2·D], remembering nothing but the end; `used` is all that gradients must reach
    besides x: parameters, and a memory."""
    found: Tensor = _Backwards.apply(x, tuple(steps), *used)
    return found


class _Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: tuple[Sublayer, ...], *used: Tensor) -> Tensor:
        ctx.steps, ctx.chances, ctx.again = steps, [], _precision(x)
        a, b = x.chunk(2, dim=-1)
        for step in steps:
            ctx.chances.append(_chance(x))
            a, b = b, a + step(b)
        out = torch.cat([a, b], dim=-1)
        ctx.save_for_backward(out, *used)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        out, *used = ctx.saved_tensors
        wanted = [i for i, x in enumerate(used) if x.requires_grad]
        grads: list[Tensor | None] = [None] * len(used)
        (a, b), (grad_a, grad_b) = out.chunk(2, dim=-1), above.chunk(2, dim=-1)
        before = _chance(out)
        for step, chance in zip(reversed(ctx.steps), reversed(ctx.chances), strict=True):
            _take(chance, out)
            with torch.enable_grad(), ctx.again():
                seen = a.detach().requires_grad_()
                added = step(seen)
            found = torch.autograd.grad(
                added, [seen, *(used[i] for i in wanted)], grad_b, allow_unused=True
            )
            for i, grad in zip(wanted, found[1:], strict=True):
                if grad is not None:
                    grads[i] = grad if grads[i] is None else grads[i] + grad  # type: ignore[operator]
            # (b, a + f(b)) came out: b is known, and f(b) is now too.
            a, b = b - added.detach(), seen.detach()
            grad_a, grad_b = grad_b, grad_a + found[0]
        _take(before, out)
        return torch.cat([grad_a, grad_b], dim=-1), None, *grads


def _chance(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The state of the generators, so that the same is dropped again."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if x.is_cuda else None


def _take(chance: tuple[Tensor, Tensor | None], x: Tensor) -> None:
    torch.set_rng_state(chance[0])
    if chance[1] is not None:
        torch.cuda.set_rng_state(chance[1], x.device)


def _precision(x: Tensor) -> Callable[[], AbstractContextManager[Any]]:
    """Gradients are made outside of autocast: what was on is put on again."""
    kind = x.device.type
    on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=on)
