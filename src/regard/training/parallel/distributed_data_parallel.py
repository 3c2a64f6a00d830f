"""Distributed data parallelism (DDP): the whole model on each rank, gradients summed over ranks."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from regard.core.loss_module import LossModule
from regard.training.objectives.objective import Objective
from regard.training.parallel.ranks import Ranks
from regard.training.parallel.strategy import Strategy, connect_parts


class DataParallel(Strategy):
    """Data parallelism (DDP): the whole model on each rank."""

    def __init__(self, objective: Objective, ranks: Ranks) -> None:
        super().__init__(objective, ranks)
        connect_parts(objective.model, ranks)
        self.ddp = make_ddp(objective, ranks)
        self.loss = self.ddp


def make_ddp(objective: Objective, ranks: Ranks) -> DistributedDataParallel:
    """The loss of an objective, whose gradients are summed over the ranks of other rows."""
    with warnings.catch_warnings():
        # Buffers follow from the spec and the step, on every rank alike. Newer versions of PyTorch
        # have another name for the argument.
        warnings.simplefilter("ignore", FutureWarning)
        ddp = DistributedDataParallel(
            LossModule(objective.model, objective.loss),
            process_group=ranks.data_group,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            # A pooler takes no part in masked language modelling, and so on.
            find_unused_parameters=True,
        )
    # By a lambda: DDP compares annotations, which here are strings.
    ddp.register_comm_hook(ranks.data_group, lambda group, bucket: _sum(group, bucket))
    return ddp


def _sum(group: dist.ProcessGroup | None, bucket: Any) -> torch.futures.Future[Tensor]:
    """Sums gradients over ranks; DDP's own way is the mean."""
    gradients = bucket.buffer()
    if gradients.is_cuda and "nccl" not in dist.get_backend_config(group):
        # gloo copies to the host and back: its future does not wait for the copies.
        dist.all_reduce(gradients, group=group)
        finished: torch.futures.Future[Tensor] = torch.futures.Future()
        finished.set_result(gradients)
        return finished
    work = dist.all_reduce(gradients, group=group, async_op=True)
    assert work is not None, "an asynchronous operation"
    future: Any = work.get_future()
    result: torch.futures.Future[Tensor] = future.then(lambda done: done.value()[0])
    return result
