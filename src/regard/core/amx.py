"""AMX, Intel's matrix instructions: whether bfloat16 matrix products work on this CPU.

oneDNN multiplies bfloat16 matrices by AMX where the CPU reports it. Some virtual machines report it
without supporting it, so that the first product ends the process by SIGILL, without a message.
The environment variable ONEDNN_MAX_CPU_ISA turns AMX off.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import warnings
from typing import NoReturn

import torch

from regard.system.errors import RegardWarning, SettingError

WITHOUT_AMX = "AVX512_CORE_FP16"  # the largest set of instructions before AMX, by oneDNN's name
SIZE = 64  # of the matrices that are multiplied: large enough for oneDNN to take AMX
SECONDS = 20  # time limit of the trial product


class SlowerKernelsWarning(RegardWarning):
    """The fastest kernels do not work on this machine, so slower ones are used."""


@functools.cache
def require_bfloat16_products() -> None:
    """Turns AMX off if it does not work, so that bfloat16 products do not end the process.

    oneDNN reads the setting at its first product. After that it cannot be changed, and an error
    says how to set it before the start.
    """
    if not amx_is_missing():
        return
    os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_AMX
    if not _product_survives():
        raise SettingError(
            "this CPU reports AMX instructions that do not work",
            f"set ONEDNN_MAX_CPU_ISA={WITHOUT_AMX} before Python starts, or use float32",
        )
    warnings.warn(
        SlowerKernelsWarning(
            "this CPU reports AMX instructions that do not work; bfloat16 is computed without them"
            f"\n  → set ONEDNN_MAX_CPU_ISA={WITHOUT_AMX} to avoid this warning"
        ),
        stacklevel=2,
    )


def amx_is_missing() -> bool:
    """Whether this CPU reports AMX, and a product that uses it ends the process."""
    is_announced = sys.platform.startswith("linux") and torch.cpu._is_amx_tile_supported()
    return is_announced and not _product_survives()


def _product_survives() -> bool:
    """Whether a small product of bfloat16 ends without SIGILL, tried in a fork of this process."""
    with warnings.catch_warnings():
        # Python warns about forks of multi-threaded processes: this one runs one operation only.
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
