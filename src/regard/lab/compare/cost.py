"""The cost of one optimizer step: FLOPs, seconds, bytes, and how they grow with the length.

Bytes are those of weights, gradients and the two moments of Adam, and of the activations that
backward needs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from regard.lab.measure.instruments import count_flops, fastest, growth_exponent, seconds
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
    steps = [_forward_and_backward(objective, batch) for batch in batches]
    flops = statistics.mean(map(count_flops, steps)) * accumulate
    time = statistics.median(map(seconds, steps)) * accumulate
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    activations = max(activation_bytes(objective, batch) for batch in batches)
    memory = 4 * weights + activations  # weights, gradients, both moments of Adam
    growth = None
    time_growth = None
    if longest is not None:
        growth, time_growth = _growth(objective, batches[0], max(8, min(LONGEST, longest)))
    model.zero_grad(set_to_none=True)  # backward has left gradients
    return Cost(flops, time, memory, growth, time_growth)


# --- growth with the length -----------------------------------------------------------------------


def _growth(objective: Objective, batch: Mapping[str, Tensor], longest: int) -> tuple[float, float]:
    """The exponents of FLOPs and of seconds in the length."""
    # What is carried from batch to batch has as many rows as a batch.
    rows = None if isinstance(objective, CarriesState) else 1
    lengths = [longest // 8, longest // 4, longest // 2, longest]
    steps = [_forward_and_backward(objective, with_length(batch, n, rows)) for n in lengths]
    flops = list(map(count_flops, steps))
    # The faster of two runs: the first of a length also allocates memory.
    times = [fastest(step, 2) for step in steps]
    return growth_exponent(lengths, flops), growth_exponent(lengths, times)


def _forward_and_backward(
    objective: Objective, batch: Mapping[str, Tensor]
) -> Callable[[], object]:
    return lambda: objective.loss(batch)[0].backward()


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
