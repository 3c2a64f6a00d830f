"""Pixels as the bytes of a PNG file, for pictures within pages; nothing but zlib is needed."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def image(colours: NDArray[np.uint8]) -> bytes:
    """Pixels [rows, columns, 3] as a PNG file."""
    rows, columns, _ = colours.shape
    # Each row begins with its filter: 0, none.
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), colours.reshape(rows, -1)], axis=1)
    # Width, height, 8 bits a channel, colour type 2 (RGB), and the only methods there are.
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    data = zlib.compress(lines.tobytes(), 6)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A PNG chunk: length, kind, data, checksum."""
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum
