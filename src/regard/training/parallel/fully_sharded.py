"""Fully sharded data parallelism (FSDP2): each rank holds a part of every parameter.

Parameters, gradients and the optimizer's state are cut by rows; a block's parameters are gathered
for its forward and backward pass (Zhao et al. 2023; ZeRO-3, Rajbhandari et al. 2020).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from regard.core.block import AnyBlock
from regard.core.loss_module import LossModule
from regard.core.norm import BatchNorm
from regard.system.checkpoint_shards import Layout
from regard.training.engine.optimizer import AUTOCAST_DTYPES
from regard.training.objectives.objective import Objective
from regard.training.parallel.ranks import Ranks
from regard.training.parallel.strategy import Sharded, connect_parts


class FullySharded(Sharded):
    """FSDP2 of each block, and of what is outside of blocks.

    In bf16 or fp16, parameters are gathered in it, and gradients summed in float32.
    """

    def __init__(self, objective: Objective, ranks: Ranks) -> None:
        super().__init__(objective, ranks)
        self.shard_rank = ranks.rank
        model = objective.model
        connect_parts(model, ranks)
        names = [name for name, _ in model.named_parameters()]
        unsharded = _unsharded_parameters(model)
        self.layouts = {
            name: Layout.even(parameter.shape, ranks.size)
            for name, parameter in model.named_parameters()
            if parameter not in unsharded
        }
        root = LossModule(model, objective.loss)
        self._shard(root)
        self.loss = root
        # The parts as plain tensors in the same memory: what the optimizer computes with.
        self.sharded: dict[str, DTensor] = {}
        self.parameters = {}
        for name, parameter in zip(names, model.parameters(), strict=True):
            if isinstance(parameter, DTensor):
                self.sharded[name] = parameter
                part = nn.Parameter(parameter.to_local().detach(), parameter.requires_grad)
                self.parameters[name] = part
            else:
                self.parameters[name] = parameter

    def _shard(self, root: nn.Module) -> None:
        """Cuts one block after the other: a device holds the parts, and one whole block."""
        mesh = init_device_mesh(self.device.type, (self.ranks.size,))
        policy = MixedPrecisionPolicy()
        precision = self.objective.settings.precision
        if precision in AUTOCAST_DTYPES:
            # Inputs stay as they are: autocast decides where they are rounded.
            policy = MixedPrecisionPolicy(
                param_dtype=AUTOCAST_DTYPES[precision],
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,
            )
        blocks = [part for part in root.modules() if isinstance(part, AnyBlock)]
        for part in (*blocks, root):
            self.initial_weights.materialize(part)
            unsharded = _unsharded_parameters(part)
            fully_shard(part, mesh=mesh, mp_policy=policy, ignored_params=unsharded)
        for part in root.modules():
            if isinstance(part, FSDPModule):
                # Sums, not means: the loss is divided by the tokens of all ranks already.
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)

    def collect_gradients(self) -> None:
        for name, parameter in self.parameters.items():
            if name in self.sharded:
                sharded = self.sharded[name]
                if isinstance(sharded.grad, DTensor):
                    parameter.grad = sharded.grad.to_local()
                    sharded.grad = None
            elif parameter.grad is not None:
                dist.all_reduce(parameter.grad)


def _unsharded_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Parameters that are not cut: single numbers, and BatchNorm's, which its forward changes."""
    unsharded = {parameter for parameter in model.parameters() if parameter.ndim == 0}
    for part in model.modules():
        if isinstance(part, BatchNorm):
            unsharded.update(part.parameters())
    return unsharded
