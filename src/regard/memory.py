"""What fits into memory, asked before it is taken: running out ends a process without a word."""

from __future__ import annotations

from pathlib import Path

from regard.errors import ModelError

_SYSTEM = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Bytes that can be had without swapping, by the kernel's word and the container's limit; None where nobody says."""
    said = [value for value in (_of_system(), _of_container()) if value is not None]
    return min(said) if said else None


def require(numbers: int, what: str) -> None:
    """That many numbers of float32 must fit."""
    needed, free = 4 * numbers, available()
    if free is not None and needed > free:
        raise ModelError(
            f"{what} has {numbers:,} parameters, which take {amount(needed)} of memory, and {amount(free)} are free",
            "use a smaller model or a machine with more memory; `regard show` describes a model of any size",
        )


def amount(count: float) -> str:
    """Bytes as a person says them: 252.3 MB."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _of_system() -> int | None:
    try:
        lines = _SYSTEM.read_text().splitlines()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None
    )


def _of_container() -> int | None:
    """Its limit less what it holds; files it has read can be dropped and do not count."""
    try:
        limit, held = (
            (_CONTAINER / name).read_text().strip() for name in ("memory.max", "memory.current")
        )
        lines = (_CONTAINER / "memory.stat").read_text().splitlines()
    except OSError:
        return None
    if limit == "max":
        return None
    files = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    return max(0, int(limit) - int(held) + files)
