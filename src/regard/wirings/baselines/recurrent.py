"""Recurrent encoders and decoders: RNN, GRU, LSTM, with or without attention (Cho et al. 2014,
Sutskever et al. 2014, Bahdanau et al. 2015, Luong et al. 2015).

They have the signature of a `Stack`. A cell whose input does not depend on its own output runs over
the whole sequence in one call of PyTorch's kernel (cuDNN on a GPU). A cell whose input contains the
context vector runs step by step.

Dropout is ours, because a resumed run could not repeat cuDNN's. Rows are reversed by a gather and
not packed, because packing copies lengths to the host and waits for the device.
"""

# Letters of shapes: B rows, S source and T target positions, L layers, D d_model.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from regard import spec
from regard.core.caches.kv_cache import Cache, CrossKV, LayerCache
from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.encoder_output import EncoderOutput, cross_attention_mask
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask
from regard.core.probe import HasHeads, NullProbe, Probe
from regard.core.side import Side
from regard.system.errors import ModelError
from regard.wirings.baselines.additive_attention import AlignmentAttention

CELLS: dict[str, Callable[..., nn.RNN | nn.GRU | nn.LSTM]] = {
    "rnn": nn.RNN,  # Elman's, with tanh
    "rnn_relu": partial(nn.RNN, nonlinearity="relu"),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}
# Along which dimension what is recorded grows with the steps: [B, T, D], [B, 1, T, E].
_GROWING = {"residual": 1, "mixed": 2}
CellState = tuple[Tensor, ...]  # a layer's hidden state [B, D], and an LSTM's cell state


@dataclass
class RecurrentState(Cache):
    """Hidden state of recurrent layers: the decoding cache, of a size that does not grow."""

    row_tensors = ("hidden", "cell", "fed")
    hidden: Tensor  # [B, L, D]
    cell: Tensor | None = None  # [B, L, D]: an LSTM's cell state
    fed: Tensor | None = None  # [B, D]: output of the last step, for input feeding

    def detach(self) -> RecurrentState:
        """The state without gradient history (truncated backpropagation through time)."""
        cell = None if self.cell is None else self.cell.detach()
        fed = None if self.fed is None else self.fed.detach()
        return RecurrentState(self.hidden.detach(), cell, fed)


class Network(Side):
    """Abstract: a recurrent or convolutional side. Order is in the network itself."""

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        memory: EncoderOutput | None = None,
    ) -> Tensor:
        """x [B, T, D] → [B, T, D], as `Stack.forward`."""
        context = context or Context()
        if context.documents is not None:  # a state would leak from one to the next
            raise ModelError(
                "recurrent and convolutional networks do not support packed texts",
                "put each text into a row of its own",
            )
        x = self.run(context.probe.through("embedded", x), padding_mask, context, memory)
        return context.probe.through("output", x)

    def run(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        context: Context,
        memory: EncoderOutput | None,
    ) -> Tensor:
        """All layers."""
        raise NotImplementedError


# ------------------------------------------------------------------ encoder


class RecurrentEncoder(Network):
    """Recurrent encoder; in a bidirectional one, each direction has half of the width."""

    kind = "recurrent"

    def __init__(self, part: spec.Recurrent, d_model: int) -> None:
        super().__init__()
        self.layers = part.layers
        self.cells = nn.ModuleList()
        self.backwards = nn.ModuleList()
        width = d_model // (1 + part.bidirectional)
        for _ in range(part.layers):
            self.cells.append(CELLS[part.cell](d_model, width, batch_first=True))
            if part.bidirectional:
                self.backwards.append(CELLS[part.cell](d_model, width, batch_first=True))
        self.dropout = Dropout(part.dropout)

    def run(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        context: Context,
        memory: EncoderOutput | None,
    ) -> Tensor:
        """What stands after a row's end is of no use."""
        reverse = _reversal(x, padding_mask) if self.backwards else None
        for i, cells in enumerate(self.cells):
            y = cells(x)[0]  # [B, S, D], or half as wide
            if reverse is not None:
                back = self.backwards[i](x.take_along_dim(reverse, dim=1))[0]
                # The reversal is its own inverse.
                y = torch.cat([y, back.take_along_dim(reverse, dim=1)], dim=-1)
            x = context.layer_done(context.layer(i), self.dropout(y))
        return x


