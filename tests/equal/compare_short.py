"""The kernel for short sequences against the definition of attention; run by test_kernels.py."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kernel_programs import assert_same, chosen_dtype, combinations
from regard.core.kernels import short_attention
from regard.core.mixers.scaled_dot_product_attention import attention_weights

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
random = partial(torch.randn, device=device, dtype=chosen_dtype())


def definition(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, dropout_factors: Tensor | float
) -> Tensor:
    return (attention_weights(q, k, mask, scale) * dropout_factors) @ v


def random_mask(kind: str, queries: int, keys: int) -> Tensor | None:
    if kind in ("all", "causal"):
        return None
    return torch.rand(2, 1, queries if kind == "pairs" else 1, keys, device=device) > 0.4


def full_mask(kind: str, mask: Tensor | None, queries: int, keys: int) -> Tensor:
    """[2, 1, T, S] what the kernel is told by `kind` and `mask`."""
    if mask is None:
        mask = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        if kind == "causal":
            mask = mask.tril()
    return mask.expand(2, 1, queries, keys)


# Outputs and gradients, with all kinds of masks.
for t, s, (heads, d_v), kind in combinations(
    (1, 5, 17), (3, 17), ((1, 8), (3, 24)), ("all", "causal", "rows", "pairs")
):
    if kind == "causal" and t != s:
        continue
    # [B, T, H, K] in memory, as projections write them.
    projected = [random(2, n, heads, d) for n, d in ((t, 8), (s, 8), (s, d_v))]
    q, k, v = qkv = [x.transpose(1, 2).requires_grad_() for x in projected]
    mask = random_mask(kind, t, s)
    gradient = random(2, heads, t, d_v)
    actual = short_attention.attention(q, k, v, mask, kind == "causal", 0.3, 0.0)
    expected = definition(q, k, v, full_mask(kind, mask, t, s), 0.3, 1.0)
    assert_same(actual, expected, 1e-4, 1e-5)
    actual_gradients = torch.autograd.grad(actual, qkv, gradient)
    expected_gradients = torch.autograd.grad(expected, qkv, gradient)
    for one, other in zip(actual_gradients, expected_gradients, strict=True):
        assert_same(one, other, 1e-4, 1e-5)

# Dropout: with the identity as values, the output is the weights, so that the dropped ones are
# seen. The rate is right, and gradients follow the same weights.
queries = 16
keys = 32
rate = 0.25
no_mask = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
q = random(20, 2, queries, 8).requires_grad_()
k = random(20, 2, keys, 8).requires_grad_()
v = (
    torch.eye(keys, device=device, dtype=chosen_dtype())
    .expand(20, 2, keys, keys)
    .contiguous()
    .requires_grad_()
)
torch.manual_seed(1)
out = short_attention.attention(q, k, v, None, False, 0.3, rate)
weights = attention_weights(q, k, no_mask, 0.3)
dropout_factors = (out != 0).to(out.dtype) / (1 - rate)
assert_same(out, weights * dropout_factors, 1e-4, 1e-5)
dropped = float((out == 0).float().mean())
assert abs(dropped - rate) < 0.01, dropped
gradient = torch.randn_like(out)
actual_gradients = torch.autograd.grad(out, (q, k, v), gradient)
expected_gradients = torch.autograd.grad(
    definition(q, k, v, no_mask, 0.3, dropout_factors), (q, k, v), gradient
)
for one, other in zip(actual_gradients, expected_gradients, strict=True):
    assert_same(one, other, 1e-4, 1e-5)

# The seed of PyTorch decides what is dropped.
torch.manual_seed(1)
again = short_attention.attention(q, k, v, None, False, 0.3, rate)
assert torch.equal(out, again)
different = short_attention.attention(q, k, v, None, False, 0.3, rate)
assert not torch.equal(out, different)
