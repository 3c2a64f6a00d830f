"""Derivation of random seeds: each random stream is a pure function of a few whole numbers.

Dropout, corrupted tokens, data order and sampling each draw from a stream of their own, named by
numbers such as (seed, step, micro-step) or (seed, epoch, row). A resumed run therefore draws again
what an uninterrupted one draws, and neighbours in a batch do not influence each other.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch  # at run time only where needed: the order of data must not wait for it


def derive_seed(*numbers: int, size: int = 8) -> int:
    """A seed of `size` bytes that depends on all bits of all the numbers (BLAKE2b)."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=size).digest(), "little")


def generator(*numbers: int) -> torch.Generator:
    """A torch generator on the host, seeded by the numbers."""
    import torch

    # Four bytes: the Mersenne twister of torch reads only the low 32 bits of its seed.
    return torch.Generator().manual_seed(derive_seed(*numbers, size=4))


def philox(seed: int, stream: int, row: int = 0) -> np.random.Philox:
    """The bits of a counter-based generator (Philox), keyed by the seed and a stream.

    `row` is the most significant word of the counter: rows of one stream never overlap. numpy
    promises never to change the raw bits.
    """
    key = np.array([seed % 2**64, stream % 2**64], dtype=np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, 0, 0, row], dtype=np.uint64))
