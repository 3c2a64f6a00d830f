"""AMX, Intel's matrix instructions: whether products in bfloat16 survive on this CPU.

oneDNN multiplies bfloat16 matrices by AMX where the CPU announces it. Some virtual machines
announce it and do not have it, so that the first product ends the process (SIGILL), without a
message and for every program alike. oneDNN can be told to do without: ONEDNN_MAX_CPU_ISA.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import warnings
from typing import NoReturn

import torch

from regard.errors import RegardWarning, SettingError

WITHOUT_AMX = "AVX512_CORE_FP16"  # the largest set of instructions before AMX, by oneDNN's name
SIZE = 64  # of the matrices that are multiplied: large enough for oneDNN to take AMX
SECONDS = 20  # after which nothing is known of the product


class SlowerKernelsWarning(RegardWarning):
    """Kernels of this machine that cannot be used, and those that are used in their place."""


@functools.cache
def require_bfloat16_products() -> None:
    """Makes products of bfloat16 on this CPU work: without AMX, where it is announced in vain.

    oneDNN reads the setting with its first product. Where that has been, nothing can be changed
    any more, and the error says how to begin anew.
    """
    if not amx_is_missing():
        return
    os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_AMX
    if not _product_survives():
        raise SettingError(
            "this machine announces AMX instructions and does not have them",
            f"set ONEDNN_MAX_CPU_ISA={WITHOUT_AMX} before Python is started, or use float32",
        )
    warnings.warn(
        SlowerKernelsWarning(
            "this machine announces AMX instructions and does not have them; bfloat16 is computed "
            f"without them\n  → set ONEDNN_MAX_CPU_ISA={WITHOUT_AMX} to tell oneDNN beforehand"
        ),
        stacklevel=2,
    )


def amx_is_missing() -> bool:
    """Whether this CPU announces AMX, oneDNN would use it, and the process would die of it."""
    is_announced = sys.platform.startswith("linux") and torch.cpu._is_amx_tile_supported()
    return is_announced and not _product_survives()


def _product_survives() -> bool:
    """Whether a small product of bfloat16 ends without SIGILL, tried in a fork of this process."""
    with warnings.catch_warnings():
        # Python warns of forks beside threads: this one calls a single operation and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        _multiply_and_exit()
    _, status = os.waitpid(process, 0)
    return not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGILL)


def _multiply_and_exit() -> NoReturn:
    """The product, in a process that leaves neither a message nor a core dump when it dies."""
    import resource  # not on every system: this is called on Linux only

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGILL, signal.SIG_DFL)
        # If another thread had a lock while it was forked, the product may never end.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        torch.set_num_threads(1)  # the threads of a pool are not copied by a fork
        matrix = torch.ones(SIZE, SIZE, dtype=torch.bfloat16)
        torch.mm(matrix, matrix)
    finally:
        os._exit(0)
