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

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from regard.core.caches.kv_cache import LayerCache
from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.encoder_output import EncoderOutput, cross_attention_mask
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask
from regard.core.probe import HasHeads, NullProbe, Probe
from regard.core.side import Side
from regard.system.errors import ModelError
from regard.wirings.baselines.additive_attention import AlignmentAttention
from regard.wirings.baselines.cache import RecurrentState

CELLS: dict[str, Callable[..., nn.RNN | nn.GRU | nn.LSTM]] = {
    "rnn": nn.RNN,  # Elman's, with tanh
    "rnn_relu": partial(nn.RNN, nonlinearity="relu"),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}
CellState = tuple[Tensor, Tensor | None]  # a layer's hidden state [B, D], and an LSTM's cell state


def refuse_documents(context: Context) -> None:
    """Raises a ModelError for packed documents: a state would leak from one to the next."""
    if context.documents is not None:
        raise ModelError(
            "recurrent and convolutional networks do not support packed texts",
            "put each text into a row of its own",
        )


# ------------------------------------------------------------------ encoder


class RecurrentEncoder(Side):
    """Recurrent encoder; in a bidirectional one, each direction has half of the width."""

    kind = "recurrent"
    position = None  # order is in the recurrence itself

    def __init__(
        self, cell: str, d_model: int, layers: int, dropout: float, *, bidirectional: bool
    ) -> None:
        super().__init__()
        self.layers = layers
        self.cells = nn.ModuleList()
        self.backwards = nn.ModuleList()
        width = d_model // 2 if bidirectional else d_model
        for _ in range(layers):
            self.cells.append(CELLS[cell](d_model, width, batch_first=True))
            if bidirectional:
                self.backwards.append(CELLS[cell](d_model, width, batch_first=True))
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        memory: EncoderOutput | None = None,
    ) -> Tensor:
        """[B, S, D] → [B, S, D]; what stands after a row's end is of no use."""
        context = context or Context()
        refuse_documents(context)
        x = context.probe.through("embedded", x)
        reverse = _reversal(x, padding_mask) if self.backwards else None
        for i, cells in enumerate(self.cells):
            y = cells(x)[0]  # [B, S, D], or half as wide
            if reverse is not None:
                back = self.backwards[i](_gather(x, reverse))[0]
                # The reversal is its own inverse.
                y = torch.cat([y, _gather(back, reverse)], dim=-1)
            x = context.layer_done(context.layer(i), self.dropout(y))
        return context.probe.through("output", x)


