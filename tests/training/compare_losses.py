"""The fused cross-entropy kernel against the definition; run by test_kernels.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernel_programs import assert_same, chosen_dtype, combinations
from regard.core.frontends.embedding import Table
from regard.core.heads.head import LMHead
from regard.core.kernels import cross_entropy
from regard.data.padding import IGNORED
from regard.training.objectives import losses as definition

cross_entropy._BLOCK = 64
definition.HAS_TRITON = False  # type: ignore[attr-defined]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def kernel(head: LMHead, hidden: Tensor, *settings: Any) -> Any:
    """In mixed precision where a low one was chosen; the definition is in float32."""
    low = chosen_dtype() != torch.float32
    with torch.autocast(device, chosen_dtype(), enabled=low):
        return cross_entropy.FusedLinearCrossEntropy.apply(
            hidden, head.table.weight, head.bias, *settings
        )


for vocabulary, smoothing, agreement, bias, max_logits in combinations(
    (50, 64, 201), (0.0, 0.1), (0.0, 0.7), (False, True), (1 << 31, 900)
):
    cross_entropy._MAX_LOGITS = max_logits  # few of them: several chunks
    labels = torch.tensor([3, 7, IGNORED, 49, 0, 12])
    if agreement:
        labels = torch.cat([labels, labels])
    labels = labels.to(device)
    head = LMHead(Table(vocabulary, 8), bias).to(device)
    for parameter in head.parameters():
        parameter.data.normal_(std=0.5)
    hidden = torch.randn(len(labels), 8, device=device) * 3
    results = []
    for function in (definition.linear_cross_entropy, kernel):
        inputs = hidden.clone().requires_grad_()
        loss, nll = function(head, inputs, labels, smoothing, agreement)
        (loss * 0.37).backward()
        gradients = [parameter.grad for parameter in head.parameters()]
        head.zero_grad(set_to_none=True)
        results.append((loss.detach(), nll.detach(), inputs.grad, *gradients))
    for expected, actual in zip(*results, strict=True):
        assert_same(actual, expected, 1e-5)
