"""Parallel strategies: what each rank holds of the model, and how gradients come together.

`Strategy` is the null form, one process. `DataParallel` (DDP) has the whole model on each rank,
`FullySharded` (FSDP2) a part of every tensor, `TensorParallel` some heads of every attention. The
training step is the same for all: it computes the loss of this rank's rows, and gradients are
summed over ranks, because a loss is divided by the tokens of the whole batch.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.core.heads.contrastive_head import Quantizer
from regard.core.loss_module import LossModule
from regard.core.meta_parameters import meta_parameter
from regard.core.mixers.linear_attention import redraw
from regard.core.mixture_of_experts import MixtureOfExperts
from regard.core.norm import BatchNorm
from regard.data.batching import Batch
from regard.models import Model
from regard.system.checkpoint import Checkpoints, Saved
from regard.system.checkpoint_shards import Layout, Tensors, parameter_of, shard_name, split
from regard.training.objectives.objective import Objective
from regard.training.parallel.ranks import ONE_RANK, Ranks


class InitialWeights:
    """The parameters of a model, taken out of it; `materialize` puts parts of them back.

    Every rank has to ask for the same ones in the same order.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, device: torch.device) -> None:
        self.model = model
        self.ranks = ranks
        self.device = device
        self._values: dict[str, Tensor] = {}  # on the main rank
        if ranks.is_main:
            self._values = {name: p.detach() for name, p in model.named_parameters()}
        # One for each parameter that several modules share (weight tying).
        replaced: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    on_meta = replaced.setdefault(id(parameter), meta_parameter(parameter))
                    module._parameters[key] = on_meta

    def materialize(
        self, part: nn.Module, layouts: Mapping[str, Layout] | None = None, rank: int = 0
    ) -> None:
        """Gives a part of the model its values; of what has a layout, the part of this rank."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        received: dict[int, nn.Parameter] = {}
        for module in part.modules():
            for key, parameter in module._parameters.items():
                if parameter is None or not parameter.is_meta:
                    continue
                if id(parameter) not in received:
                    name = names[id(parameter)]
                    layout = (layouts or {}).get(name)
                    value = self._received(name, parameter, layout, rank)
                    received[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
                module._parameters[key] = received[id(parameter)]

    def _received(
        self, name: str, parameter: nn.Parameter, layout: Layout | None, rank: int
    ) -> Tensor:
        if self.ranks.is_main:
            # Files hold some matrices transposed (GPT-2); collective operations take none of these.
            full = self._values.pop(name).to(self.device).contiguous()
        else:
            shape = parameter.shape if layout is None else torch.Size(layout.shape)
            full = torch.empty(shape, dtype=parameter.dtype, device=self.device)
        dist.broadcast(full, 0)
        if layout is None:
            return full
        return layout.part(full, rank)


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Puts buffers on a device; parameters stay where they are."""
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = buffer.to(device)


Loss = Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]]


