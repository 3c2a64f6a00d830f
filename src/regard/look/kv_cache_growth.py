"""The growth of the KV cache while a model decodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.core.caches.kv_cache import KVCache, LayerCache
from regard.core.finite_outputs import require_finite
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.forward import evaluation_mode
from regard.look.inspectable import Input, Inspectable, decoder_start, read_input
from regard.look.result import AnalysisResult
from regard.look.views import require_view
from regard.system.arguments import whole_number
from regard.wirings.generative import Generative


@dataclass(frozen=True)
class KVCacheGrowth(AnalysisResult):
    """The bytes of the KV cache, over all layers.

    `used` counts self-attention's part after each step; `source` is cross-attention's, which does
    not grow; `reserved` are the buffers for as many steps as were asked for.
    """

    tokens: tuple[int, ...]
    used: tuple[int, ...]
    source: int
    reserved: int
    parts: dict[str, int] = field(default_factory=dict)  # bytes of each layer at the end

    note = (
        "Keys and values of one sequence. Beam search stores them once for each hypothesis, except "
        "those of the source, which all hypotheses share."
    )
    numbers = "used"

    @property
    def title(self) -> str:
        tokens = max(1, self.tokens[-1] - self.tokens[0])
        per_token = (self.used[-1] - self.used[0]) / tokens
        return f"KV cache: {per_token:,.0f} bytes per token, {self.source:,} bytes for the source"

    def scene(self) -> drawing.Scene:
        values = [float(value) for value in self.used]
        names = [str(count) for count in self.tokens]
        labels = [f"{value:,} bytes" for value in self.used]
        return drawing.bars(values, names, title=self.title, labels=labels)

    def table(self) -> list[list[str]]:
        rows = [["tokens", "bytes", ""]]
        for count, value in zip(self.tokens, self.used, strict=True):
            rows.append([str(count), f"{value:,}", terminal.bar(value, self.used[-1])])
        return rows


def cache(model: Inspectable, text: Input, *, length: int = 16) -> KVCacheGrowth:
    """The growth of the KV cache over the first `length` tokens of a greedy output."""
    core = model.model
    whole_number("length", length, least=1)
    require_view(model, "cache")
    assert isinstance(core, Generative), "others were refused"
    reading = read_input(model, text)
    inputs = reading.inputs
    with evaluation_mode(core):
        if core.reads_target:
            prompt = 0
            last = torch.tensor([decoder_start(reading.special_tokens)], device=model.device)
        else:
            # All of the prompt but its last token is in the cache before the first step.
            prompt = inputs.shape[1]
            last = inputs[:, -1:]
        left = core.positions_left(prompt or last.shape[1])
        if left is not None:
            length = max(1, min(length, left))
        state = core.start(core.encode(inputs), capacity=length)
        tokens: list[int] = []
        used: list[int] = []
        for _ in range(length):
            # A prompt of several start tokens fills more than one slot at the first step.
            if state.position + last.shape[1] > length + prompt:
                break
            # Greedy: the most probable token is fed back.
            logits = require_finite(core.step(last, state)[:, -1:], core)  # [1, 1, V]
            last = logits.argmax(dim=-1)  # [1, 1]
            tokens.append(state.position)
            used.append(sum(used_bytes(layer) for layer in state.layers))
    crosses = [layer.cross_attention for layer in state.layers]
    source = sum(_bytes(cross) for cross in crosses if cross is not None)
    reserved = sum(_bytes(layer.self_attention) for layer in state.layers)
    parts = {f"decoder.{i}": used_bytes(layer) for i, layer in enumerate(state.layers)}
    return KVCacheGrowth(tuple(tokens), tuple(used), source, reserved, parts)


def used_bytes(layer: LayerCache) -> int:
    """The bytes of a layer's self-attention cache that are filled."""
    past = layer.self_attention
    if isinstance(past, KVCache):
        # [B, H, filled, E] of the whole buffer
        return sum(part[:, :, : past.filled].nbytes for part in (past.k, past.v))
    return _bytes(past)  # states of a fixed size: linear attention, recurrent layers


def _bytes(part: Any) -> int:
    """The bytes of all tensors of a dataclass."""
    return sum(value.nbytes for value in vars(part).values() if isinstance(value, Tensor))
