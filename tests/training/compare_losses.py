"""The loss kernel against the definition, many classes and settings; run by test_loss.py."""

from __future__ import annotations

import itertools

import torch

from regard.training import loss as definition
from regard.training import loss_kernel

loss_kernel._BLOCK = 64
definition._has_triton = lambda: False
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for classes, smoothing, agreement in itertools.product((50, 64, 201), (0.0, 0.1), (0.0, 0.7)):
    labels = torch.tensor([3, 7, definition.IGNORED, 49, 0, 12])
    labels = (torch.cat([labels, labels]) if agreement else labels).to(device)
    start = torch.randn(len(labels), classes, device=device) * 3
    found = []
    for function in (definition.minimised, loss_kernel.Replaced.apply):
        inputs = start.clone().requires_grad_()
        loss, surprise = function(inputs * 1.0, labels, smoothing, agreement)
        (loss * 0.37).backward()
        found.append((loss.detach(), surprise.detach(), inputs.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