def _reversal(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Indices [B, S] that reverse the tokens of each row and leave right padding in place."""
    positions = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    if padding_mask is None:
        lengths = positions.new_full((len(x), 1), x.shape[1])
    else:
        lengths = padding_mask.sum(dim=1, keepdim=True)  # [B, 1]
    return torch.where(positions < lengths, lengths - 1 - positions, positions)


def _gather(x: Tensor, positions: Tensor) -> Tensor:
    """x [B, S, D] at `positions` [B, S]."""
    return x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[-1]))


# ------------------------------------------------------------------ decoder


class Bridge(nn.Module):
    """Initial decoder state: tanh of a map of the encoder's last state (Cho et al. 2014).

    With `halves`, the encoder is bidirectional: the second half of its output was read backwards,
    so its last state is at the first position.
    """

    def __init__(self, d_model: int, layers: int, *, halves: bool, cell: bool) -> None:
        super().__init__()
        self.layers = layers
        self.halves = halves
        self.hidden = Linear(d_model, layers * d_model)
        self.cell = Linear(d_model, layers * d_model) if cell else None

    def forward(self, memory: EncoderOutput) -> RecurrentState:
        hidden = memory.hidden
        if memory.padding_mask is None:
            last = hidden[:, -1]
        else:
            # Index of each row's last token [B]; 0 for a row of padding only.
            end = (memory.padding_mask.sum(dim=1) - 1).clamp_min(0)
            last = _gather(hidden, end[:, None])[:, 0]
        if self.halves:
            half = hidden.shape[-1] // 2
            last = torch.cat([last[:, :half], hidden[:, 0, half:]], dim=-1)
        state = torch.tanh(self.hidden(last)).unflatten(-1, (self.layers, -1))  # [B, L, D]
        if self.cell is None:
            return RecurrentState(state)
        # An LSTM's cell state is not bounded, so it has no tanh.
        return RecurrentState(state, self.cell(last).unflatten(-1, (self.layers, -1)))


class RecurrentDecoder(Side):
    """Recurrent decoder; its initial state is the `bridge`'s, or zeros for a language model.

    `before` attends to the memory before a step (Bahdanau), `after` after it (Luong). With
    `feeding`, the attentional output is part of the next step's input (input feeding).
    """

    kind = "recurrent"
    position = None
    carries_state = True  # type: ignore[assignment]

    def __init__(
        self,
        cell: str,
        d_model: int,
        layers: int,
        dropout: float,
        *,
        bridge: Bridge | None = None,
        before: AlignmentAttention | None = None,
        after: AlignmentAttention | None = None,
        feeding: bool = False,
    ) -> None:
        super().__init__()
        self.layers = layers
        self.lstm = cell == "lstm"
        self.feeding = feeding
        # The input is [embedding; context vector], or [embedding; last output] with input feeding.
        takes_context_vector = before is not None or feeding
        inputs = 2 * d_model if takes_context_vector else d_model
        self.cells = nn.ModuleList()
        for i in range(layers):
            self.cells.append(CELLS[cell](inputs if i == 0 else d_model, d_model, batch_first=True))
        self.bridge = bridge
        self.before = before
        self.after = after
        self.dropout = Dropout(dropout)
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

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        memory: EncoderOutput | None = None,
    ) -> Tensor:
        """[B, T, D] → [B, T, D]; the state in the context's caches moves on."""
        context = context or Context()
        refuse_documents(context)
        probe = context.probe
        x = probe.through("embedded", x)
        if context.state is None:
            cache = self.start(len(x), 0, memory)[0]
        else:
            cache = context.state.layers[0]
        mask = cross_attention_mask(memory, context.state, None)
        if padding_mask is not None:
            padding_mask = padding_mask[:, -x.shape[1] :]  # of the new positions
        if self.before is not None or self.feeding:
            x = self._step_by_step(x, cache, mask, probe)
        else:
            state = cast(RecurrentState, cache.self_attention)
            x = self._through_cells(x, state, padding_mask, probe)
            if self.after is not None:
                context_vector = self._context_vector(self.after, x, cache, mask, probe)
                x = self.dropout(self.after.joined(context_vector, x))
        return probe.through("output", x)

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
            cell = None if state.cell is None else state.cell[:, i]
            begin = (state.hidden[:, i], cell)
            if padding_mask is None:
                y, end = _run(cells, x, begin)
            else:
                y, end = _run_masked(cells, x, begin, padding_mask)
            ends.append(end)
            x = probe.through(f"{i}.residual", self.dropout(y))
        state.hidden = torch.stack([hidden for hidden, _ in ends], dim=1)  # [B, L, D]
        if self.lstm:
            state.cell = torch.stack([cell for _, cell in ends if cell is not None], dim=1)
        return x

    def _context_vector(
        self,
        attention: AlignmentAttention,
        x: Tensor,
        cache: LayerCache,
        mask: AttentionMask | None,
        probe: NullProbe,
    ) -> Tensor:
        assert cache.cross_attention is not None, "there is nothing to attend to"
        assert mask is not None
        inner = probe.scope("0").scope("cross")
        context_vector: Tensor = attention(x, cache.cross_attention, mask, inner)
        return context_vector

    # -------------------------------------------------------------- step by step, with attention

    def _step_by_step(
        self, x: Tensor, cache: LayerCache, mask: AttentionMask | None, probe: NullProbe
    ) -> Tensor:
        attention = self.attention
        state = cast(RecurrentState, cache.self_attention)
        assert attention is not None
        outputs = []
        queries = []
        steps = _ProbedSteps(self.layers, probe)
        for position in x.split(1, dim=1):  # [B, 1, D]
            if self.before is not None:
                # s_{i−1} of Bahdanau et al.: the top layer's previous state, [B, 1, D].
                query = state.hidden[:, -1:]
                context_vector = self._context_vector(attention, query, cache, mask, probe)
                inputs = torch.cat([position, context_vector], dim=-1)
                y = self._through_cells(inputs, state, None, probe)
            else:
                # Luong et al., Section 3.3: the last attentional vector is fed to the next step.
                assert state.fed is not None
                inputs = torch.cat([position, state.fed[:, None]], dim=-1)
                y = self._through_cells(inputs, state, None, probe)
                query = y
                context_vector = self._context_vector(attention, query, cache, mask, probe)
            y = self.dropout(attention.joined(context_vector, y))
            if self.feeding:
                state.fed = y[:, 0]
            outputs.append(y)
            queries.append(query)
            steps.record()
        steps.join()
        if probe.active:
            assert cache.cross_attention is not None
            assert mask is not None
            keys = cache.cross_attention
            # All queries at once, as a call without steps would have shown them.
            q = attention.queries(torch.cat(queries, dim=1), keys)
            inner = probe.scope("0").scope("cross")
            inner.attention(attention.mixer, (q, keys.k, keys.v), mask)
        return torch.cat(outputs, dim=1)


class _ProbedSteps:
    """Probed tensors of single steps, concatenated as if the sequence had been one call."""

    def __init__(self, layers: int, probe: NullProbe) -> None:
        self.probe = probe if isinstance(probe, Probe) else None
        self.parts: dict[str, list[Tensor]] = {}
        # Names, and along which dimension the tensors grow.
        self.dimensions: dict[str, int] = {}
        if self.probe is not None:
            for i in range(layers):
                self.dimensions[f"{self.probe.prefix}{i}.residual"] = 1
            self.dimensions[f"{self.probe.prefix}0.cross.mixed"] = 2  # [B, 1, T, E]

    def record(self) -> None:
        """Takes what the last step left."""
        if self.probe is None:
            return
        for name in self.dimensions:
            if name in self.probe.tensors:
                self.parts.setdefault(name, []).append(self.probe.tensors[name])

    def join(self) -> None:
        """Puts the steps together."""
        if self.probe is None:
            return
        for name, parts in self.parts.items():
            self.probe.tensors[name] = torch.cat(parts, dim=self.dimensions[name])


def _run(cells: nn.Module, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
    """One layer over a whole sequence, in one call."""
    hidden, cell = state
    # PyTorch's states have a leading dimension for its own layers, of which each module has one.
    if cell is None:
        y, end = cells(x, hidden[None].contiguous())
        return y, (end[0], None)
    y, (end, last) = cells(x, (hidden[None].contiguous(), cell[None].contiguous()))
    return y, (end[0], last[0])


def _run_masked(
    cells: nn.Module, x: Tensor, state: CellState, padding_mask: Tensor
) -> tuple[Tensor, CellState]:
    """The same step by step; at padding the state stays as it is."""
    outputs = []
    for position, is_token in zip(x.split(1, dim=1), padding_mask.unbind(dim=1), strict=True):
        y, (hidden, cell) = _run(cells, position, state)
        outputs.append(y)
        old_hidden, old_cell = state
        # is_token [B] selects row by row: the new state, or the old one at padding.
        hidden = torch.where(is_token[:, None], hidden, old_hidden)
        if cell is not None and old_cell is not None:
            cell = torch.where(is_token[:, None], cell, old_cell)
        state = (hidden, cell)
    return torch.cat(outputs, dim=1), state