def _reversal(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Indices [B, S, 1] that reverse the tokens of each row and leave right padding in place."""
    positions = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    if padding_mask is None:
        lengths = positions.new_full((len(x), 1), x.shape[1])
    else:
        lengths = padding_mask.sum(dim=1, keepdim=True)  # [B, 1]
    return torch.where(positions < lengths, lengths - 1 - positions, positions)[..., None]


# ------------------------------------------------------------------ decoder


class Bridge(nn.Module):
    """Initial decoder state: tanh of a map of the encoder's last state (Cho et al. 2014).

    With `halves`, the encoder is bidirectional: the second half of its output was read backwards,
    so its last state is at the first position.
    """

    def __init__(self, part: spec.Recurrent, d_model: int, *, halves: bool) -> None:
        super().__init__()
        self.layers = part.layers
        self.halves = halves
        self.hidden = Linear(d_model, part.layers * d_model)
        self.cell = None
        if part.cell == "lstm":
            self.cell = Linear(d_model, part.layers * d_model)

    def forward(self, memory: EncoderOutput) -> RecurrentState:
        hidden = memory.hidden
        if memory.padding_mask is None:
            last = hidden[:, -1]
        else:
            # Index of each row's last token [B]; 0 for a row of padding only.
            end = (memory.padding_mask.sum(dim=1) - 1).clamp_min(0)
            last = hidden.take_along_dim(end[:, None, None], dim=1)[:, 0]
        if self.halves:
            half = hidden.shape[-1] // 2
            last = torch.cat([last[:, :half], hidden[:, 0, half:]], dim=-1)
        state = torch.tanh(self.hidden(last)).unflatten(-1, (self.layers, -1))  # [B, L, D]
        if self.cell is None:
            return RecurrentState(state)
        # An LSTM's cell state is not bounded, so it has no tanh.
        return RecurrentState(state, self.cell(last).unflatten(-1, (self.layers, -1)))


class RecurrentDecoder(Network):
    """Recurrent decoder; its initial state is the `bridge`'s, or zeros for a language model.

    Its attention reads the memory `before` a step (Bahdanau), or `after` it (Luong). With input
    feeding, the attentional output is part of the next step's input.
    """

    kind = "recurrent"
    carries_state = True  # type: ignore[assignment]

    def __init__(
        self,
        part: spec.Recurrent,
        d_model: int,
        bridge: Bridge | None = None,
        attention: AlignmentAttention | None = None,
    ) -> None:
        super().__init__()
        self.layers = part.layers
        self.lstm = part.cell == "lstm"
        self.feeding = isinstance(part.looks, spec.LuongAttention) and part.looks.feeding
        reads_first = isinstance(part.looks, spec.BahdanauAttention)
        # The input is [embedding; context vector], or [embedding; last output] with input feeding.
        inputs = d_model * (1 + (reads_first or self.feeding))
        self.cells = nn.ModuleList()
        for width in (inputs, *[d_model] * (part.layers - 1)):
            self.cells.append(CELLS[part.cell](width, d_model, batch_first=True))
        self.bridge = bridge
        self.before = None
        self.after = None
        if reads_first:
            self.before = attention
        else:
            self.after = attention
        self.dropout = Dropout(part.dropout)
        self.d_model = d_model

    @property
    def attention(self) -> AlignmentAttention | None:
        return self.before or self.after

    def attentions(self) -> dict[str, HasHeads]:
        if self.attention is None:
            return {}
        return {"0.cross": self.attention}  # one for all layers, shown as the first one's

    def start(
        self, rows: int, capacity: int, memory: EncoderOutput | None = None
    ) -> list[LayerCache]:
        """One state for all layers, whatever the `capacity`."""
        if self.bridge is None:
            return self.start_segments(rows, self.d_model)
        assert memory is not None, "this decoder starts from a memory"
        sentences = len(memory.hidden)
        state = self.bridge(memory)
        if self.feeding:
            state.fed = memory.hidden.new_zeros(sentences, self.d_model)
        if rows != sentences:
            index = torch.arange(sentences, device=memory.hidden.device)
            # Beams of a sentence begin with equal states.
            state.select(index.repeat_interleave(rows // sentences))
        if self.attention is None:
            return [LayerCache(state)]
        return [LayerCache(state, self.attention.keys_and_values(memory.hidden))]

    def start_segments(self, rows: int, width: int) -> list[LayerCache]:
        """The zero state of `rows` texts that begin, of `width` numbers a layer."""
        zeros = next(self.parameters()).new_zeros(rows, self.layers, width)
        return [LayerCache(RecurrentState(zeros, zeros if self.lstm else None))]

    def run(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        context: Context,
        memory: EncoderOutput | None,
    ) -> Tensor:
        """The state in the context's caches moves on."""
        layers = context.state.layers if context.state else self.start(len(x), 0, memory)
        cache = layers[0]
        state = cast(RecurrentState, cache.self_attention)
        if padding_mask is not None:
            padding_mask = padding_mask[:, -x.shape[1] :]  # of the new positions
        if self.attention is None:
            return self._through_cells(x, state, padding_mask, context.probe)
        mask = cross_attention_mask(memory, context.state, None)
        assert cache.cross_attention is not None, "there is nothing to attend to"
        assert mask is not None
        if self.before is not None or self.feeding:
            return self._step_by_step(x, state, cache.cross_attention, mask, context.probe)
        x = self._through_cells(x, state, padding_mask, context.probe)
        inner = context.probe.scope("0").scope("cross")
        context_vector = self.attention(x, cache.cross_attention, mask, inner)
        return self.dropout(self.attention.joined(context_vector, x))

    # -------------------------------------------------------------- whole sequences

    def _through_cells(
        self, x: Tensor, state: RecurrentState, padding_mask: Tensor | None, probe: NullProbe
    ) -> Tensor:
        """[B, T, D] → [B, T, D] through all layers; updates the state.

        With left padding (of a language model's prompts) layers run step by step, because the
        state must not change at padding.
        """
        ends: list[CellState] = []
        for i, cells in enumerate(self.cells):
            begin = tuple(one[:, i] for one in (state.hidden, state.cell) if one is not None)
            if padding_mask is None:
                y, end = _run(cells, x, begin)
            else:
                y, end = _run_masked(cells, x, begin, padding_mask)
            ends.append(end)
            x = probe.through(f"{i}.residual", self.dropout(y))
        state.hidden = torch.stack([end[0] for end in ends], dim=1)  # [B, L, D]
        if self.lstm:
            state.cell = torch.stack([end[1] for end in ends], dim=1)
        return x

    # -------------------------------------------------------------- step by step, with attention

    def _step_by_step(
        self,
        x: Tensor,
        state: RecurrentState,
        keys: CrossKV,
        mask: AttentionMask,
        probe: NullProbe,
    ) -> Tensor:
        attention = self.attention
        assert attention is not None
        inner = probe.scope("0").scope("cross")
        outputs = []
        queries = []
        # Probed tensors of single steps, put together as if the sequence had been one call.
        prefix = ""
        tensors: dict[str, Tensor] = {}
        if isinstance(probe, Probe):
            prefix = probe.prefix
            tensors = probe.tensors
        by_step: defaultdict[str, list[Tensor]] = defaultdict(list)
        for position in x.split(1, dim=1):  # [B, 1, D]
            if self.before is not None:
                # s_{i−1} of Bahdanau et al.: the top layer's previous state, [B, 1, D].
                query = state.hidden[:, -1:]
                context_vector = attention(query, keys, mask, inner)
                inputs = torch.cat([position, context_vector], dim=-1)
                y = self._through_cells(inputs, state, None, probe)
            else:
                # Luong et al., Section 3.3: the last attentional vector is fed to the next step.
                assert state.fed is not None
                inputs = torch.cat([position, state.fed[:, None]], dim=-1)
                y = self._through_cells(inputs, state, None, probe)
                query = y
                context_vector = attention(query, keys, mask, inner)
            y = self.dropout(attention.joined(context_vector, y))
            if self.feeding:
                state.fed = y[:, 0]
            outputs.append(y)
            queries.append(query)
            for name, tensor in tensors.items():
                if name.startswith(prefix) and name.rpartition(".")[2] in _GROWING:
                    by_step[name].append(tensor)
        for name, parts in by_step.items():
            tensors[name] = torch.cat(parts, dim=_GROWING[name.rpartition(".")[2]])
        if probe.active:
            # All queries at once, as a call without steps would have shown them.
            q = attention.queries(torch.cat(queries, dim=1), keys)
            inner.attention(attention.mixer, (q, keys.k, keys.v), mask)
        return torch.cat(outputs, dim=1)


def _run(cells: nn.Module, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
    """One layer over a whole sequence, in one call."""
    # PyTorch's states have a leading dimension for its own layers, of which each module has one.
    begin = tuple(one[None].contiguous() for one in state)
    if len(begin) == 1:
        y, end = cells(x, *begin)
        return y, (end[0],)
    y, ends = cells(x, begin)
    return y, tuple(end[0] for end in ends)


def _run_masked(
    cells: nn.Module, x: Tensor, state: CellState, padding_mask: Tensor
) -> tuple[Tensor, CellState]:
    """The same step by step; at padding the state stays as it is."""
    outputs = []
    for position, is_token in zip(x.split(1, dim=1), padding_mask.unbind(dim=1), strict=True):
        y, after = _run(cells, position, state)
        outputs.append(y)
        # is_token [B] selects row by row: the new state, or the old one at padding.
        pairs = zip(after, state, strict=True)
        state = tuple(torch.where(is_token[:, None], new, old) for new, old in pairs)
    return torch.cat(outputs, dim=1), state