class Strategy:
    """One process: the model as it is, and every row of a batch.

    `loss` is what the training step differentiates, `parameters` what the optimizer updates, by
    name: on sharded ranks the parts of this one, whose `layouts` say where they belong.
    `evaluation` is the objective that the main rank validates, scores and exports with.
    """

    def __init__(self, objective: Objective, ranks: Ranks = ONE_RANK) -> None:
        self.objective = objective
        self.evaluation = objective
        self.ranks = ranks
        self.loss: Loss = objective.loss
        self.ddp: DistributedDataParallel | None = None
        self.parameters: dict[str, nn.Parameter] = dict(objective.model.named_parameters())
        self.layouts: dict[str, Layout] = {}
        self.shard_rank = 0  # among the ranks that share one copy of the model
        self.shard_group: dist.ProcessGroup | None = None
        self.wants_stop = False  # of this rank: a signal was received
        self.stop_votes: Tensor | None = None  # of all ranks, after a step

    # --- the training step ------------------------------------------------------------------------

    @contextmanager
    def part(self, batch: Batch, *, last: bool) -> Iterator[Batch]:
        """This rank's rows of a batch; gradients are summed over ranks after the `last` one."""
        wait = self.ddp.no_sync() if self.ddp is not None and not last else nullcontext()
        with wait, self.ranks.sharded(batch) as part:
            yield part

    def sum_totals(self, totals: Tensor) -> Tensor:
        """[loss, −log p] of all rows of the step. Whether to stop travels along."""
        if not self.ranks.several:
            return totals
        vote = totals.new_tensor([float(self.wants_stop)])
        # Ranks that share a copy of the model have computed the same rows.
        shared = torch.cat([totals / self.ranks.tensor_size, vote])
        dist.all_reduce(shared)
        self.stop_votes = shared[2]
        return shared[:2]

    def collect_gradients(self) -> None:
        """Puts the gradients of this step, summed over ranks, where the optimizer finds them."""

    def total_norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The norm of all gradients together, of all ranks."""
        replicated = [tensor for name, tensor in gradients.items() if name not in self.layouts]
        norm = torch.nn.utils.get_total_norm(replicated)
        if self.layouts:
            parts = [tensor for name, tensor in gradients.items() if name in self.layouts]
            squares = torch.nn.utils.get_total_norm(parts).square()
            dist.all_reduce(squares, group=self.shard_group)
            norm = (squares + norm.square()).sqrt()
        if not self.ranks.several:
            return norm
        # A gradient may be spoiled after the sum over ranks, in the memory of a single device: NaN
        # on all ranks where it is not finite on one, so that all skip the update.
        bad_ranks = (~norm.isfinite()).to(norm.dtype)
        dist.all_reduce(bad_ranks)
        return torch.where((bad_ranks > 0) & norm.isfinite(), torch.nan, norm)

    # --- full tensors -----------------------------------------------------------------------------

    def parts(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """What this rank holds of full tensors."""
        parts = dict(tensors)
        for name, tensor in tensors.items():
            layout = self.layouts.get(parameter_of(name))
            if layout is not None and layout.shape == tuple(tensor.shape):
                parts[name] = layout.part(tensor, self.shard_rank)
        return parts

    def gathered(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Full tensors of the parts that ranks hold; on the main rank, others have no use of it."""
        return {name: self._gathered(name, tensor) for name, tensor in tensors.items()}

    def _gathered(self, name: str, tensor: Tensor) -> Tensor:
        layout = self.layouts.get(name)
        if layout is None:
            return tensor
        count = len(layout.ranges)
        shapes = [layout.part_shape(rank) for rank in range(count)]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        # Parts of one size, for the collective operation: the largest.
        padded = tensor.new_zeros(max(sizes))
        padded[: tensor.numel()] = tensor.detach().reshape(-1)
        is_first = self.shard_rank == 0
        received = [torch.empty_like(padded) for _ in range(count)] if is_first else None
        dist.gather(padded, received, group=self.shard_group, group_dst=0)
        if received is None:
            return tensor
        parts = [
            flat[:size].view(shape)
            for flat, size, shape in zip(received, sizes, shapes, strict=True)
        ]
        return layout.join(parts)

    def written_groups(self, groups: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """What this rank writes of a checkpoint."""
        return dict(groups) if self.ranks.is_main else {}

    def shard_names(self, groups: Mapping[str, Tensors]) -> list[str]:
        """The groups of a checkpoint that other ranks write."""
        return []

    @contextmanager
    def evaluated(self, weights: Mapping[str, Tensor] | None, step: int = 0) -> Iterator[None]:
        """Full weights in the model of `evaluation`, for the duration of the block.

        None are those that are trained. On other ranks than the main one nothing happens.
        """
        if weights is None or not self.ranks.is_main:
            yield
            return
        trained = {name: p.detach().clone() for name, p in self.parameters.items()}
        assign(self.parameters, weights)
        try:
            yield
        finally:
            assign(self.parameters, trained)


@torch.no_grad()
def assign(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    # In place: captured CUDA graphs read them there.
    for name, tensor in tensors.items():
        tensor.copy_(values[name])


def connect_parts(model: nn.Module, ranks: Ranks) -> None:
    """Parts that look at all rows of a batch learn that this rank computes some of them."""
    if ranks.data_size == 1:
        return
    for part in model.modules():
        if isinstance(part, BatchNorm | MixtureOfExperts | Quantizer):
            part.share = ranks


# --- sharded models -------------------------------------------------------------------------------


class Sharded(Strategy):
    """Base of strategies where no rank holds the whole model.

    The main rank has a copy for evaluation, whose weights are there only while they are needed.
    """

    def __init__(self, objective: Objective, ranks: Ranks) -> None:
        super().__init__(objective, ranks)
        self.device = objective.setup.device
        if ranks.is_main:
            # Before any tensor is cut.
            self.evaluation = evaluation_copy(objective)
        self.parameters = {}  # what refers to the full tensors would hold them in memory
        self.initial_weights = InitialWeights(objective.model, ranks, self.device)

    @property
    def shard_count(self) -> int:
        """How many ranks share one copy of the model."""
        return len(next(iter(self.layouts.values())).ranges)

    def written_groups(self, groups: Mapping[str, Tensors]) -> dict[str, Tensors]:
        if self.ranks.rank != self.shard_rank:  # another copy of the model
            return {}
        return split(groups, self.layouts, self.shard_rank, self.shard_count)

    def shard_names(self, groups: Mapping[str, Tensors]) -> list[str]:
        others = range(1, self.shard_count)
        return [shard_name(group, rank, self.shard_count) for group in groups for rank in others]

    @contextmanager
    def evaluated(self, weights: Mapping[str, Tensor] | None, step: int = 0) -> Iterator[None]:
        if weights is None:
            trained = {name: p.detach() for name, p in self.parameters.items()}
            weights = self.gathered(trained)
        if not self.ranks.is_main:
            yield
            return
        model = self.evaluation.model
        for name, parameter in model.named_parameters():
            parameter.data = weights[name].to(self.device)
        redraw(model, step)
        try:
            yield
        finally:
            for parameter in model.parameters():
                parameter.data = parameter.data.new_empty(0)


def evaluation_copy(objective: Objective) -> Objective:
    """The same objective on the same data, with a copy of its models that has no weights yet."""
    copied = copy.copy(objective)
    # What deepcopy takes for copied already: parameters, as empty ones. It adds the modules, of
    # which there is one copy for all names that refer to them.
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(
            parameter.data.new_empty(0, device=objective.setup.device), parameter.requires_grad
        )
        for parameter in objective.model.parameters()
    }
    models: dict[int, Model] = {}
    for name, value in vars(objective).items():
        if isinstance(value, Model):
            model = models.setdefault(id(value), copy.copy(value))
            if model.model is value.model:
                model.model = copy.deepcopy(value.model, memo)
            setattr(copied, name, model)
        elif isinstance(value, nn.Module):
            setattr(copied, name, copy.deepcopy(value, memo))
    return copied


def on_all_ranks(
    checkpoints: Checkpoints, ranks: Ranks, say: Callable[[str], None], until: float = math.inf
) -> Saved | None:
    """The newest checkpoint up to a step that the main rank finds, on all ranks."""
    saved = None
    with ranks.main_first() as is_main:
        if is_main:
            saved = checkpoints.newest(say, until)
    step = ranks.broadcast(None if saved is None else saved.step)
    if step is None or ranks.is_main:
        return saved
    return checkpoints.load(step)


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
