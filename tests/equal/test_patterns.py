"""Each pattern is dense softmax with its mask, forward and backward, and costs what its pairs cost."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pattern_cases import mask_patterns
from regard.core.masks.attention_mask import AttentionMask, ScoreBias, Span
from regard.core.masks.mask import (
    Call,
    CausalMask,
    DocumentMask,
    FullMask,
    MaskPattern,
    Or,
    PaddingMask,
)
from regard.core.masks.sparse_masks import (
    BlockLocalMask,
    BlockTableMask,
    CausalSlidingWindowMask,
    GlobalMask,
    RandomBlockMask,
    SlidingWindowMask,
    StridedMask,
)
from regard.core.mixers import block_sparse_attention, scaled_dot_product_attention
from regard.core.positions.relative_position import Alibi, T5Bias

LENGTH = 53


PATTERNS = mask_patterns(LENGTH)
WEAK = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.7


def tensors(
    heads: int = 4, groups: int = 2, length: int = LENGTH, batch: int = 2
) -> list[torch.Tensor]:
    shapes = [(heads, 6), (groups, 6), (groups, 5)]
    return [
        torch.randn(batch, h, length, w, dtype=torch.float64, requires_grad=True) for h, w in shapes
    ]


def results(
    kernel: Any, inputs: list[torch.Tensor], attention_mask: AttentionMask, *more: torch.Tensor
) -> list[torch.Tensor]:
    out = kernel(*inputs, attention_mask, 0.4, 0.0)
    return [out, *torch.autograd.grad(out.sin().sum(), [*inputs, *more])]


def sight_of(
    pattern: MaskPattern, length: int = LENGTH, batch: int = 2, **more: Any
) -> AttentionMask:
    places = torch.arange(length)
    return AttentionMask(pattern.bind(Call(length)), places, places, batch, Span(0), **more)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_blocks_equal_the_definition(name: str, padded: bool) -> None:
    attention_mask = sight_of(PATTERNS[name] & PaddingMask(WEAK) if padded else PATTERNS[name])
    inputs = tensors()
    expected = results(scaled_dot_product_attention.explicit, inputs, attention_mask)
    for size in (4, 8, 64):  # none divides the length
        found = results(partial(block_sparse_attention.blocked, size=size), inputs, attention_mask)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_pieces_equal_the_definition(
    name: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where heads and widths are alike, a few blocks at a time, and gradients that gather their keys again."""
    attention_mask = sight_of(PATTERNS[name] & PaddingMask(WEAK) if padded else PATTERNS[name])
    inputs = [
        torch.randn(2, 3, LENGTH, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)
    ]
    expected = results(scaled_dot_product_attention.explicit, inputs, attention_mask)
    for piece in (1, 1 << 13, 1 << 20):
        monkeypatch.setattr(block_sparse_attention, "PIECE", piece)
        found = results(partial(block_sparse_attention.blocked, size=8), inputs, attention_mask)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_reaches_what_it_allows(name: str) -> None:
    pattern = PATTERNS[name].bind(Call(LENGTH))
    mask = sight_of(pattern).allowed.any(dim=0)[0].expand(LENGTH, -1)
    for low, width in itertools.product(range(0, LENGTH, 5), (1, 4, 11)):
        high = min(low + width, LENGTH) - 1
        reached = torch.zeros(LENGTH, dtype=torch.bool)
        for start, end in pattern.reach(low, high):
            reached[max(start, 0) : max(end, 0)] = True
        assert not (mask[low : high + 1].any(dim=0) & ~reached).any()
    seen = mask.nonzero()
    if pattern.max_lookback is not None:
        assert (seen[:, 0] - seen[:, 1]).max() <= pattern.max_lookback
    assert ((seen[:, 0] - seen[:, 1]) % pattern.stride == 0).all()


