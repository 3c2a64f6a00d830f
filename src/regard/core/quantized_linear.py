"""Other ways to multiply by weights that no longer change, for decoding on CPUs. Each takes the place of `functional.linear`
and of the weight itself: what was frozen can neither be trained nor written. None is a module: a step calls them dozens of
times, and what a module does before it is called would cost as much as their smallest products."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from regard.errors import SettingError

_ROWS = 8  # oneDNN packs for a number of rows; this one is good for all that decoding has (LOG.md)


class Packed:
    """float32, in the order in which oneDNN reads it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().float().contiguous(), _ROWS
        )
        self.bias = None if bias is None else bias.detach().float().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.contiguous(), self.weight, self.bias, "none", [], ""
        )
        return out


class Int8:
    """Weights as 8-bit integers with a scale for each output; the input is quantised when it comes (dynamic quantisation)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.detach().float()
        largest = torch.maximum(
            weight.amax(dim=1), -weight.amin(dim=1)
        )  # of `weight.abs()`, without a copy of it all
        scales = largest.clamp_min(1e-8) / 127
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # the tensor type is deprecated, the kernels are not replaced yet
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(
            rounded, None if bias is None else bias.detach().float()
        )
        # Without VNNI, sums of pairs of 8-bit products overflow 16 bits: inputs are then quantised to 7 bits.
        self.narrow = not torch.cpu._is_vnni_supported()

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic.default(x, self.packed, self.narrow)
        return out


class Half:
    """Weights and products in bfloat16, added up in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight.detach().to(torch.bfloat16)
        self.bias = None if bias is None else bias.detach().to(torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.to(torch.bfloat16), self.weight, self.bias).float()


PackedWeight = Packed | Int8 | Half
FROZEN: dict[str, type[PackedWeight]] = {"float32": Packed, "int8": Int8, "bf16": Half}


def check(precision: str) -> None:
    """Whether this machine can freeze to `precision`."""
    if precision not in FROZEN:
        raise SettingError(
            f"weights cannot be frozen to {precision!r}", f"choose one of {', '.join(FROZEN)}"
        )
    if precision == "float32" and not torch.backends.mkldnn.is_available():
        raise SettingError(
            "this PyTorch has no oneDNN to pack weights for", "decode without packing"
        )
    if precision == "int8" and not {"x86", "fbgemm", "qnnpack"} & set(
        torch.backends.quantized.supported_engines
    ):
        raise SettingError("this PyTorch has no int8 kernels", "use float32 or bf16")
