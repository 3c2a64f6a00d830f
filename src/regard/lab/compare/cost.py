"""The cost of one optimizer step: FLOPs, seconds, bytes, and how they grow with the length.

FLOPs are counted while the model runs without fused attention and oneDNN, so that every matrix
product is seen; what is computed is the same. Bytes are those of weights, gradients and the two
moments of Adam, and of the activations that backward needs.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.training.objectives.objective import CarriesState, Objective

BATCHES = 6  # the first ones, over which costs are averaged
LONGEST = 256  # the longest input by which growth is measured


@dataclass(frozen=True)
class Cost:
    """The cost of one optimizer step.

    `growth` and `time_growth` are the exponents with which FLOPs and seconds grow with the
    length of a text, from an eighth of LONGEST (or of the recipe's longest) on; None of other data.
    """

    flops: float
    seconds: float
    memory: int  # bytes
    growth: float | None
    time_growth: float | None


def step_cost(objective: Objective, longest: int | None, accumulate: int = 1) -> Cost:
    """Measures the cost of a step.

    `longest` is the greatest length of a text, if it is one, `accumulate` the number of
    micro-batches of a step (gradient accumulation).
    """
    model = objective.model
    device = next(model.parameters()).device
    # The first batches of epoch 0, as training sees them.
    batches = [batch.to(device).tensors for _, batch in islice(objective.batches(0, 0), BATCHES)]
    model.train()
    flops = statistics.mean(count_flops(objective, batch) for batch in batches) * accumulate
    seconds = statistics.median(_seconds(objective, batch) for batch in batches) * accumulate
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    activations = max(activation_bytes(objective, batch) for batch in batches)
    memory = 4 * weights + activations  # weights, gradients, both moments of Adam
    growth = None
    time_growth = None
    if longest is not None:
        growth, time_growth = _growth(objective, batches[0], max(8, min(LONGEST, longest)))
    model.zero_grad(set_to_none=True)  # backward has left gradients
    return Cost(flops, seconds, memory, growth, time_growth)


# --- growth with the length -----------------------------------------------------------------------


def _growth(objective: Objective, batch: Mapping[str, Tensor], longest: int) -> tuple[float, float]:
    """The exponents of FLOPs and of seconds in the length."""
    # What is carried from batch to batch has as many rows as a batch.
    rows = None if isinstance(objective, CarriesState) else 1
    lengths = [longest // 8, longest // 4, longest // 2, longest]
    inputs = [with_length(batch, length, rows) for length in lengths]
    flops = [count_flops(objective, one) for one in inputs]
    # The faster of two runs: the first of a length also allocates memory.
    seconds = [min(_seconds(objective, one) for _ in range(2)) for one in inputs]
    return growth_exponent(lengths, flops), growth_exponent(lengths, seconds)


def with_length(
    batch: Mapping[str, Tensor], length: int, rows: int | None = None
) -> dict[str, Tensor]:
    """The first rows of a batch, repeated or cut along its positions to a length."""
    tensors = {}
    # An image, [B, C, H, W], has one size, and so has what stands next to it, of each patch.
    has_images = any(tensor.ndim == 4 for tensor in batch.values())
    for name, tensor in batch.items():
        if tensor.ndim >= 1:
            tensor = tensor[:rows]
        # Labels of whole texts, [B, 1], have no positions.
        if not has_images and tensor.ndim >= 2 and tensor.shape[1] > 1:
            positions = torch.arange(length, device=tensor.device) % tensor.shape[1]
            tensor = tensor[:, positions]
        tensors[name] = tensor
    return tensors


def growth_exponent(lengths: list[int], values: list[float]) -> float:
    """The exponent b of values ~ lengths^b: the least-squares slope of the logarithms."""
    x = [math.log(length) for length in lengths]
    y = [math.log(value) for value in values]
    mean_x = statistics.mean(x)
    mean_y = statistics.mean(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


# --- measurements ---------------------------------------------------------------------------------


def count_flops(objective: Objective, batch: Mapping[str, Tensor]) -> float:
    """The floating-point operations of forward and backward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of a setting that is put back as it was
        no_onednn = torch.backends.mkldnn.flags(enabled=False)
        counter = FlopCounterMode(display=False)
        # Only the total is asked for. The tracker of modules fails in reversible blocks, whose
        # inputs have no gradient function while they run.
        counter.mod_tracker = _NoModules()  # type: ignore[assignment]
        with sdpa_kernel(SDPBackend.MATH), no_onednn, counter:
            loss, _ = objective.loss(batch)
            loss.backward()
    return float(counter.get_total_flops())


class _NoModules:
    """Stands in for the tracker that says which module an operation belongs to."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def _seconds(objective: Objective, batch: Mapping[str, Tensor]) -> float:
    """The time of forward and backward."""
    start = time.perf_counter()
    loss, _ = objective.loss(batch)
    loss.backward()
    if next(objective.model.parameters()).is_cuda:
        torch.cuda.synchronize()  # kernels run after their launch
    return time.perf_counter() - start


def activation_bytes(objective: Objective, batch: Mapping[str, Tensor]) -> int:
    """The bytes that forward saves for backward, without weights; shared storage counts once."""
    weights = {p.untyped_storage().data_ptr() for p in objective.model.parameters()}
    sizes: dict[int, int] = {}  # bytes by address
    saved = []  # as long as all tensors live, no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        objective.loss(batch)
    return sum(sizes.values())
