"""Sparse patterns on a GPU are dense softmax attention with their masks, however many there are in
one process, and none falls back to dense scores."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from pattern_cases import mask_patterns
from regard import spec
from regard.builder import build
from regard.core.masks.attention_mask import AttentionMask, Span
from regard.core.masks.mask import Call, MaskPattern, PaddingMask
from regard.core.masks.mask_blocks import is_pointwise
from regard.core.masks.sparse_masks import CausalSlidingWindowMask, GlobalMask, SlidingWindowMask
from regard.core.mixers import block_sparse_attention, scaled_dot_product_attention
from regard.core.mixers.scaled_dot_product_attention import Kernel
from regard.lab.bench.attention import KINDS, AttentionCase, attention_kind

pytestmark = [
    pytest.mark.gpu,
    # Uncompiled FlexAttention makes the scores of all pairs, with this warning.
    pytest.mark.filterwarnings("error:flex_attention called without"),
]

LENGTH = 400
NAMES = list(mask_patterns(LENGTH))
# Compiling a backward pass takes seconds: one for each kind of predicate.
WITH_GRADIENTS = {
    "causal window",
    "dilated causal",
    "strided",
    "window and global",
    "global tokens",
    "window, global and random",
    "documents causal",
    "graph and itself",
    "not",
}
PADDED = ["window", "dilated causal", "window, global and random", "documents", "graph"]


@pytest.fixture(autouse=True)
def _no_recompile_limit(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    # PyTorch's loggers do not hand their messages on to the root.
    logger = logging.getLogger("torch._dynamo")
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)
    assert "recompile_limit" not in caplog.text


def attention_mask(pattern: MaskPattern, length: int, batch: int) -> AttentionMask:
    positions = torch.arange(length, device="cuda")
    return AttentionMask(
        pattern.bind(Call(length, torch.device("cuda"))), positions, positions, batch, Span(0)
    )


def random_inputs(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, batch, 2, length, 32, device="cuda", dtype=dtype).unbind()
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def outputs(
    kernel: Kernel, inputs: tuple[Tensor, Tensor, Tensor], mask: AttentionMask, gradients: bool
) -> list[Tensor]:
    """What a kernel computes, and the gradients of its inputs."""
    q, k, v = inputs
    with torch.set_grad_enabled(gradients):
        out = kernel(q, k, v, mask, 0.2, 0.0)
        if not gradients:
            return [out]
        return [out, *torch.autograd.grad(out.sin().sum(), inputs)]


def block_sparse(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float, dropout: float
) -> Tensor:
    """As `dispatch` computes sparse masks."""
    if is_pointwise(mask.pattern):
        return block_sparse_attention.flex(q, k, v, mask, scale)
    return block_sparse_attention.blocked(q, k, v, mask, scale, dropout)


def assert_equals_the_definition(
    pattern: MaskPattern,
    length: int,
    batch: int = 2,
    *,
    dtype: torch.dtype = torch.float32,
    gradients: bool = False,
) -> None:
    mask = attention_mask(pattern, length, batch)
    q, k, v = inputs = random_inputs(batch, length, dtype)
    exact = (q.double(), k.double(), v.double())
    results = [
        outputs(block_sparse, inputs, mask, gradients),
        outputs(scaled_dot_product_attention.explicit, exact, mask, gradients),
    ]
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_a_sparse_pattern_is_dense_attention_with_its_mask(name: str) -> None:
    pattern = mask_patterns(LENGTH, "cuda")[name]
    assert_equals_the_definition(pattern, LENGTH, gradients=name in WITH_GRADIENTS)


def test_a_pattern_that_was_decoded_with_is_trained_with() -> None:
    """What is kept of a pattern must not be of inference mode: autograd saves it."""
    pattern = CausalSlidingWindowMask(23)
    mask = attention_mask(pattern, LENGTH, 2)
    inputs = random_inputs(2, LENGTH, torch.float32)
    with torch.inference_mode():
        block_sparse_attention.flex(*inputs, mask, 0.2)
    assert_equals_the_definition(pattern, LENGTH, gradients=True)


@pytest.mark.parametrize("name", PADDED)
def test_a_sparse_pattern_of_padded_rows(name: str) -> None:
    lengths = torch.tensor([[LENGTH], [LENGTH - 133]], device="cuda")
    padding = PaddingMask(torch.arange(LENGTH, device="cuda") < lengths)
    assert_equals_the_definition(mask_patterns(LENGTH, "cuda")[name] & padding, LENGTH)


@pytest.mark.parametrize("name", ["window", "documents causal", "window, global and random"])
def test_a_sparse_pattern_in_bfloat16(name: str) -> None:
    pattern = mask_patterns(LENGTH, "cuda")[name]
    assert_equals_the_definition(pattern, LENGTH, dtype=torch.bfloat16, gradients=True)


def test_hundreds_of_sizes_need_few_programs() -> None:
    before = counters["stats"]["unique_graphs"]
    for size in range(20, 120):
        assert_equals_the_definition(
            SlidingWindowMask(size) | GlobalMask(size), 256 + size, batch=1
        )
        assert_equals_the_definition(CausalSlidingWindowMask(size), 256 + size, batch=1)
    assert counters["stats"]["unique_graphs"] - before <= 2 * (
        block_sparse_attention.MAX_CONSTANT_SIZES + 1
    )


def test_no_scores_of_all_pairs_are_made() -> None:
    """After all the patterns above: 16,384 × 16,384 scores of two heads would be 1 GiB."""
    length = 16384
    mask = attention_mask(SlidingWindowMask(128) | GlobalMask(3), length, 1)
    inputs = random_inputs(1, length, torch.bfloat16)
    outputs(scaled_dot_product_attention.dispatch, inputs, mask, gradients=True)  # compiles
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs(scaled_dot_product_attention.dispatch, inputs, mask, gradients=True)
    assert torch.cuda.max_memory_allocated() - before < 2**27


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_attention_is_that_of_a_cpu(kind: str) -> None:
    length = 512
    mixer, pattern = attention_kind(AttentionCase((kind,), window=32), kind, length)
    projection: Literal["apart", "shared"] = "shared" if kind == "reformer" else "apart"
    attention = spec.Attention(2, 16, 16, mixer=mixer, projection=projection)
    block = spec.Block(attention, spec.FeedForward(32), dropout=0.0)
    encoder = spec.Encoder(32, spec.Tokens(50, None, dropout=0.0), spec.Stack.of(2, block, pattern))
    model = build(encoder).eval()
    tokens = torch.randint(0, 50, (2, length))
    padding_mask = torch.arange(length) < torch.tensor([[length], [length - 77]])
    if kind == "linformer":
        padding_mask = torch.ones_like(padding_mask)
    with torch.inference_mode():
        expected, _ = model(tokens, padding_mask)
        actual, _ = model.cuda()(tokens.cuda(), padding_mask.cuda())
    close = (actual.cpu() - expected).abs().amax(dim=-1) < 2e-4  # [B, T]
    # Rounding may move a vector of Reformer to another bucket.
    assert close[padding_mask].float().mean() > (0.9 if kind == "reformer" else 0.9999)