@pytest.mark.parametrize(
    "term", [T5Bias(4, 8, 20, True).double(), Alibi(4)], ids=["buckets", "alibi"]
)
@pytest.mark.parametrize("name", ["window", "dilated", "window, global and random", "documents"])
def test_positions_on_the_score_are_made_for_blocks_only(name: str, term: Any) -> None:
    inputs, more = tensors(), list(term.parameters())
    attention_mask = sight_of(PATTERNS[name])
    bias = ScoreBias(term=term)
    expected = results(
        partial(scaled_dot_product_attention.explicit, bias=bias), inputs, attention_mask, *more
    )
    blocked = partial(block_sparse_attention.blocked, bias=bias, size=8)
    found = results(blocked, inputs, attention_mask, *more)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    "name", ["window", "dilated causal", "documents", "window, global and random", "graph"]
)
def test_flex_attention_is_given_the_same_pairs(name: str) -> None:
    """Uncompiled and on a CPU, where it has no backward."""
    attention_mask = sight_of(PATTERNS[name] & PaddingMask(WEAK))
    q, k, v = (x.detach().float() for x in tensors(groups=4))
    v = torch.nn.functional.pad(v, (0, 1))
    found = block_sparse_attention.flex(q, k, v, attention_mask, 0.4)
    expected = scaled_dot_product_attention.explicit(q, k, v, attention_mask, 0.4, 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    "pattern",
    [
        CausalSlidingWindowMask(300),
        SlidingWindowMask(200),
        SlidingWindowMask(50) | GlobalMask(2),
        CausalMask(),
        SlidingWindowMask(40, 3),
    ],
    ids=str,
)
@pytest.mark.parametrize(("length", "start"), [(700, 0), (384, 0), (300, 216)])
def test_flex_attention_is_told_which_blocks_are_seen_whole(
    pattern: MaskPattern, length: int, start: int
) -> None:
    generator = torch.Generator().manual_seed(length)
    keys = torch.arange(start + length)
    q, k, v = (torch.randn(2, 2, len(keys), 16, generator=generator) for _ in range(3))
    attention_mask = AttentionMask(pattern, keys[start:], keys, 2, Span(start))
    q = q[:, :, start:]
    found = block_sparse_attention.flex(q, k, v, attention_mask, 0.3)
    expected = scaled_dot_product_attention.explicit(q, k, v, attention_mask, 0.3, 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    mask = block_sparse_attention._flex_block_mask(attention_mask, q.device, 2)
    assert mask is block_sparse_attention._flex_block_mask(attention_mask, q.device, 2)
    seen = torch.nn.functional.pad(
        attention_mask.allowed.expand(1, 1, -1, -1), (0, -len(keys) % 128, 0, -length % 128)
    )[0, 0]
    each = (
        seen.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).transpose(1, 2).flatten(2)
    )  # [rows, columns, pairs]
    assert mask.full_kv_num_blocks[0, 0].tolist() == each.all(dim=-1).sum(dim=1).tolist()
    told = mask.full_kv_num_blocks + mask.kv_num_blocks
    assert (told[0, 0] >= each.any(dim=-1).sum(dim=1)).all()


