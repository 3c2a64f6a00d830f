"""Compiled blocks: one program for each kind of block, whatever the lengths."""

from __future__ import annotations

from functools import partialmethod

import pytest
import torch
from torch._dynamo.utils import counters

from regard import edit
from regard.builder import build
from regard.core.block import Block
from regard.families import transformer


def test_lengths_need_no_programs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources and targets are equally long in the first batch, and not in the others."""
    monkeypatch.setattr(Block, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    small = {"d_model": 16, "d_ff": 16, "heads": 2, "layers": 2}
    model = build(transformer.preset("tiny", 30, 30, share="all", dropout=0.0, **small)).train()
    torch._dynamo.reset()
    known = counters["stats"]["unique_graphs"]
    with edit.compiled(model):
        for rows, source, target in ((4, 9, 9), (3, 8, 8), (5, 9, 7), (6, 5, 12)):
            padding_mask = torch.arange(source) < torch.tensor([[source - 2]] * rows)
            inputs = (torch.randint(4, 30, (rows, n)) for n in (source, target))
            ours, _ = model(*inputs, padding_mask)
            ours.sum().backward()
    assert counters["stats"]["unique_graphs"] - known == 2  # an encoder's block and a decoder's
    assert all(
        block._compiled_call_impl is None for block in model.modules() if isinstance(block, Block)
    )
    torch._dynamo.reset()
