"""Recurrent layers as encoder and as decoder (Cho et al. 2014, Sutskever et al. 2014, Bahdanau et al. 2015, Luong et al. 2015).

They offer what a `Stack` offers: `sight`, `forward`, `start`. Where nothing but its own state reaches a cell, a whole
sequence is one call of PyTorch's kernel (cuDNN on a GPU); a cell that is told what attention found goes step by step.
Dropout is ours, because cuDNN's could not be drawn again by a resumed run; padding is turned around in place instead of
packed, because packing would wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.baselines.additive_attention import AlignmentAttention
from regard.core.cache import LayerCache, RecurrentState
from regard.core.dropout import Dropout
from regard.core.linear import Linear
from regard.core.mask import AttentionMask, MaskPattern
from regard.core.probe import AttentionCall, HasHeads, Probe

CELLS: dict[str, type[nn.RNN | nn.GRU | nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def _layers(cell: str, inputs: int, width: int, layers: int) -> nn.ModuleList:
    return nn.ModuleList(
        CELLS[cell](inputs if i == 0 else width, width, batch_first=True) for i in range(layers)
    )


def padded(attention_mask: AttentionMask) -> Tensor | None:
    """[B, T], True = real; None where all are, which is known without asking the device."""
    return (
        None if attention_mask.all else attention_mask.factors()[1].expand(attention_mask.batch, -1)
    )


class Onward(nn.Module):
    """A part that sees what it carries, so that of a call only the new places matter."""

    position = None

    def attention_mask(
        self,
        start: int | Tensor,
        length: int,
        batch: int,
        padding: MaskPattern,
        padding_mask: Tensor | None = None,
        *,
        end: int | None = None,
    ) -> AttentionMask:
        """`real` says nothing that `padding` does not, and `end` nothing of the new places."""
        assert isinstance(start, int), "what is carried has no slots, so its steps are not fixed"
        places = torch.arange(start, start + length, device=next(self.parameters()).device)
        return AttentionMask(padding, places, places, batch, start=start)


class RecurrentEncoder(Onward):
    """Layers that go forwards, and with `backwards` each another one that goes backwards through half of the width."""

    def __init__(
        self, cell: str, d_model: int, layers: int, dropout: float, *, backwards: bool
    ) -> None:
        super().__init__()
        self.layers = layers
        self.cells = nn.ModuleList()
        self.backwards = nn.ModuleList()
        width = d_model // 2 if backwards else d_model
        for _ in range(layers):
            self.cells.append(CELLS[cell](d_model, width, batch_first=True))
            if backwards:
                self.backwards.append(CELLS[cell](d_model, width, batch_first=True))
        self.dropout = Dropout(dropout)

    def attentions(self) -> dict[str, HasHeads]:
        return {}

    def forward(
        self, x: Tensor, attention_mask: AttentionMask, *, probe: Probe | None = None
    ) -> Tensor:
        """[B, S, D] → [B, S, D]; what stands after a row's end is of no use."""
        x = probe.through("embedded", x) if probe else x
        turn = self._turned(x, padded(attention_mask)) if self.backwards else None
        for i, cells in enumerate(self.cells):
            y = cells(x)[0]
            if turn is not None:
                back = self.backwards[i](_taken(x, turn))[0]
                y = torch.cat([y, _taken(back, turn)], dim=-1)
            x = self.dropout(y)
            x = probe.through(f"{i}.residual", x) if probe else x
        return probe.through("output", x) if probe else x

    @staticmethod
    def _turned(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """[B, S]: the place that comes to each place when a row is read from its end; padding stays where it is."""
        places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        ends = (
            places.new_full((len(x), 1), x.shape[1])
            if padding_mask is None
            else padding_mask.sum(dim=1, keepdim=True)
        )
        return torch.where(places < ends, ends - 1 - places, places)


def _taken(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[-1]))


