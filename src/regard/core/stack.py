"""N blocks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core import fused_step
from regard.core.block import Block
from regard.core.cache import LayerCache, SegmentMemory
from regard.core.chunked_attention import ChunkedAttention
from regard.core.conv_layer import ConvLayer
from regard.core.dropout import Dropout
from regard.core.mask import AttentionMask, BeamMask, MaskPattern, listed
from regard.core.mask_patterns import GlobalTokenMask, ShiftedMask
from regard.core.norm import Norm
from regard.core.position import Disentangled, RepeatedBlockBias, Rope, StackPosition
from regard.core.probe import HasHeads, Probe
from regard.core.reversible import ReversibleResidual, doubled, run
from regard.core.softmax_attention import SoftmaxAttention
from regard.core.universal import Universal


class Stack(nn.Module):
    """`pattern` is who may look at whom inside, `position` what the scores know of places.

    `beside` runs with the first block. One block may be given for all `layers` (ALBERT, Universal). `recompute` trades a
    second forward for the memory of activations.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        layers: int,
        final_norm: Norm | None,
        pattern: MaskPattern,
        position: StackPosition | None = None,
        *,
        beside: ConvLayer | None = None,
        dropout: float = 0.0,
        memory: int | None = None,
        universal: Universal | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.layers = layers
        self.final_norm = final_norm
        self.pattern = pattern
        self.position = position
        self.dropout = Dropout(dropout)
        self.beside = beside
        self.memory = memory
        self.universal = universal
        self.recompute = False

    def attention_mask(
        self,
        start: int | Tensor,
        length: int,
        batch: int,
        padding: MaskPattern,
        padding_mask: Tensor | None = None,
        global_tokens: Tensor | None = None,
        end: int | None = None,
        descent: Tensor | None = None,
    ) -> AttentionMask:
        """What `length` places from `start` on see of all places up to them, for the layers of this stack: of those that
        are remembered, which are all unless no place looks back so far. Rows begin where they are `real` [B, S];
        `global_tokens` [B, S] are seen by all, and see all. A `start` that only the device knows is one place among those up
        to `end`. With a `descent` [B, W, L], the beams of a sentence are queries of one row, at the same place."""
        device, last = self.device, None
        keys: Tensor | int
        if isinstance(start, Tensor):
            assert end is not None
            keys, queries, begin = end, start, None
            last = (start, 1 if descent is None else descent.shape[1])
        else:
            end, max_lookback, begin = start + length, self.max_lookback, start
            keys = torch.arange(
                0 if max_lookback is None else max(0, start - max_lookback), end, device=device
            )
            queries = keys if start == 0 else keys[-length:]
        if descent is not None:
            width = descent.shape[1]
            keys, queries = listed(keys, device).repeat_interleave(width), queries.expand(width)
            padding = padding & BeamMask(descent)
        pattern = self.pattern.over(end, device)
        if padding_mask is not None and pattern.anchored:
            pattern = ShiftedMask(pattern, padding_mask.long().argmax(dim=1))
        if global_tokens is not None:
            pattern = pattern | GlobalTokenMask(global_tokens, keys=self.own_globals)
        pattern = pattern & padding
        angles = relative = None
        term: Callable[[Tensor, Tensor], Tensor] | None = None
        if isinstance(self.position, Rope):
            angles = self.position.angles(queries)
        elif isinstance(self.position, Disentangled):
            relative = self.position(queries, listed(keys, device))
        elif isinstance(self.position, RepeatedBlockBias):
            term = self.position.over(end)
        else:
            term = self.position
        everywhere = (
            None if global_tokens is None or not self.own_globals else (global_tokens, padding)
        )
        return AttentionMask(
            pattern, queries, keys, batch, None, angles, relative, term=term, start=begin, everywhere=everywhere,
            never_fully_masked=begin is None, places=_counted(queries, padding_mask), last=last,
        )  # fmt: skip

    @property
    def device(self) -> torch.device:
        """Asked at every step; norms stay parameters whatever is frozen, and are found at once."""
        return next(self.blocks[0].residual.parameters()).device  # type: ignore[union-attr]

    @property
    def max_lookback(self) -> int | None:
        """How many places before those that come are needed; None: all."""
        return min(
            (far for far in (self.pattern.max_lookback, self.memory) if far is not None),
            default=None,
        )

    @property
    def regrouped(self) -> bool:
        """Whether a text that grows is cut into chunks anew, so that nothing of its past can be kept."""
        return any(
            isinstance(cast(Block, block).attention.mixer, ChunkedAttention)
            for block in self.blocks
        )

    @property
    def own_globals(self) -> bool:
        """Whether global tokens look by projections of their own."""
        return self.blocks[0].attention.everywhere is not None  # type: ignore[union-attr]

    def forward(
        self,
        x: Tensor,
        attention_mask: AttentionMask,
        memory: Tensor | Sequence[Tensor] | None = None,
        memory_mask: AttentionMask | None = None,
        states: Sequence[LayerCache] | None = None,
        probe: Probe | None = None,
        losses: dict[str, Tensor] | None = None,
        each: list[Tensor] | None = None,
    ) -> Tensor:
        """A `memory` is one for all layers, or one each. `losses` takes up what parts want minimised besides, by name;
        `each` what each layer makes."""
        self._settle(attention_mask, memory_mask)
        if (
            states is not None
            and probe is None
            and each is None
            and fused_step.fits(self, x, attention_mask, states)
        ):
            return fused_step.step(self, x, attention_mask, memory_mask, states)
        streams = (
            self.blocks[0].residual
            if isinstance(self.blocks[0].residual, ReversibleResidual)
            else None
        )
        x = x if streams is not None else _narrow(x)
        embedded = x = probe.through("embedded", x) if probe else x
        if streams is not None:
            x = doubled(x)
            if self.training and probe is None and states is None and each is None:
                return self.finish(
                    streams.merged(self._reversibly(x, attention_mask, memory, memory_mask))
                )
        halting = self.universal.begin() if self.universal is not None else None
        for i in range(self.layers):
            block = self.blocks[i % len(self.blocks)]
            before = x = (
                x if self.universal is None else self.universal.tell(x, attention_mask.places, i)
            )
            look = probe.scope(str(i)) if probe else None
            seen = _of(memory, i)
            if self.recompute and self.training and states is None:
                x = checkpoint(
                    block,
                    x,
                    attention_mask,
                    seen,
                    memory_mask,
                    None,
                    look,
                    losses,
                    use_reentrant=False,
                )
            else:
                x = block(
                    x,
                    attention_mask,
                    seen,
                    memory_mask,
                    states[i] if states else None,
                    look,
                    losses,
                )
            if halting is not None:
                halting.add(before, x, last=i == self.layers - 1)
            if i == 0 and self.beside is not None:
                x = self.beside(embedded, x, attention_mask)
            x = look.through("residual", x) if look else x
            if each is not None:
                each.append(x)
        if halting is not None:
            assert halting.mean is not None
            x = halting.mean
            if losses is not None:
                losses["ponder"] = halting.ponder()
        x = self.finish(x if streams is None else streams.merged(x))
        return probe.through("output", x) if probe else x

    def _reversibly(
        self,
        x: Tensor,
        attention_mask: AttentionMask,
        memory: Tensor | Sequence[Tensor] | None,
        memory_mask: AttentionMask | None,
    ) -> Tensor:
        steps = []
        for i in range(self.layers):
            block = cast(Block, self.blocks[i % len(self.blocks)])
            assert isinstance(block.residual, ReversibleResidual)
            steps += block.residual.steps(
                block.sublayers(attention_mask, _of(memory, i), memory_mask)
            )
        outside = (
            () if memory is None else (memory,) if isinstance(memory, Tensor) else tuple(memory)
        )
        return run(x, steps, (*self.blocks.parameters(), *outside))

    def attentions(self) -> dict[str, HasHeads]:
        """Every application of an attention, by its name inside the stack."""
        found: dict[str, HasHeads] = {}
        for i in range(self.layers):
            block = cast(Block, self.blocks[i % len(self.blocks)])
            found[f"{i}.self"] = block.attention
            if block.cross is not None:
                found[f"{i}.cross"] = block.cross
        return found

    def _settle(self, attention_mask: AttentionMask, memory_mask: AttentionMask | None) -> None:
        block = self.blocks[0]
        for attention, seen in ((block.attention, attention_mask), (block.cross, memory_mask)):
            if (
                attention is not None
                and seen is not None
                and isinstance(attention.mixer, SoftmaxAttention)
            ):  # type: ignore[union-attr]
                attention.mixer.settle(seen)  # type: ignore[union-attr]

    def finish(self, x: Tensor) -> Tensor:
        """What comes after the last block."""
        return self.dropout(self.final_norm(x) if self.final_norm is not None else x)

    def start(
        self,
        rows: int,
        capacity: int,
        memory: Tensor | Sequence[Tensor] | None = None,
        memory_mask: AttentionMask | None = None,
    ) -> list[LayerCache]:
        """An empty state for each application of a block; what of the memory is real is said again at each step."""
        applied = [self.blocks[i % len(self.blocks)] for i in range(self.layers)]
        max_lookback, like = self.max_lookback, next(self.parameters())
        return [
            block.start(rows, capacity, _of(memory, i), max_lookback, like)
            for i, block in enumerate(applied)
        ]  # type: ignore[operator]

    def remember(self, rows: int, width: int) -> list[LayerCache]:
        """An empty memory of each layer for `rows` texts that are read in segments, each of `width` numbers a place."""
        assert self.memory is not None, "this stack carries nothing on"
        like = next(self.parameters())
        x = like.new_zeros(rows, self.memory, width)
        nothing = torch.zeros(rows, self.memory, dtype=torch.bool, device=like.device)
        return [LayerCache(SegmentMemory(x, nothing)) for _ in range(self.layers)]


def _narrow(x: Tensor) -> Tensor:
    """In mixed precision the residual sum is bf16 like its summands: what goes to and from memory is half as much. (In fp16
    it could grow out of range, and going back through reversible blocks needs all digits.)"""
    kind = x.device.type
    narrow = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return x.to(torch.bfloat16) if narrow and x.dtype == torch.float32 else x


def _of(memory: Tensor | Sequence[Tensor] | None, layer: int) -> Tensor | None:
    return memory if memory is None or isinstance(memory, Tensor) else memory[layer]


def _counted(places: Tensor, padding_mask: Tensor | None) -> Tensor:
    """[T], or [B, T] counted from the first real place of each row."""
    return (
        places
        if padding_mask is None
        else (places - padding_mask.long().argmax(dim=1, keepdim=True)).clamp_min(0)
    )
