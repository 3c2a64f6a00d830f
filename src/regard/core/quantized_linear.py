"""Quantized and packed linear weights (int8, bf16, packed float32) for decoding on CPUs.

Each takes the place of `functional.linear` and of the weight itself: a packed model can neither be
trained nor written. None is a module: a step calls them dozens of times, and what a module does
before it is called would cost as much as their smallest products.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from regard.core.amx import require_bfloat16_products
from regard.system.errors import SettingError

_ROWS = 8  # oneDNN packs for a number of rows; this one is good for all that decoding has (log)


class PackedFloat32:
    """float32 weights in the memory layout in which oneDNN reads them."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().float().contiguous(), _ROWS
        )
        self.bias = _cast(bias, torch.float32)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(
            x.contiguous(), self.weight, self.bias, "none", [], ""
        )


class Int8:
    """int8 weights with a scale for each output; the input is quantised when it comes (dynamic
    quantisation)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.detach().float()
        # The largest of `weight.abs()`, without a copy of it all.
        largest = torch.maximum(weight.amax(dim=1), -weight.amin(dim=1))
        scales = largest.clamp_min(1e-8) / 127  # symmetric, [outputs]; a row of zeros stays one
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():
            # The tensor type is deprecated, the kernels are not replaced yet.
            warnings.simplefilter("ignore")
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(rounded, _cast(bias, torch.float32))
        # Without VNNI, sums of pairs of 8-bit products overflow 16 bits: inputs are then quantised
        # to 7 bits.
        self.narrow = not torch.cpu._is_vnni_supported()
        # The C++ function itself: the Python object around it looks on every call whether the
        # packed weight is a fake one of torch.compile, for as long as a small product takes.
        self.linear_dynamic = torch.ops.quantized.linear_dynamic.default._op

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear_dynamic(x, self.packed, self.narrow)


class BFloat16:
    """Weights and products in bfloat16, accumulated in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight.detach().to(torch.bfloat16)
        self.bias = _cast(bias, torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.to(torch.bfloat16), self.weight, self.bias).float()


def _cast(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if bias is None:
        return None
    return bias.detach().to(dtype).contiguous()


PackedWeight = PackedFloat32 | Int8 | BFloat16
PACKED: dict[str, type[PackedWeight]] = {
    "float32": PackedFloat32,
    "int8": Int8,
    "bf16": BFloat16,
}


def check(precision: str) -> None:
    """Raises a `SettingError` if this machine cannot pack weights to `precision`."""
    if not isinstance(precision, str) or precision not in PACKED:
        raise SettingError(
            f"weights cannot be packed to {precision!r}", f"choose one of {', '.join(PACKED)}"
        )
    if precision == "float32" and not torch.backends.mkldnn.is_available():
        raise SettingError(
            "this PyTorch build has no oneDNN, so weights cannot be packed",
            "decode without packing",
        )
    if precision == "int8" and not {"x86", "fbgemm", "qnnpack"} & set(
        torch.backends.quantized.supported_engines
    ):
        raise SettingError("this PyTorch build has no int8 kernels", "use float32 or bf16")
    if precision == "bf16":
        require_bfloat16_products()