class Bridge(nn.Module):
    """The decoder's first state: tanh of a map of what the encoder had read when it came to its end (Cho et al. 2014). With
    `halves`, the second half of the memory was read backwards, and its end is the first place."""

    def __init__(self, d_model: int, layers: int, *, halves: bool, cell: bool) -> None:
        super().__init__()
        self.layers, self.halves = layers, halves
        self.hidden = Linear(d_model, layers * d_model)
        self.cell = Linear(d_model, layers * d_model) if cell else None

    def forward(self, memory: Tensor, attention_mask: AttentionMask) -> RecurrentState:
        padding_mask = padded(attention_mask)
        if padding_mask is None:
            last = memory[:, -1]
        else:
            end = (
                (padding_mask.sum(dim=1) - 1)
                .clamp_min(0)[:, None, None]
                .expand(-1, 1, memory.shape[-1])
            )
            last = memory.gather(1, end)[:, 0]
        if self.halves:
            half = memory.shape[-1] // 2
            last = torch.cat([last[:, :half], memory[:, 0, half:]], dim=-1)
        hidden = torch.tanh(self.hidden(last)).unflatten(-1, (self.layers, -1))
        cell = None if self.cell is None else self.cell(last).unflatten(-1, (self.layers, -1))
        return RecurrentState(hidden, cell)