@given(st.integers(1, 40), st.integers(0, 30), st.integers(1, 6), st.integers(1, 4))
def test_a_piece_of_a_longer_text(length: int, start: int, size: int, step: int) -> None:
    """Queries from `start` on, keys from the first that is remembered."""
    pattern = SlidingWindowMask(size, step) & CausalMask()
    keys = torch.arange(max(0, start - size * step), start + length)
    attention_mask = AttentionMask(pattern, keys[-length:], keys, 1, Span(start))
    q, k, v = tensors(length=start + length, batch=1)
    q, k, v = q[:, :, start:], k[:, :, keys], v[:, :, keys]
    found, expected = (
        block_sparse_attention.blocked(q, k, v, attention_mask, 0.3, 0.0, size=4),
        scaled_dot_product_attention.explicit(q, k, v, attention_mask, 0.3, 0.0),
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_asks_no_table_beyond_its_end() -> None:
    """Blocks of 128 reach further than 300 positions do."""
    attention_mask = sight_of(RandomBlockMask(16, 2, seed=3) | SlidingWindowMask(9), 300)
    q, k, v = torch.randn(3, 2, 2, 300, 8).unbind()
    found = block_sparse_attention.flex(q, k, v, attention_mask, 0.4)
    expected = scaled_dot_product_attention.explicit(q, k, v, attention_mask, 0.4, 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_what_is_kept_from_decoding_can_be_trained_with() -> None:
    """Block masks and drawn blocks outlive the call: autograd saves no tensor of inference mode."""
    length = 307  # of this test alone: what others have made is kept too
    with torch.inference_mode():
        mask = sight_of(RandomBlockMask(16, 2, seed=11) | SlidingWindowMask(9), length)
        q, k, v = torch.randn(3, 2, 2, length, 8).unbind()
        block_sparse_attention.flex(q, k, v, mask, 0.4)
    block_mask = block_sparse_attention._flex_block_mask(mask, q.device, 2)
    assert isinstance(mask.pattern, Or)
    assert isinstance(mask.pattern.first, BlockTableMask)
    assert not mask.pattern.first.table.is_inference()
    assert not block_mask.kv_indices.is_inference()
    assert not block_mask.q_indices.is_inference()


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("length", [256, 300])
def test_flex_attention_knows_that_rows_differ(length: int) -> None:
    """A block that is seen whole in the first row is not in the second: none is named so."""
    documents = torch.zeros(2, length, dtype=torch.long)
    documents[1, 64:] = 1
    attention_mask = sight_of(DocumentMask(documents), length)
    q, k, v = torch.randn(3, 2, 2, length, 8).unbind()
    found = block_sparse_attention.flex(q, k, v, attention_mask, 0.4)
    expected = scaled_dot_product_attention.explicit(q, k, v, attention_mask, 0.4, 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (
        block_sparse_attention._flex_block_mask(attention_mask, q.device, 2).full_kv_num_blocks
        is None
    )


class Numbers(TorchDispatchMode):
    """How many numbers all tensors held that were made, and the largest of them."""

    made = largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(
                    self.largest, leaf.untyped_storage().nbytes() // leaf.element_size()
                )
                self.made += leaf.numel()
        return out


CHEAP = {
    "window": SlidingWindowMask(16),
    "causal window": CausalSlidingWindowMask(17),
    "dilated": SlidingWindowMask(8, 5),
    "block-local": BlockLocalMask(32),
    "window, global and random": BlockLocalMask(32, 1)
    | GlobalMask(8, 8)
    | RandomBlockMask(32, 2, seed=3),
    "window and padding": SlidingWindowMask(16)
    & PaddingMask(torch.ones(1, 8192, dtype=torch.bool)),
}


@pytest.mark.parametrize("name", CHEAP)
def test_memory_grows_as_the_pairs_do(name: str) -> None:
    """The door itself: no tensor as large as queries × keys, and twice the length needs about twice the memory."""
    made = []
    for length in (2048, 4096, 8192):
        q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
        with Numbers() as mode:
            attention_mask = sight_of(CHEAP[name], length, 1)
            scaled_dot_product_attention.dispatch(
                q, k, v, attention_mask, 0.3, 0.0
            ).sum().backward()
        made.append(mode.made)
        assert mode.largest < length * length / 3
    assert made[2] < 2.5 * made[1] < 2.5 * 2.5 * made[0]  # four times, if it grew as n² does


def test_the_door_takes_the_dense_kernel_where_most_is_seen() -> None:
    for pattern in (
        FullMask(),
        CausalMask(),
        StridedMask(3),
        SlidingWindowMask(900),
        ~SlidingWindowMask(2),
    ):
        assert not sight_of(pattern, 1024).is_sparse
    assert sight_of(SlidingWindowMask(64), 1024).is_sparse
    assert not sight_of(SlidingWindowMask(64), 100).is_sparse
