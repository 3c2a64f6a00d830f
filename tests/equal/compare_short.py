"""The kernel for short sequences against the definition, forward and backward; run by test_kernels.py."""

from __future__ import annotations

import itertools

import torch

from regard.core.kernels import short_attention
from regard.core.softmax_attention import attention_weights

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def mixed(q, k, v, mask, scale, kept):
    return (attention_weights(q, k, mask, scale) * kept) @ v


for t, s, (heads, d_v), kind in itertools.product(
    (1, 5, 17), (3, 17), ((1, 8), (3, 24)), ("all", "causal", "rows", "pairs")
):
    if kind == "causal" and t != s:
        continue
    whole = [torch.randn(2, n, heads, d, device=device) for n, d in ((t, 8), (s, 8), (s, d_v))]
    given = [x.transpose(1, 2).requires_grad_() for x in whole]  # as projections hand them over
    mask = (
        None
        if kind in ("all", "causal")
        else torch.rand(2, 1, t if kind == "pairs" else 1, s, device=device) > 0.4
    )
    whole_mask = torch.ones(t, s, dtype=torch.bool, device=device)
    full = (
        (whole_mask.tril() if kind == "causal" else whole_mask)[None, None]
        if mask is None
        else mask
    )
    above = torch.randn(2, heads, t, d_v, device=device)
    found = []
    for ours in (True, False):
        if ours:
            out = short_attention.attention(*given, mask, kind == "causal", 0.3, 0.0)
        else:
            out = mixed(*given, full.expand(2, 1, t, s), 0.3, 1.0)
        found.append((out.detach(), *torch.autograd.grad(out, given, above)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

# Dropout: what is kept can be read off when values are places; the rate is right, and gradients go where values came from.
t, s, rate = 16, 32, 0.25
every = torch.ones(1, 1, t, s, dtype=torch.bool, device=device)
q, k = (torch.randn(20, 2, n, 8, device=device).requires_grad_() for n in (t, s))
v = torch.eye(s, device=device).expand(20, 2, s, s).contiguous().requires_grad_()
torch.manual_seed(1)
out = short_attention.attention(q, k, v, None, False, 0.3, rate)
weights = attention_weights(q, k, every, 0.3)
kept = (out != 0).float() / (1 - rate)
torch.testing.assert_close(out, weights * kept, rtol=1e-4, atol=1e-5)
share = float((out == 0).float().mean())
assert abs(share - rate) < 0.01, share
above = torch.randn_like(out)
ours = torch.autograd.grad(out, (q, k, v), above)
theirs = torch.autograd.grad(mixed(q, k, v, every, 0.3, kept), (q, k, v), above)
for one, other in zip(ours, theirs, strict=True):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
torch.manual_seed(1)
again = short_attention.attention(q, k, v, None, False, 0.3, rate)
assert torch.equal(out, again)
other = short_attention.attention(q, k, v, None, False, 0.3, rate)
assert not torch.equal(out, other)
