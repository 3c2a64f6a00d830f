"""Available memory, checked before a model is built.

A process that runs out of memory is killed by the kernel without a message, so that the check has
to come first.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from regard.system.errors import ModelError

# Linux only; on other systems the files do not exist and nothing is checked.
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_BYTES_PER_FLOAT32 = 4
_BYTES_PER_STACK = 8 * 2**20  # of a thread, where nothing else is set


def available() -> int | None:
    """Available memory in bytes: the least of what kernel, container and `ulimit -v` leave.

    None where the system does not report it.
    """
    limits = []
    for measure in (_available_to_system, _available_to_container, _available_to_process):
        with suppress(OSError):  # of a file that another system does not have
            limits.append(measure())
    return min((limit for limit in limits if limit is not None), default=None)


def require(parameters: int, what: str) -> None:
    """Raises `ModelError` if that many float32 parameters do not fit into memory."""
    require_bytes(
        _BYTES_PER_FLOAT32 * parameters,
        f"{what} has {parameters:,} parameters, which",
        "use a smaller model or a machine with more memory; "
        "`regard show` describes a model of any size",
    )


def require_bytes(needed: int, what: str, repair: str) -> None:
    """Raises `ModelError` if that many bytes are not free."""
    free = available()
    if free is not None and needed > free:
        raise ModelError(
            f"{what} take {amount(needed)} of memory, and {amount(free)} are free", repair
        )


def require_threads(count: int) -> None:
    """Raises `ModelError` if the stacks of so many threads do not fit into memory.

    OpenMP ends the process, without an exception, where it cannot create a thread.
    """
    require_bytes(
        _BYTES_PER_STACK * count,
        f"the stacks of {count:,} threads",
        "give `threads`: as many as the machine has cores",
    )


def amount(count: float) -> str:
    """A number of bytes with a decimal unit: 252.3 MB."""
    if count < 1000:
        return f"{count:,.0f} bytes"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:,.1f} {unit}"
    return f"{count / 1000:,.1f} TB"


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file of the kernel by their names, one a line."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {words[0].rstrip(":"): int(words[1]) for words in lines}


def _available_to_system() -> int | None:
    """MemAvailable: free memory plus what the page cache can give back without swapping."""
    available = _numbers(_MEMINFO).get("MemAvailable")
    return available and available * 1024  # the file counts kibibytes


def _available_to_container() -> int | None:
    """The memory limit of this control group (cgroup v2) less what is in use."""
    limit = (_CGROUP / "memory.max").read_text().strip()
    usage = int((_CGROUP / "memory.current").read_text())
    # Inactive file pages are page cache: the kernel drops them when memory is short.
    reclaimable = _numbers(_CGROUP / "memory.stat").get("inactive_file", 0)
    if limit == "max":  # no limit is set
        return None
    return max(0, int(limit) - usage + reclaimable)


def _available_to_process() -> int | None:
    """The address space that this process may still take, where a limit is set (`ulimit -v`)."""
    if not _MEMINFO.exists():
        return None
    import resource  # not on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, limit - pages * resource.getpagesize())


# Parameter numbers of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER_TRIM = 2**31 - 1


def keep_large_blocks() -> bool:
    """Turns off mmap and trimming in malloc; returns whether both settings took effect.

    Only glibc, on Linux, has these settings.
    """
    mallopt = _libc_function("mallopt")
    if mallopt is None:
        return False
    # mallopt returns 1 on success and 0 on error.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM))


def give_back() -> bool:
    """Calls malloc_trim(3): returns free heap memory to the kernel, once.

    For moments after which no block of that size is needed soon. Without it, holes between live
    blocks stay reserved. Returns whether any memory was released.
    """
    malloc_trim = _libc_function("malloc_trim")
    return malloc_trim is not None and bool(malloc_trim(0))


def _libc_function(name: str) -> Callable[..., int] | None:
    """A function of the C library, or None where it is missing (musl, macOS, Windows)."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function
