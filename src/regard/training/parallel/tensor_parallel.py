"""Tensor parallelism (Megatron-LM, Shoeybi et al. 2019): each rank holds some heads of every
attention and as much of every feed-forward network.

The first linear map of a pair is cut by outputs (columns, in the paper's notation), the second by
inputs (rows), so that ranks meet once: their outputs are summed, and so are the gradients of their
inputs. Both are redistributions of a DTensor. Embeddings, norms and LM heads are on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, compress

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from regard.core.attention import Attention
from regard.core.feedforward import FeedForward, GatedFeedForward
from regard.core.linear import Linear, dimensions
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.positions.relative_position import (
    Alibi,
    Disentangled,
    DisentangledScores,
    RelativeScores,
    ShortestPathBias,
    T5Bias,
)
from regard.core.projection import CrossProjection, NormedProjection, SelfProjection
from regard.system.checkpoint_shards import Layout, Ranges
from regard.system.errors import SettingError
from regard.training.objectives.objective import Objective
from regard.training.parallel.ranks import Ranks
from regard.training.parallel.strategy import Sharded, connect_parts, make_ddp


class TensorParallel(Sharded):
    """Heads and feed-forward networks shared by the ranks of a group; groups are data parallel."""

    def __init__(self, objective: Objective, ranks: Ranks) -> None:
        super().__init__(objective, ranks)
        assert ranks.tensor_group is not None, "several ranks share a model"
        self.shard_rank = ranks.tensor_rank
        self.shard_group = ranks.tensor_group
        model = objective.model
        mesh = DeviceMesh.from_group(ranks.tensor_group, self.device.type)
        self.layouts = parallelize(model, mesh, ranks.tensor_rank)
        self.initial_weights.materialize(model, self.layouts, ranks.tensor_rank)
        connect_parts(model, ranks)
        self.parameters = dict(model.named_parameters())
        if ranks.data_size > 1:
            self.ddp = make_ddp(objective, ranks)
            self.loss = self.ddp


def parallelize(model: nn.Module, mesh: DeviceMesh, rank: int) -> dict[str, Layout]:
    """Cuts a model in place to the part of one rank; returns where the cut parameters belong."""
    cut = _Cut(mesh, rank)
    for name, part in list(model.named_modules()):
        if isinstance(part, Attention):
            cut.attention(name, part)
        elif isinstance(part, FeedForward | GatedFeedForward):
            cut.feed_forward(name, part)
        elif isinstance(part, T5Bias | Alibi):
            cut.score_bias(name, part)
        elif isinstance(part, Disentangled | ShortestPathBias):
            raise _refused(f"{type(part).__name__} has scores that are not cut by heads")
    if not cut.layouts:
        raise _refused("this model has no attention heads")
    return cut.layouts


def _refused(reason: str) -> SettingError:
    return SettingError(
        f"tensor parallelism is not possible here: {reason}",
        "choose --strategy fsdp, which cuts every tensor, or another tensor_parallel_degree",
    )


class _Cut:
    """Cuts the parts of a model, and notes the layout of each parameter it cuts."""

    def __init__(self, mesh: DeviceMesh, rank: int) -> None:
        self.mesh = mesh
        self.rank = rank
        self.ranks = mesh.size()
        self.layouts: dict[str, Layout] = {}

    def attention(self, name: str, part: Attention) -> None:
        """The query heads of a rank, and the key heads that they attend with."""
        project = part.project
        softmax = isinstance(part.mixer, SoftmaxAttention) and part.mixer.sinks is None
        # One matrix for several of q, k and v, norms of them, or scores of positions are not cut.
        is_plain = type(part) is Attention and not isinstance(project, NormedProjection)
        has_scores = isinstance(part.position, RelativeScores | DisentangledScores)
        is_cut = softmax and is_plain and not has_scores
        if not is_cut or not isinstance(project, SelfProjection | CrossProjection):
            raise _refused(f"{name} is not a plain softmax attention")
        heads = self._share(f"{name}: attention heads", project.heads)
        groups = self._share(f"{name}: key heads", project.groups)
        q = [dimensions(each, project.d_k) for each in heads]
        k = [dimensions(each, project.d_k) for each in groups]
        v = [dimensions(each, project.d_v) for each in groups]
        if isinstance(project, SelfProjection):
            self._columns(f"{name}.project.qkv", project.qkv, [q, k, v])
        else:
            self._columns(f"{name}.project.q", project.q, [q])
            self._columns(f"{name}.project.kv", project.kv, [k, v])
        inputs = [dimensions(each, project.d_v) for each in heads]
        self._rows(f"{name}.output", part.output, inputs)
        project.heads //= self.ranks
        project.groups //= self.ranks

    def feed_forward(self, name: str, part: FeedForward | GatedFeedForward) -> None:
        width = part.outer.weight.shape[1]
        units = self._share(f"{name}: units", width)
        # A gated one has two maps of the same units in one matrix.
        self._columns(f"{name}.inner", part.inner, [units for _ in part.inner.parts])
        self._rows(f"{name}.outer", part.outer, units)

    def score_bias(self, name: str, part: T5Bias | Alibi) -> None:
        """A bias of each head, one for all layers."""
        if isinstance(part, Alibi):
            part.slopes = part.slopes.chunk(self.ranks)[self.rank].clone()
            return
        heads = self._share(f"{name}: heads", part.table.shape[1])
        layout = _layout(part.table.shape, 1, [heads])
        self.layouts[f"{name}.table"] = layout
        selected = layout.part(part.table.detach(), self.rank)
        part.table = nn.Parameter(selected, part.table.requires_grad)

    def _share(self, what: str, count: int) -> list[Tensor]:
        """The numbers 0 … count − 1 in equal parts, one for each rank."""
        if count % self.ranks:
            raise _refused(f"{what} ({count}) cannot be shared by {self.ranks} ranks")
        return list(torch.arange(count).chunk(self.ranks))

    def _columns(self, name: str, linear: Linear, outputs: Sequence[list[Tensor]]) -> None:
        """`outputs` are those of each part of the map, by rank."""
        self._check(name, linear)
        rows = _shifted(linear.parts, outputs)
        self.layouts[f"{name}.weight"] = _layout(linear.weight.shape, 0, rows)
        if linear.bias is not None:
            # The vector holds the parts that have a bias, and no others.
            widths = list(compress(linear.parts, linear.biased))
            biases = _shifted(widths, list(compress(outputs, linear.biased)))
            self.layouts[f"{name}.bias"] = _layout(linear.bias.shape, 0, biases)
        linear.keep_outputs([part[self.rank] for part in outputs])
        ColumnParallelLinear.convert(linear, self.mesh)

    def _rows(self, name: str, linear: Linear, inputs: list[Tensor]) -> None:
        self._check(name, linear)
        self.layouts[f"{name}.weight"] = _layout(linear.weight.shape, 1, [inputs])
        linear.keep_inputs(inputs[self.rank])
        RowParallelLinear.convert(linear, self.mesh)

    def _check(self, name: str, linear: Linear) -> None:
        if linear.added is not None:
            raise _refused(f"{name} has a LoRA adapter")


def _shifted(widths: Sequence[int], parts: Sequence[list[Tensor]]) -> list[list[Tensor]]:
    """The indices of parts that follow each other, each counted from its own first."""
    starts = accumulate(widths[:-1], initial=0)
    return [[start + index for index in part] for start, part in zip(starts, parts, strict=True)]


def _layout(shape: torch.Size, dimension: int, parts: Sequence[Sequence[Tensor]]) -> Layout:
    """Where the indices of each part lie, by rank: they are consecutive."""
    ranks = len(parts[0])
    ranges: list[Ranges] = [
        tuple((int(part[rank][0]), len(part[rank])) for part in parts) for rank in range(ranks)
    ]
    return Layout(tuple(shape), dimension, tuple(ranges))


# --- linear maps of one rank ----------------------------------------------------------------------


class _ParallelLinear(Linear):
    """A map of which this rank has a part."""

    mesh: DeviceMesh

    @classmethod
    def convert(cls, linear: Linear, mesh: DeviceMesh) -> None:
        # As `fully_shard` does it: the module stays the same object, with the same names.
        linear.__class__ = cls
        assert isinstance(linear, cls)
        linear.mesh = mesh


class ColumnParallelLinear(_ParallelLinear):
    """All inputs, some outputs: the gradient of the input is the sum over ranks."""

    def forward(self, x: Tensor) -> Tensor:
        replicated = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return super().forward(replicated.to_local(grad_placements=[Partial()]))


class RowParallelLinear(_ParallelLinear):
    """Some inputs, all outputs: a sum over ranks, to which the bias is added once."""

    def forward(self, x: Tensor) -> Tensor:
        partial = nn.functional.linear(x, self.weight)
        summed = DTensor.from_local(partial, self.mesh, [Partial()], run_check=False)
        y: Tensor = summed.redistribute(placements=[Replicate()]).to_local()
        bias = self.full_bias()
        return y if bias is None else y + bias
