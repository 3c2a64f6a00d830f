"""Changes to finished models: packing and int8 quantization, compilation, LoRA, head pruning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.allocator import give_back
from regard.core import quantized_linear
from regard.core.attention import Attention
from regard.core.block import AnyBlock
from regard.core.head import LMHead
from regard.core.linear import Linear
from regard.core.lora import LoRA
from regard.core.stack import Stack
from regard.errors import SettingError, did_you_mean

# The projections of attention: q, k and v of one sequence, q and v where queries are keys, q of one
# sequence and k and v of another.
PROJECTIONS = ("qkv", "qv", "q", "kv")


def freeze(model: nn.Module, precision: str = "float32") -> None:
    """Packs the weights of a model on a CPU: faster, and below float32 smaller and a little less
    exact (int8, bf16). It cannot be trained or written afterwards."""
    quantized_linear.check(precision)
    merge(model)
    parts = [
        part
        for part in model.eval().modules()
        if isinstance(part, (Linear, LMHead)) and part.packed is None
    ]
    # One by one, so that little is in memory twice; first the head, for which a whole table is
    # read.
    for part in sorted(parts, key=lambda part: isinstance(part, Linear)):
        part.pack(quantized_linear.PACKED[precision])
    give_back()


@contextmanager
def compiled(model: nn.Module) -> Iterator[None]:
    """Inside, the blocks run as torch.compile makes them, one program for all blocks of a kind and
    for all lengths."""
    from torch.fx.experimental import _config as shapes

    blocks = [part for part in model.modules() if isinstance(part, AnyBlock)]
    for block in blocks:
        block.compile(dynamic=True)
    try:
        # Sources and targets that are equally long in the first batch are not in the next: that is
        # no other program.
        with shapes.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None


def lora(
    model: nn.Module,
    rank: int,
    alpha: float | None = None,
    dropout: float = 0.0,
    which: Sequence[str] = PROJECTIONS,
) -> list[str]:
    """Lets a finished model change by matrices of low rank only: all its parameters are fixed, and
    beside the linear maps of its blocks that are called `which` (see `named_modules`; "all" for
    every one) stand small ones that train. The maps of q, k and v are one matrix here and get one
    change. Gives the names of the maps that were changed; `merge` folds it in.
    """
    maps = {
        f"{place}.{name}": part
        for place, stack in model.named_modules()
        if isinstance(stack, Stack)
        for name, part in stack.named_modules()
        if isinstance(part, Linear)
    }
    known = {name.rsplit(".", 1)[-1] for name in maps}
    wrong = [word for word in which if word != "all" and word not in known | set(PROJECTIONS)]
    if wrong:
        raise SettingError(
            f"no linear map is called {wrong[0]!r}", did_you_mean(wrong[0], known | {"all"})
        )
    chosen = [name for name in maps if "all" in which or name.rsplit(".", 1)[-1] in which]
    if rank < 1 or not chosen:
        raise SettingError(
            f"rank {rank} for {len(chosen)} maps changes nothing", "give a rank of 1 or more"
        )
    model.requires_grad_(False)
    for name in chosen:
        part = maps[name]
        outputs, inputs = part.weight.shape
        part.added = LoRA(inputs, outputs, rank, alpha or 2.0 * rank, dropout).to(
            part.weight.device
        )
    return chosen


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Folds the changes of `lora` into the matrices beside which they stand: an ordinary model
    again."""
    for part in model.modules():
        if isinstance(part, Linear) and isinstance(part.added, LoRA):
            part.weight.copy_(part.weight.double() + part.added.matrix())
            part.added = None


def prune(part: Attention, heads: Tensor) -> None:
    """Leaves an attention these heads only (Michel et al. 2019): the projections of the others are
    gone, not zero."""
    merge(part)
    part.keep(heads)
