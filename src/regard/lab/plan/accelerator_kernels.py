"""The kernels of an accelerator, traced on a machine that has none.

A step is traced on the CPU, whose kernels differ from a GPU's in four places: fused attention
takes dropout and masks, dropout is one kernel, the loss is fused with the LM head and keeps no
logits, and mixed precision normalizes in float32. These are stand-ins with the allocations and the
operations of the GPU's; under fake tensors they compute nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.dropout import Dropout

# The context of what counts as work of the backward pass.
Phase = Callable[[], AbstractContextManager[None]]

_ATEN = torch.ops.aten
_TABLE_MULTIPLE = 64  # rows that the table is padded to, for tensor cores
_MAX_LOGITS = 1 << 31  # logits that exist at once; more rows are computed in chunks
_MASK_ALIGNMENT = 8  # of the keys, in the memory-efficient kernel
# What autocast computes in float32 on a GPU, of what models call: the owner and the name.
_FLOAT32: tuple[tuple[Any, str], ...] = (
    (functional, "layer_norm"),
    (functional, "softmax"),
    (functional, "log_softmax"),
    (torch, "softmax"),
    (torch, "log_softmax"),
    (Tensor, "softmax"),
    (Tensor, "log_softmax"),
)


@contextmanager
def accelerator_kernels() -> Iterator[None]:
    """Within the block, PyTorch's functions take the kernels that a GPU would choose.

    The functions themselves are replaced: a mode of PyTorch's would not reach the forward passes
    that activation checkpointing repeats during backward.
    """
    with ExitStack() as stack:
        stack.enter_context(_replaced(functional, "scaled_dot_product_attention", _attention))
        for owner, name in _FLOAT32:
            function = _in_float32(getattr(owner, name))
            stack.enter_context(_replaced(owner, name, function))
        yield


@contextmanager
def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            x = x.float()
        return function(x, *arguments, **options)

    return call


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """FlashAttention in 16 bits without a mask, otherwise the memory-efficient kernel."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        q, k, v = (x.to(dtype) for x in (q, k, v))
    if attn_mask is None and q.dtype in (torch.bfloat16, torch.float16):
        out, *_ = _ATEN._scaled_dot_product_flash_attention(
            q, k, v, dropout_p, is_causal, False, scale=scale
        )
        return out  # type: ignore[no-any-return]
    if enable_gqa:  # this kernel wants as many key heads as query heads
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    bias = None
    if attn_mask is not None:
        bias = _additive(attn_mask, q, k)
    needs_logsumexp = torch.is_grad_enabled()
    out, *_ = _ATEN._scaled_dot_product_efficient_attention(
        q, k, v, bias, needs_logsumexp, dropout_p, is_causal, scale=scale
    )
    return out  # type: ignore[no-any-return]


def _additive(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A mask as the kernel takes it: numbers to add, padded to a multiple of keys, then expanded
    without memory for rows and heads that are alike."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(q.dtype)
    padding = -mask.shape[-1] % _MASK_ALIGNMENT
    if padding:
        mask = functional.pad(mask, (0, padding))[..., : k.shape[2]]
    return mask.expand(*q.shape[:3], k.shape[2])


# --- dropout --------------------------------------------------------------------------------------


def _native_dropout(x: Tensor, rate: float) -> Tensor:
    """Dropout in one kernel that keeps a mask of bytes."""
    return torch.native_dropout(x, rate, True)[0]


def use_accelerator_dropout(model: nn.Module) -> None:
    """Gives the dropout modules of a model that is only traced the kernel of a GPU."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.forward = partial(_native_dropout, rate=module.rate)  # type: ignore[method-assign]


# --- the fused loss -------------------------------------------------------------------------------


class _FusedLoss(torch.autograd.Function):
    """The allocations and products of `core.kernels.cross_entropy.FusedLinearCrossEntropy`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, bias: Tensor | None, backward: Phase) -> Tensor:
        dtype = x.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        size = -(-len(table) // _TABLE_MULTIPLE) * _TABLE_MULTIPLE
        with torch.autocast("cpu", enabled=False):
            weight = table.to(dtype)
            if size != len(table):
                weight = table.new_zeros(size, table.shape[1], dtype=dtype)
                weight[: len(table)] = table
            chunk = max(1, _MAX_LOGITS // size)
            x_gradient = torch.empty_like(x, dtype=dtype)  # [N, D]
            table_gradient: Tensor | None = None  # [V, D] in float32
            for first in range(0, len(x), chunk):
                hidden = x[first : first + chunk].to(dtype)
                logits = hidden @ weight.mT  # [N, padded V]
                logits.exp_()  # the kernel: each logit is read once and replaced by its gradient
                with backward():
                    x_gradient[first : first + chunk] = logits @ weight
                    product = _float32_product(logits.mT, hidden)[: len(table)]
                if table_gradient is None:
                    table_gradient = product
                else:
                    table_gradient.add_(product)
        bias_gradient = None if bias is None else torch.zeros_like(bias)
        ctx.save_for_backward(x_gradient, table_gradient, bias_gradient)
        ctx.dtypes = (x.dtype, table.dtype, None if bias is None else bias.dtype)
        return x_gradient.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = []
        for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            gradients.append(None if saved is None else (saved * grads[0]).to(dtype))
        return (*gradients, None)


def _float32_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, with the result in float32, whatever the dtype of the factors."""
    if a.dtype == torch.float32:
        return a @ b
    product = a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32)
    # `out_dtype` has no CPU kernel: the product is traced in 16 bits, and its result in 32.
    product.copy_(a @ b)
    return product


class FusedLinearCrossEntropy:
    """The loss of hidden states [..., D], as the fused kernel of a GPU allocates it.

    Its gradients are computed in the forward pass; `backward` marks them as what they are.
    """

    def __init__(self, backward: Phase) -> None:
        self.backward = backward

    def __call__(self, head: Any, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        hidden = hidden.reshape(-1, hidden.shape[-1])  # [N, D]
        apply: Callable[..., Tensor] = _FusedLoss.apply
        loss = apply(head.transformed(hidden), head.table.weight, head.bias, self.backward)
        return loss, loss.detach()
