"""The ranks of a run: one process, or those of torch.distributed's process group.

Every rank goes through the same batches and computes its rows of each. What a loss needs of all
rows, it asks for here; with one rank, and outside a training step, that is what it has itself.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional

from regard.data.batching import Batch
from regard.system.errors import RankLostError, RegardError, SettingError

T = TypeVar("T")


class Ranks:
    """The processes of a run. `tensor` of them share one copy of the model (tensor parallelism).

    Ranks that follow each other hold one copy; each copy computes its own rows of a batch.
    """

    def __init__(self, rank: int = 0, size: int = 1, tensor: int = 1) -> None:
        if size % tensor:
            raise SettingError(
                f"{size} ranks cannot be divided into groups of {tensor}",
                "start as many processes as a multiple of tensor_parallel_degree",
            )
        self.rank = rank
        self.size = size
        self.tensor_size = tensor
        self.tensor_rank = rank % tensor
        self.data_rank = rank // tensor
        self.data_size = size // tensor
        # Of the ranks that hold the same part of the model; None: all of them, or only one.
        self.data_group: dist.ProcessGroup | None = None
        self.tensor_group: dist.ProcessGroup | None = None
        if tensor > 1:
            ranks = torch.arange(size).view(-1, tensor)
            self.tensor_group, _ = dist.new_subgroups_by_enumeration(ranks.tolist())
            self.data_group, _ = dist.new_subgroups_by_enumeration(ranks.T.tolist())
        self._sizes: list[int] = []  # rows of each copy, in a training step

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run folder, logs and exports."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.size > 1

    # --- one rank's part of a batch ---------------------------------------------------------------

    @contextmanager
    def sharded(self, batch: Batch) -> Iterator[Batch]:
        """This rank's rows of a batch; inside the block `sum` and `gather` reach the others.

        A rank that no row is left for computes the first one, which counts as nothing.
        """
        if self.data_size == 1:
            yield batch
            return
        bounds = torch.arange(batch.size).tensor_split(self.data_size)
        self._sizes = [len(rows) for rows in bounds]
        start = sum(self._sizes[: self.data_rank])
        part = batch.part(start, self._sizes[self.data_rank])
        try:
            yield part
        finally:
            self._sizes = []

    @property
    def weight(self) -> float:
        """What this rank's rows count: 0 where it has none of its own."""
        return 1.0 if not self._sizes or self._sizes[self.data_rank] else 0.0

    @property
    def shares_batch(self) -> bool:
        """Whether other ranks compute other rows of the batch in work."""
        return bool(self._sizes)

    @property
    def row_share(self) -> float:
        """The rows that this rank computes, as a share of the batch in work."""
        return max(1, self._sizes[self.data_rank]) / sum(self._sizes) if self._sizes else 1.0

    @property
    def first_row(self) -> int:
        """Where this rank's rows begin in what `gather` returns."""
        return sum(self._sizes[: self.data_rank]) if self.weight else 0

    def rows(self, x: Tensor) -> Tensor:
        """This rank's rows of what all rows of the batch have: [B, …] → [b, …]."""
        if not self._sizes:
            return x
        return x[self.first_row :][: max(1, self._sizes[self.data_rank])]

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all parts of the batch in work, with its gradient (all-reduce)."""
        if not self._sizes:
            return x
        total: Tensor = _AllReduce.apply(x * self.weight, self.data_group)
        return total

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all parts of the batch in work [b, …] → [B, …], with gradient."""
        if not self._sizes:
            return x
        count = self._sizes[self.data_rank]
        before = self.first_row
        after = sum(self._sizes) - before - count
        # Zeros where the others' rows are: the sum has each row once, and so has its gradient.
        padded = functional.pad(x[:count], [0, 0] * (x.ndim - 1) + [before, after])
        rows: Tensor = _AllReduce.apply(padded, self.data_group)
        return rows

    def all_rows(self, x: Tensor) -> Tensor:
        """[B, …], of which each rank knows its rows, as the main rank saves it."""
        if self.data_size == 1:
            return x
        # Sums of booleans are not defined.
        total = torch.zeros_like(x, dtype=torch.uint8 if x.dtype == torch.bool else x.dtype)
        rows = x.tensor_split(self.data_size)[self.data_rank]
        total.tensor_split(self.data_size)[self.data_rank].copy_(rows)
        dist.all_reduce(total, group=self.data_group)
        return total.to(x.dtype)

    # --- between the ranks ------------------------------------------------------------------------

    def broadcast(self, value: T) -> T:
        """The main rank's value, on all ranks."""
        if not self.several:
            return value
        values: list[Any] = [value if self.is_main else None]
        dist.broadcast_object_list(values)
        received: T = values[0]
        return received

    @contextmanager
    def main_first(self) -> Iterator[bool]:
        """The other ranks enter the block when the main rank, which gets True, has left it.

        An expected error of the main rank ends all of them.
        """
        if not self.is_main:
            exit_code = self.broadcast(0)
            if exit_code:
                raise SystemExit(exit_code)  # the main rank says why
            yield False
            return
        try:
            yield True
        except RegardError as error:
            self.broadcast(error.exit_code)
            raise
        self.broadcast(0)

    def barrier(self) -> None:
        if self.several:
            dist.barrier()


ONE_RANK = Ranks()


@contextmanager
def lost_ranks_reported(lost: threading.Event | None = None) -> Iterator[None]:
    """Turns the failure of a collective operation into an error that says that a rank is gone.

    `lost` is set then, for threads that wait for that rank.
    """
    try:
        yield
    except RuntimeError as error:
        # gloo's errors have no class of their own.
        of_backend = isinstance(error, dist.DistBackendError | dist.DistNetworkError)
        if not of_backend and not (dist.is_initialized() and "gloo" in str(error)):
            raise
        if lost is not None:
            lost.set()
        first_line = str(error).partition("\n")[0]
        raise RankLostError(
            f"lost another process of this run ({first_line[:100]})",
            "resume with: regard train --resume DIR; "
            "torchrun --max-restarts N does so automatically if --out is given",
        ) from error


class _AllReduce(torch.autograd.Function):
    """The sum over ranks. Each rank's loss depends on it, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        gradient = grads[0].clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


# --- launch ---------------------------------------------------------------------------------------

# Preparing the data and validation are the main rank's: the others wait for it.
TIMEOUT = timedelta(hours=12)


def started_by_torchrun() -> bool:
    """Whether this process is a rank of torchrun, or of another launcher with its variables."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def is_main_process() -> bool:
    return not started_by_torchrun() or _number("RANK", 0) == 0


def was_restarted() -> bool:
    """Whether torchrun's elastic agent started this process again after a failure."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def may_be_restarted() -> bool:
    return _number("TORCHELASTIC_MAX_RESTARTS", 0) > 0


def _number(variable: str, default: int) -> int:
    """What a launcher has set in the environment."""
    return int(os.environ.get(variable, default))


@contextmanager
def joined(device: str, tensor: int) -> Iterator[Ranks]:
    """The ranks of this run, connected for the duration of the block; one where none were started.

    `tensor` ranks share a copy of the model; 0: all of them.
    """
    if not started_by_torchrun() or _number("WORLD_SIZE", 1) == 1:
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
    ranks_here = _number("LOCAL_WORLD_SIZE", 1)
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
    return torch.device("cuda", _number("LOCAL_RANK", 0) % torch.cuda.device_count())


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
