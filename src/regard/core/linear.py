"""Every projection is made here, so that low-rank edits, int8 and sharding have one part to replace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.quantized_linear import PackedWeight


def normal(rows: int, width: int) -> Tensor:
    """Rows of a table, of length about 1 each. An outline on the meta device is left alone: drawing there costs a second."""
    table = torch.empty(rows, width)
    return table if table.is_meta else table.normal_(std=width**-0.5)


class Linear(nn.Module):
    """y = x Wᵀ + b. `parts` are the output widths of several maps in one matrix, which starts as one (Xavier): for q, k and v
    together that is 1/√2 of what each would get alone, without which post-norm stacks diverge at high rates (LOG.md).

    `bias` says which parts have one; the vector holds only those. `frozen`, once set, stands in for the weight; `added`,
    once set, is a map whose result is added.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool | Sequence[bool] = True,
        parts: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.parts = tuple(parts) if parts else (outputs,)
        self.biased = tuple(bias) if isinstance(bias, Sequence) else (bias,) * len(self.parts)
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        held = sum(width for width, has in zip(self.parts, self.biased, strict=True) if has)
        self.bias = nn.Parameter(torch.zeros(held)) if held else None
        self.frozen: PackedWeight | None = None
        self.added: nn.Module | None = None
        if not self.weight.is_meta:
            bound = math.sqrt(6.0 / (inputs + outputs))
            self.weight.data.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        if self.frozen is not None:
            return self.frozen(x)
        y = functional.linear(x, self.weight, self.whole_bias())
        return y if self.added is None else y + self.added(x)

    def freeze(self, kind: Callable[[Tensor, Tensor | None], PackedWeight]) -> None:
        """Gives the weight up for something faster that is made of it."""
        self.frozen = kind(self.weight, self.whole_bias())
        del self.weight, self.bias

    def keep_outputs(self, each: Sequence[Tensor]) -> None:
        """Only these outputs of each part, which become all it has."""
        first = [0, *accumulate(self.parts)]
        _index(
            self,
            "weight",
            0,
            torch.cat([start + kept for start, kept in zip(first, each, strict=False)]),
        )
        if self.bias is not None:
            held = [
                (width, kept)
                for width, has, kept in zip(self.parts, self.biased, each, strict=True)
                if has
            ]
            first = [0, *accumulate(width for width, _ in held)]
            _index(
                self,
                "bias",
                0,
                torch.cat([start + kept for start, (_, kept) in zip(first, held, strict=False)]),
            )
        self.parts = tuple(len(kept) for kept in each)

    def keep_inputs(self, kept: Tensor) -> None:
        _index(self, "weight", 1, kept)

    def whole_bias(self) -> Tensor | None:
        """With zeros for the parts that have none."""
        if self.bias is None or all(self.biased):
            return self.bias
        held = iter(
            self.bias.split(
                [width for width, has in zip(self.parts, self.biased, strict=True) if has]
            )
        )
        pieces = [
            next(held) if has else self.bias.new_zeros(width)
            for width, has in zip(self.parts, self.biased, strict=True)
        ]
        return torch.cat(pieces)


def dimensions(heads: Tensor, width: int) -> Tensor:
    """Where heads of this width stand beside each other: [heads · width]"""
    return (heads[:, None] * width + torch.arange(width, device=heads.device)).flatten()


def keep_rows(part: nn.Module, name: str, kept: Tensor) -> None:
    """Only these rows of a parameter."""
    _index(part, name, 0, kept)


def _index(part: nn.Module, name: str, dimension: int, kept: Tensor) -> None:
    whole: nn.Parameter = getattr(part, name)
    chosen = whole.detach().index_select(dimension, kept.to(whole.device))
    setattr(part, name, nn.Parameter(chosen, requires_grad=whole.requires_grad))
