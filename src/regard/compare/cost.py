"""What one update costs, counted and measured: multiplications, seconds, bytes, and how they grow with the length.

Multiplications and additions are counted while the model runs on its plain path (no fused attention, no oneDNN), so that
every matrix product is seen; what is computed is the same. Bytes are the weights, gradients and the two averages of Adam,
and what backward must remember of a batch.
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

from regard.model import EncoderDecoder
from regard.training.objectives.loss import cross_entropy
from regard.training.objectives.objective import Objective

BATCHES = 6  # of the first ones, for what differs between batches
LONGEST = 256  # of the sentences by whose cost growth is told


@dataclass(frozen=True)
class Cost:
    """Of one update: FLOPs, seconds, bytes. `growth` and `time_growth` are exponents of FLOPs and seconds in the length of a
    sentence, from an eighth of LONGEST (or of the longest that the recipe allows) on."""

    flops: float
    seconds: float
    memory: int
    growth: float
    time_growth: float


def cost(task: Objective, vocabulary: int, longest: int, accumulate: int = 1) -> Cost:
    """Of updates of a task whose model is an encoder–decoder."""
    model = task.model
    assert isinstance(model, EncoderDecoder)
    device = next(model.parameters()).device
    batches = [batch.to(device).tensors for _, batch in islice(task.batches(0, 0), BATCHES)]
    model.train()
    flops = statistics.mean(_flops(task, batch) for batch in batches) * accumulate
    seconds = statistics.median(_seconds(task, batch) for batch in batches) * accumulate
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    memory = 4 * weights + max(_remembered(task, batch) for batch in batches)
    plain, most = _Plain(model), max(8, min(LONGEST, longest))
    lengths = [most // 8, most // 4, most // 2, most]
    sentences = [_sentence(n, vocabulary, device) for n in lengths]
    growth = _exponent(lengths, [_flops(plain, one) for one in sentences])
    time_growth = _exponent(
        lengths, [min(_seconds(plain, one) for _ in range(2)) for one in sentences]
    )
    model.zero_grad(set_to_none=True)
    return Cost(flops, seconds, memory, growth, time_growth)


class _Plain:
    """The loss of a model by itself, whatever its task adds."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, _ = self.model(tensors["source"], tensors["target"])
        return cross_entropy(self.model.head(hidden), tensors["labels"])


def _sentence(length: int, vocabulary: int, device: torch.device) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(length)
    tokens = torch.randint(0, vocabulary, (3, 1, length), generator=chance).to(device)
    return dict(zip(("source", "target", "labels"), tokens.unbind(), strict=True))


def _flops(task: Objective | _Plain, batch: Mapping[str, Tensor]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of a setting that is put back as it was
        plain = torch.backends.mkldnn.flags(enabled=False)
        with sdpa_kernel(SDPBackend.MATH), plain, FlopCounterMode(display=False) as seen:
            task.loss(batch)[0].backward()
    return float(seen.get_total_flops())


def _seconds(task: Objective | _Plain, batch: Mapping[str, Tensor]) -> float:
    began = time.perf_counter()
    task.loss(batch)[0].backward()
    if next(task.model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _remembered(task: Objective, batch: Mapping[str, Tensor]) -> int:
    """Bytes that backward needs of forward, weights left out; what several steps share counts once."""
    own = {p.untyped_storage().data_ptr() for p in task.model.parameters()}
    seen: dict[int, int] = {}
    kept = []  # as long as all of it is held, no place in memory stands for two tensors

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept.append(tensor)
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        task.loss(batch)
    return sum(seen.values())


def _exponent(lengths: list[int], values: list[float]) -> float:
    """The slope of the logarithms, by least squares."""
    x, y = [math.log(n) for n in lengths], [math.log(value) for value in values]
    middle, centre = statistics.mean(x), statistics.mean(y)
    return sum((a - middle) * (b - centre) for a, b in zip(x, y, strict=True)) / sum(
        (a - middle) ** 2 for a in x
    )
