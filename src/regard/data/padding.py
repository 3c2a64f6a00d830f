"""Padding: rows of token ids, or of samples, as one tensor with their padding mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORED = -100  # the label that torch's cross-entropy leaves out

TokenRow = Sequence[int] | NDArray[Any]


def pad_rows(
    rows: Sequence[TokenRow],
    pad: float,
    *,
    side: str = "right",
    min_width: int = 0,
    pad_to_multiple_of: int = 1,
) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] and their padding mask [B, T] (True = token), padded with `pad`.

    `side` is "right" or "left". T is the longest row's length, or `min_width` if that is more,
    rounded up to the multiple. Rows of samples become a tensor of their floating-point type.
    """
    lengths = np.array([len(row) for row in rows])
    width = round_up(max(min_width, int(lengths.max())), pad_to_multiple_of)
    tokens = np.concatenate([_as_array(row) for row in rows])
    return pad_tokens(tokens, lengths, width, pad, side=side)


def pad_tokens(
    tokens: NDArray[Any], lengths: NDArray[Any], width: int, pad: float, *, side: str = "right"
) -> tuple[Tensor, Tensor]:
    """`pad_rows` of rows that are concatenated in `tokens`."""
    positions = np.arange(width)
    if side == "right":
        mask = positions < lengths[:, None]  # [B, T]
    else:
        mask = positions >= width - lengths[:, None]  # left padding
    padded = np.full(mask.shape, pad, dtype=_padded_dtype(tokens))  # [B, T]
    padded[mask] = tokens  # a boolean mask is filled row by row, from left to right
    return torch.from_numpy(padded), torch.from_numpy(mask)


def _as_array(row: TokenRow) -> NDArray[Any]:
    array = np.asarray(row)
    if not len(array):  # numpy takes an empty list for floating-point numbers
        return np.empty(0, dtype=np.int64)
    return array.astype(_padded_dtype(array), copy=False)


def _padded_dtype(array: NDArray[Any]) -> type[np.generic]:
    """Samples keep their type; token ids, which corpora store in 16 bits, become int64."""
    if np.issubdtype(array.dtype, np.floating):
        return array.dtype.type
    return np.int64


def round_up(length: int, multiple: int) -> int:
    """The next multiple: few different widths mean few shapes to compile or to capture."""
    return -(-length // multiple) * multiple
