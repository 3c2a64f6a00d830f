"""Linear maps. Every projection is made here, so that LoRA, int8 and sharding have one part to
replace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.dropout import Dropout
from regard.core.quantized_linear import PackedWeight


def normal(*shape: int, std: float | None = None) -> Tensor:
    """Normal numbers; rows are of length about 1 each unless `std` says otherwise. On the meta
    device nothing is drawn: that costs a second for large models."""
    table = torch.empty(shape)
    return table if table.is_meta else table.normal_(std=std or shape[-1] ** -0.5)


class Linear(nn.Module):
    """y = x Wᵀ + b. `parts` are the output widths of several maps in one matrix.

    The matrix is initialised as one (Xavier): for q, k and v together that is 1/√2 of what each
    would get alone, without which post-norm stacks diverge at high learning rates (log). `bias`
    says which parts have one; the vector holds only those. `packed`, once set, stands in for the
    weight (int8, bf16); `added`, once set, is a map whose result is added (LoRA).
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
        if isinstance(bias, Sequence):
            self.biased = tuple(bias)
        else:
            self.biased = (bias,) * len(self.parts)
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        bias_width = sum(self._biased_parts())
        self.bias = nn.Parameter(torch.zeros(bias_width)) if bias_width else None
        self.packed: PackedWeight | None = None
        self.added: nn.Module | None = None
        if not self.weight.is_meta:
            bound = math.sqrt(6.0 / (inputs + outputs))  # Glorot and Bengio 2010, equation 16
            self.weight.data.uniform_(-bound, bound)

    def extra_repr(self) -> str:
        if self.packed is not None:
            return f"packed={type(self.packed).__name__}"
        outputs, inputs = self.weight.shape
        return f"{inputs} → {outputs}, bias={self.bias is not None}"

    def _biased_parts(self) -> list[int]:
        """The widths of the parts that have a bias."""
        return [width for width, has in zip(self.parts, self.biased, strict=True) if has]

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            return self.packed(x)
        y = functional.linear(x, self.weight, self.full_bias())
        return y if self.added is None else y + self.added(x)

    def shift(self, x: Tensor, part: int) -> Tensor:
        """What adding x to the input adds to the output of one of the parts."""
        if self.packed is None and self.added is None:
            return functional.linear(x, self.weight.split(self.parts)[part])
        change = self(x) - self(torch.zeros_like(x))
        return change.split(self.parts, dim=-1)[part]

    def full_bias(self) -> Tensor | None:
        """The bias of all outputs, with zeros for the parts that have none."""
        if self.bias is None or all(self.biased):
            return self.bias
        # Only some parts: Whisper's keys have no bias, its queries and values have one.
        stored = iter(self.bias.split(self._biased_parts()))
        pieces = []
        for width, has in zip(self.parts, self.biased, strict=True):
            pieces.append(next(stored) if has else self.bias.new_zeros(width))
        return torch.cat(pieces)

    def pack(self, kind: Callable[[Tensor, Tensor | None], PackedWeight]) -> None:
        """Gives the weight up for something faster that is made of it."""
        self.packed = kind(self.weight, self.full_bias())
        del self.weight, self.bias

    # ------------------------------------------------------------------ pruning

    def keep_outputs(self, indices: Sequence[Tensor]) -> None:
        """Only these outputs of each part, which become all it has."""
        keep_rows(self, "weight", _shifted(self.parts, indices))
        if self.bias is not None:
            pairs = zip(self.biased, indices, strict=True)
            biased = [index for has, index in pairs if has]
            keep_rows(self, "bias", _shifted(self._biased_parts(), biased))
        self.parts = tuple(len(index) for index in indices)

    def keep_inputs(self, index: Tensor) -> None:
        """Only these inputs."""
        keep_rows(self, "weight", index, 1)


def _shifted(widths: Sequence[int], indices: Sequence[Tensor]) -> Tensor:
    """Indices into each of several parts as indices into all of them."""
    starts = [0, *accumulate(widths)]  # one more than there are parts: the end of the last
    return torch.cat([start + index for start, index in zip(starts, indices, strict=False)])


def dimensions(heads: Tensor, width: int) -> Tensor:
    """The dimensions of some heads of this width: [heads · width]"""
    return (heads[:, None] * width + torch.arange(width, device=heads.device)).flatten()


def keep_rows(part: nn.Module, name: str, index: Tensor, dimension: int = 0) -> None:
    """Only these rows of a parameter."""
    parameter: nn.Parameter = getattr(part, name)
    selected = parameter.detach().index_select(dimension, index.to(parameter.device))
    setattr(part, name, nn.Parameter(selected, requires_grad=parameter.requires_grad))


class LoRA(nn.Module):
    """x → scale · up(down(dropout(x))). `up` starts at zero, so that the model starts as it was."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.down = nn.Parameter(normal(rank, inputs))  # A of the paper
        self.up = nn.Parameter(torch.zeros(outputs, rank))  # B of the paper
        self.scale = alpha / rank
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        narrow = functional.linear(self.dropout(x), self.down)  # [..., rank]
        return functional.linear(narrow, self.up) * self.scale

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, scale={self.scale}"

    def matrix(self) -> Tensor:
        """The change as one matrix [outputs, inputs], multiplied out in float64."""
        return self.scale * (self.up.double() @ self.down.double())
