"""Changes to trained models: packing and int8 quantization, compilation, LoRA, head pruning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.core import quantized_linear
from regard.core.attention import Attention
from regard.core.block import AnyBlock
from regard.core.heads.head import LMHead
from regard.core.linear import Linear, LoRA
from regard.core.stack import Stack
from regard.system.errors import ModelError, SettingError, did_you_mean
from regard.system.memory import give_back

# Names of the projections of attention: `qkv` of self-attention, `qv` where keys are the queries
# (Reformer), `q` and `kv` of cross-attention.
PROJECTIONS = ("qkv", "qv", "q", "kv")

# ------------------------------------------------------------------ inference on a CPU


def pack_weights(model: nn.Module, precision: str = "float32") -> None:
    """Packs the weights of a model for inference on a CPU.

    Below float32 (bf16, int8) they are smaller and a little less exact. A packed model can neither
    be trained nor written.
    """
    quantized_linear.check(precision)
    merge(model)  # packed weights cannot take LoRA's product in
    parts = [part for part in _matrices(model.eval()) if part.packed is None]
    # One by one, so that little is in memory twice. False sorts before True: heads come first,
    # because each reads a whole embedding table.
    for part in sorted(parts, key=lambda part: isinstance(part, Linear)):
        part.pack(quantized_linear.PACKED[precision])
    give_back()  # the heap is full of holes where the float32 weights were


def packed_bytes(model: nn.Module, precision: str = "float32") -> int:
    """The memory that the weights of a model take once they are packed; of a model without memory
    too, as an outline is."""
    width = {"float32": 4, "bf16": 2, "int8": 1}[precision]
    total = 0
    stays: dict[int, Tensor] = {}
    waiting: list[nn.Module] = [model]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Linear | LMHead):
            weight = part.weight if isinstance(part, Linear) else part.table.weight
            bias = 0 if part.bias is None else len(weight)
            total += weight.numel() * width + bias * min(4, 2 * width)
        else:  # a table that is embedded too stays beside the head's
            stays |= {id(one): one for one in part.parameters(recurse=False)}
            waiting += part.children()
    return total + sum(one.nbytes for one in stays.values())


def is_packed(model: nn.Module) -> bool:
    """Whether weights of a model are packed."""
    return any(part.packed is not None for part in _matrices(model))


def require_precision(model: nn.Module, precision: str) -> None:
    """Refuses another precision than that in which weights of a model are packed already."""
    quantized_linear.check(precision)
    layout = quantized_linear.PACKED[precision]
    packed = [part.packed for part in _matrices(model) if part.packed is not None]
    if not all(isinstance(weight, layout) for weight in packed):
        raise ModelError(
            "the weights of this model are packed in another precision", "load the model again"
        )


def _matrices(model: nn.Module) -> list[Linear | LMHead]:
    """The parts of a model whose weights can be packed."""
    return [part for part in model.modules() if isinstance(part, (Linear, LMHead))]


# ------------------------------------------------------------------ compilation


@contextmanager
def compiled(model: nn.Module) -> Iterator[None]:
    """Context in which the blocks are compiled (torch.compile).

    All blocks of a kind, and all lengths, share one compiled program.
    """
    from torch.fx.experimental import _config as shapes

    blocks = [part for part in model.modules() if isinstance(part, AnyBlock)]
    for block in blocks:
        block.compile(dynamic=True)
    try:
        # Duck shapes give equal sizes one symbol. A source and a target that happen to be equally
        # long in the first batch would then cause a recompilation in the next.
        with shapes.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None  # PyTorch has no public inverse of Module.compile


# ------------------------------------------------------------------ LoRA


def lora(
    model: nn.Module,
    rank: int,
    alpha: float | None = None,
    dropout: float = 0.0,
    which: Sequence[str] = PROJECTIONS,
) -> list[str]:
    """Low-rank adaptation (LoRA, Hu et al. 2021): freezes the model and adds trainable matrices.

    They are added to the linear maps of the blocks whose last name is in `which` (see
    `named_modules`), or to all of them for "all". Returns the full names of these maps; `merge`
    folds the matrices in. The projections of q, k and v are one matrix here, with one adapter.
    """
    # Full name → linear map, of the stacks only: embeddings and heads stay as they are.
    maps = {
        f"{prefix}.{name}": part
        for prefix, stack in model.named_modules()
        if isinstance(stack, Stack)
        for name, part in stack.named_modules()
        if isinstance(part, Linear)
    }
    map_names = {name.rsplit(".", 1)[-1] for name in maps}
    # The default names all projections, of which no model has every one.
    accepted = map_names | set(PROJECTIONS) | {"all"}
    unknown = [word for word in which if word not in accepted]
    if unknown:
        raise SettingError(
            f"no linear map is called {unknown[0]!r}",
            did_you_mean(unknown[0], map_names | {"all"}),
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
        # Unless alpha is set, the product of the two matrices counts alpha / rank = 2 times.
        adapter = LoRA(inputs, outputs, rank, alpha or 2.0 * rank, dropout)
        part.added = adapter.to(part.weight.device)
    return chosen


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Merges LoRA adapters into the weights that they change: an ordinary model again."""
    for part in model.modules():
        if isinstance(part, Linear) and isinstance(part.added, LoRA):
            # In float64, so that the sum is rounded once.
            part.weight.copy_(part.weight.double() + part.added.matrix())
            part.added = None


# ------------------------------------------------------------------ head pruning


def prune(part: Attention, heads: Tensor) -> None:
    """Head pruning (Michel et al. 2019): the attention keeps these heads only.

    The projections of the other heads are removed, not set to zero.
    """
    merge(part)  # adapters have rows for all heads
    part.keep(heads)
