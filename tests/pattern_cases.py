"""Mask patterns of every kind over a sequence, for tests of the kernels that compute them."""

from __future__ import annotations

import torch

from regard.core.masks.mask import CausalMask, DocumentMask, FullMask, MaskPattern
from regard.core.masks.sparse_masks import (
    BlockLocalMask,
    CausalSlidingWindowMask,
    GlobalMask,
    GlobalTokenMask,
    RandomBlockMask,
    SlidingWindowMask,
    StridedMask,
)
from regard.core.mixers.edge_attention import GraphMask


def mask_patterns(length: int, device: str = "cpu") -> dict[str, MaskPattern]:
    """By name. Those that belong to a batch are for two rows of `length` ≥ 53 positions."""
    # Three documents in the first row, two in the second.
    documents = torch.zeros(2, length, dtype=torch.long)
    documents[0, 20:] += 1
    documents[0, 33:] += 1
    documents[1, 3:] += 1
    document_mask = DocumentMask(documents.to(device))
    edges = torch.randint(0, length, (150, 3), generator=torch.Generator().manual_seed(1))
    edges[:, 0] %= 2
    graph = GraphMask(edges.to(device), length)
    global_tokens = torch.zeros(2, length, dtype=torch.bool)
    global_tokens[0, 0] = True
    global_tokens[0, 30] = True
    global_tokens[1, 8] = True
    global_tokens = global_tokens.to(device)
    return {
        "window": SlidingWindowMask(5),
        "causal window": CausalSlidingWindowMask(6),
        "dilated": SlidingWindowMask(3, 4),
        "dilated causal": SlidingWindowMask(4, 3) & CausalMask(),
        "strided": StridedMask(7),
        "strided causal": StridedMask(7) & CausalMask(),
        "block-local": BlockLocalMask(9),
        "blocks with neighbours": BlockLocalMask(6, 1),
        "global": GlobalMask(2),
        "window and global": SlidingWindowMask(4) | GlobalMask(2, 3),
        "global tokens": SlidingWindowMask(3) | GlobalTokenMask(global_tokens),
        "global keys": SlidingWindowMask(3) | GlobalTokenMask(global_tokens, keys_only=True),
        "random": RandomBlockMask(7, 2, seed=3),
        "window, global and random": BlockLocalMask(5, 1)
        | GlobalMask(5, 5)
        | RandomBlockMask(5, 2, seed=3),
        "random before": (RandomBlockMask(7, 2, seed=3, of="before") | BlockLocalMask(7))
        & CausalMask(),
        "documents": document_mask,
        "documents causal": document_mask & CausalMask(),
        "graph": graph,
        "graph and itself": graph | SlidingWindowMask(1),
        "not": ~SlidingWindowMask(3),
        "everything": FullMask(),
    }