class RecurrentDecoder(Onward):
    """Layers that go forwards from a first state: the `bridge`'s, or zeros for a language model.

    `before` looks at the memory before a step, `after` looks after it; with `feeding`, the next step is told what that gave.
    """

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
        told = before is not None or feeding
        self.layers, self.lstm, self.feeding = layers, cell == "lstm", feeding
        self.cells = _layers(cell, 2 * d_model if told else d_model, d_model, layers)
        self.bridge = bridge
        self.before = before
        self.after = after
        self.dropout = Dropout(dropout)
        self.d_model = d_model

    @property
    def looking(self) -> AlignmentAttention | None:
        return self.before or self.after

    def attentions(self) -> dict[str, HasHeads]:
        return {} if self.looking is None else {"0.cross": self.looking}

    def start(
        self,
        rows: int,
        capacity: int,
        memory: Tensor | None = None,
        memory_mask: AttentionMask | None = None,
    ) -> list[LayerCache]:
        """One state for all layers, whatever the `capacity`."""
        if self.bridge is None:
            return self.remember(rows, self.d_model)
        assert memory is not None, "this decoder starts from a memory"
        assert memory_mask is not None
        carried = self.bridge(memory, memory_mask)
        if self.feeding:
            carried.fed = memory.new_zeros(len(memory), self.d_model)
        if rows != len(memory):
            sentences = torch.arange(len(memory), device=memory.device)
            carried.select(sentences.repeat_interleave(rows // len(memory)))
        return [
            LayerCache(carried, None if self.looking is None else self.looking.remember(memory))
        ]

    def remember(self, rows: int, width: int) -> list[LayerCache]:
        """What is carried of `rows` texts that begin, each of `width` numbers a layer."""
        zeros = next(self.parameters()).new_zeros(rows, self.layers, width)
        return [LayerCache(RecurrentState(zeros, zeros if self.lstm else None))]

    def forward(
        self,
        x: Tensor,
        attention_mask: AttentionMask,
        memory: Tensor | None = None,
        memory_mask: AttentionMask | None = None,
        states: Sequence[LayerCache] | None = None,
        probe: Probe | None = None,
    ) -> Tensor:
        x = probe.through("embedded", x) if probe else x
        state = (states or self.start(len(x), 0, memory, memory_mask))[0]
        if self.before is not None or self.feeding:
            x = self._told(x, state, memory_mask, probe)
        else:
            assert isinstance(state.past, RecurrentState)
            x = self._through(x, state.past, padded(attention_mask), probe)
            if self.after is not None:
                x = self.dropout(
                    self.after.joined(self._found(self.after, x, state, memory_mask, probe), x)
                )
        return probe.through("output", x) if probe else x

    # -------------------------------------------------------------- nothing but their own state reaches the cells

    def _through(
        self, x: Tensor, carried: RecurrentState, padding_mask: Tensor | None, probe: Probe | None
    ) -> Tensor:
        """[B, T, D] → [B, T, D]; the state moves on. Where places are padding (in front, of a language model's prompt), the
        state must stay as it is, and layers go step by step."""
        ends = []
        for i, cells in enumerate(self.cells):
            state = (carried.hidden[:, i], None if carried.cell is None else carried.cell[:, i])
            y, state = (
                _run(cells, x, state)
                if padding_mask is None
                else _masked(cells, x, state, padding_mask)
            )
            ends.append(state)
            x = self.dropout(y)
            x = probe.through(f"{i}.residual", x) if probe else x
        carried.hidden = torch.stack([hidden for hidden, _ in ends], dim=1)
        carried.cell = (
            torch.stack([cell for _, cell in ends if cell is not None], dim=1)
            if self.lstm
            else None
        )
        return x

    def _found(
        self,
        looking: AlignmentAttention,
        x: Tensor,
        state: LayerCache,
        attention_mask: AttentionMask | None,
        probe: Probe | None,
    ) -> Tensor:
        assert state.memory is not None, "there is nothing to look at"
        assert attention_mask is not None
        found: Tensor = looking(
            x, state.memory, attention_mask, probe.scope("0").scope("cross") if probe else None
        )
        return found

    # -------------------------------------------------------------- the cells are told something at each step

    def _told(
        self,
        x: Tensor,
        state: LayerCache,
        attention_mask: AttentionMask | None,
        probe: Probe | None,
    ) -> Tensor:
        looking, carried = self.looking, state.past
        assert isinstance(carried, RecurrentState)
        assert looking is not None
        given, asked = [], []
        steps = _Steps(self.layers, probe)
        for place in x.split(1, dim=1):  # [B, 1, D]
            if self.before is not None:
                query = carried.hidden[:, -1:]
                found = self._found(looking, query, state, attention_mask, probe)
                y = self._through(torch.cat([place, found], dim=-1), carried, None, probe)
            else:
                assert carried.fed is not None
                query = y = self._through(
                    torch.cat([place, carried.fed[:, None]], dim=-1), carried, None, probe
                )
                found = self._found(looking, query, state, attention_mask, probe)
            y = self.dropout(looking.joined(found, y))
            if self.feeding:
                carried.fed = y[:, 0]
            given.append(y)
            asked.append(query)
            steps.take()
        if probe is not None:
            assert state.memory is not None
            assert attention_mask is not None
            steps.join()
            q = looking.asks(torch.cat(asked, dim=1), state.memory)
            probe.scope("0").scope("cross").attended(
                AttentionCall(looking.mixer, q, state.memory.k, state.memory.v, attention_mask)
            )
        return torch.cat(given, dim=1)


class _Steps:
    """What a trace saw at each of several steps, put together as one call would have shown it."""

    def __init__(self, layers: int, probe: Probe | None) -> None:
        self.probe = probe
        places = {f"{i}.residual": 1 for i in range(layers)} | {
            "0.cross.mixed": 2
        }  # and along which dimension they grow
        self.places = (
            {probe.prefix + name: along for name, along in places.items()} if probe else {}
        )
        self.seen: dict[str, list[Tensor]] = {}

    def take(self) -> None:
        for name in self.places:
            if self.probe is not None and name in self.probe.tensors:
                self.seen.setdefault(name, []).append(self.probe.tensors[name])

    def join(self) -> None:
        assert self.probe is not None
        for name, parts in self.seen.items():
            self.probe.tensors[name] = torch.cat(parts, dim=self.places[name])


Ends = tuple[Tensor, Tensor | None]  # a layer's state [B, D], and an LSTM's second one


def _run(cells: nn.Module, x: Tensor, state: Ends) -> tuple[Tensor, Ends]:
    """One layer over a whole sequence, in one call."""
    hidden, cell = state
    if cell is None:
        y, end = cells(x, hidden[None].contiguous())
        return y, (end[0], None)
    y, (end, last) = cells(x, (hidden[None].contiguous(), cell[None].contiguous()))
    return y, (end[0], last[0])


def _masked(cells: nn.Module, x: Tensor, state: Ends, padding_mask: Tensor) -> tuple[Tensor, Ends]:
    given = []
    for place, here in zip(x.split(1, dim=1), padding_mask.unbind(dim=1), strict=True):
        y, (hidden, cell) = _run(cells, place, state)
        given.append(y)
        keep = here[:, None]
        old, before = state
        state = (
            torch.where(keep, hidden, old),
            None if cell is None else torch.where(keep, cell, before),
        )  # type: ignore[arg-type]
    return torch.cat(given, dim=1), state
