"""Seeds that follow from several numbers."""

from __future__ import annotations

import hashlib
import struct

import torch


def generator(*numbers: int) -> torch.Generator:
    """On the host. Its seed depends on all of the numbers: the generator itself would look at the low 32 bits of one only."""
    digest = hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
