"""Compiled blocks: one program for each kind of block, whatever the lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial, partialmethod

import pytest
import torch
from torch._dynamo.utils import counters

from regard.builder import build, edit
from regard.core.block import Block
from regard.core.masks.attention_mask import AttentionMask, Span
from regard.core.masks.mask import Call, CausalMask, MaskPattern, PaddingMask
from regard.core.masks.sparse_masks import (
    BlockLocalMask,
    CausalSlidingWindowMask,
    GlobalMask,
    SlidingWindowMask,
)
from regard.core.mixers import block_sparse_attention, scaled_dot_product_attention
from regard.families.encoder_decoders import transformer
from regard.system.errors import ModelError


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


@pytest.fixture
def flex_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How many programs FlexAttention was compiled to, by a backend that takes no time."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(block_sparse_attention, "COMPILED_ON", ("cpu",))
    torch._dynamo.reset()
    block_sparse_attention.compiled_flex.cache_clear()
    monkeypatch.setattr(block_sparse_attention, "_CONSTANT_SIZES", defaultdict(set))
    before = counters["stats"]["unique_graphs"]
    yield lambda: counters["stats"]["unique_graphs"] - before
    block_sparse_attention.compiled_flex.cache_clear()
    torch._dynamo.reset()


def flex_equals_the_definition(pattern: MaskPattern, length: int, batch: int = 1) -> None:
    positions = torch.arange(length)
    mask = AttentionMask(pattern.bind(Call(length)), positions, positions, batch, Span(0))
    q, k, v = torch.randn(3, batch, 2, length, 8).unbind()
    actual = block_sparse_attention.flex(q, k, v, mask, 0.3)
    expected = scaled_dot_product_attention.explicit(q, k, v, mask, 0.3, 0.0)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_hundreds_of_sparse_patterns_need_few_programs(
    flex_programs: Callable[[], int],
) -> None:
    """For each way to combine patterns, one for each of the first sizes and one for all others."""
    for size in range(20, 42):
        length = 256 + size
        padding = PaddingMask(torch.arange(length) < torch.tensor([[length - 3], [length]]))
        flex_equals_the_definition(SlidingWindowMask(size), length)
        flex_equals_the_definition(CausalSlidingWindowMask(size), length)
        flex_equals_the_definition(SlidingWindowMask(size) | GlobalMask(size), length)
        flex_equals_the_definition(BlockLocalMask(size, 1) & CausalMask(), length)
        flex_equals_the_definition(SlidingWindowMask(size) & padding, length, batch=2)
    assert flex_programs() == 5 * (block_sparse_attention.MAX_CONSTANT_SIZES + 1)


def test_a_sparse_pattern_without_a_program_is_an_error(
    flex_programs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlexAttention that is not compiled would make the scores of all pairs."""
    monkeypatch.setattr(block_sparse_attention, "MAX_CONSTANT_SIZES", 0)
    monkeypatch.setattr(block_sparse_attention, "MAX_FLEX_PROGRAMS", 1)
    pattern = SlidingWindowMask(20) | GlobalMask(2)
    flex_equals_the_definition(pattern, 300)
    with pytest.raises(ModelError, match=r"Or\(SlidingWindowMask, GlobalMask\)"):
        flex_equals_the_definition(pattern, 300, batch=2)
    assert flex_programs() == 1
