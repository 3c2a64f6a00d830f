"""Joining the ranks that torchrun started, and starting them as `regard train --processes N`."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from regard.system.errors import SettingError
from regard.training.parallel.ranks import ONE_RANK, Ranks, lost_ranks_reported

# Preparing the data and validation are the main rank's: the others wait for it.
TIMEOUT = timedelta(hours=12)


def started_by_torchrun() -> bool:
    """Whether this process is a rank of torchrun, or of another launcher with its variables."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main_process() -> bool:
    return not started_by_torchrun() or int(os.environ["RANK"]) == 0


def was_restarted() -> bool:
    """Whether torchrun's elastic agent started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def may_be_restarted() -> bool:
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


@contextmanager
def joined(device: str, tensor: int) -> Iterator[Ranks]:
    """The ranks of this run, connected for the duration of the block; one where none were started.

    `tensor` ranks share a copy of the model; 0: all of them.
    """
    if not started_by_torchrun() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ONE_RANK
        return
    with lost_ranks_reported():
        # Once in a process: connected a second time, ranks would find the addresses of the first.
        if not dist.is_initialized():
            _connect(_backend(device))
        size = dist.get_world_size()
        yield Ranks(dist.get_rank(), size, tensor or size)


def _connect(backend: str) -> None:
    """Makes the process group of the ranks that torchrun has started."""
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    # The agent may hand the same store to ranks that it starts again, with the addresses of those
    # that are gone.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt_{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    atexit.register(dist.destroy_process_group)


def _backend(device: str) -> str:
    """nccl where each rank of this machine has a GPU of its own, otherwise gloo."""
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if not on_gpu:
        return "gloo"
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks_here > torch.cuda.device_count():
        if is_main_process():
            count = torch.cuda.device_count()
            print(f"{ranks_here} ranks share {count} GPU: communicating with gloo instead of nccl",
                  file=sys.stderr)  # fmt: skip
        return "cpu:gloo,cuda:gloo"
    return "cpu:gloo,cuda:nccl"


def rank_device(device: torch.device) -> torch.device:
    """The device of this rank: the GPU of its number on this machine."""
    if not started_by_torchrun() or device.type != "cuda":
        return device
    return torch.device("cuda", local_rank() % torch.cuda.device_count())


def start(processes: int, arguments: Sequence[str]) -> int:
    """Runs `regard ARGUMENTS` in so many processes of this machine, by torchrun; its exit code."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if processes < 1:
        raise SettingError(f"{processes} processes cannot train", "give 1 or more")
    # Warnings of DDP's C++ side about what is meant so; ranks read this when they import torch.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    options = ["--standalone", f"--nproc-per-node={processes}", "--no-python"]
    parsed = run.parse_args([*options, sys.executable, "-m", "regard", *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run.run(parsed)
        except SignalException as error:  # which its ranks were sent too: the run is saved
            return 128 + error.sigval
        except ChildFailedError as error:
            _, first = error.get_first_failure()
            # A process that a signal ended has a negative code; shells add 128 to its number.
            return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return 0
