"""The loss kernel against the definition, many classes and settings; run by test_loss.py."""

from __future__ import annotations

import itertools

import torch

from regard.core.embedding import Table
from regard.core.head import LMHead
from regard.core.kernels import cross_entropy
from regard.training.objectives import loss as definition

cross_entropy._BLOCK = 64
definition.HAS_TRITON = False
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for classes, smoothing, agreement, bias, logits in itertools.product(
    (50, 64, 201), (0.0, 0.1), (0.0, 0.7), (False, True), (1 << 31, 900)
):
    cross_entropy._NUMBERS = logits  # few of them: several pieces
    labels = torch.tensor([3, 7, definition.IGNORED, 49, 0, 12])
    labels = (torch.cat([labels, labels]) if agreement else labels).to(device)
    head = LMHead(Table(classes, 8), bias).to(device)
    for parameter in head.parameters():
        parameter.data.normal_(std=0.5)
    start = torch.randn(len(labels), 8, device=device) * 3
    found = []
    for function in (
        definition.linear_cross_entropy,
        lambda head, x, *rest: cross_entropy.OverVocabulary.apply(
            x, head.table.weight, head.bias, *rest
        ),
    ):
        inputs = start.clone().requires_grad_()
        loss, nll = function(head, inputs, labels, smoothing, agreement)
        (loss * 0.37).backward()
        gradients = [parameter.grad for parameter in head.parameters()]
        head.zero_grad(set_to_none=True)
        found.append((loss.detach(), nll.detach(), inputs.grad, *gradients))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
