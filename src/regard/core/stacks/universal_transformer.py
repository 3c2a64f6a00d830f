"""The Universal Transformer (Dehghani et al. 2019): one layer applied again and again, with
adaptive computation time (Graves 2016)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.core.block import AnyBlock
from regard.core.context import Context, add_loss
from regard.core.encoder_output import EncoderOutput
from regard.core.linear import Linear
from regard.core.norm import Norm
from regard.core.positions.positional_encoding import sinusoids
from regard.core.stack import LayerType, Stack, in_autocast_dtype


class Universal(nn.Module):
    """Timing signals of the shared layer (sinusoids of position and step), and the halting unit."""

    def __init__(
        self, d_model: int, *, timing: bool, halts: bool, least: float, cost: float
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.timing = timing
        self.least = least
        self.cost = cost
        self.halt = Linear(d_model, 1) if halts else None

    def extra_repr(self) -> str:
        return f"timing={self.timing}, halting_threshold={1 - self.least}"

    def add_timing(self, x: Tensor, positions: Tensor, step: int) -> Tensor:
        """x [B, T, D] with sinusoids of the `positions` [T] or [B, T] and of the step."""
        if not self.timing:
            return x
        flat = positions.reshape(-1)
        signal = sinusoids(flat, self.d_model, "halves", 10_000.0).view(*positions.shape, -1)
        # Positions and steps have the same sinusoids (Dehghani et al. 2019).
        steps = torch.full_like(flat[:1], step)
        signal = signal + sinusoids(steps, self.d_model, "halves", 10_000.0)
        return x + signal.to(x.dtype)

    def begin(self) -> Halting | None:
        if self.halt is None:
            return None
        return Halting(self.halt, self.least, self.cost)


class Halting:
    """Adaptive computation time: each position stops when its probabilities of halting sum up to
    nearly one, and the output is the mean of its steps by these. All steps are made, and those
    after the stop weigh nothing."""

    def __init__(self, halt: Linear, least: float, cost: float) -> None:
        self.halt = halt
        self.least = least
        self.cost = cost
        self.mean: Tensor | None = None
        self.remainder: Tensor | None = None  # [B, T, 1]: what is not given away yet
        self.steps: Tensor | None = None  # [B, T, 1]: steps made, and the remainder at the last

    def add(self, before: Tensor, after: Tensor, *, last: bool) -> None:
        """One step, from `before` to `after` [B, T, D]; the last takes all that remains."""
        logits = self.halt(before)  # [B, T, 1]
        # In float32 at least: a model in float64 halts in float64.
        wide = logits if logits.dtype == torch.float64 else logits.float()
        probability = torch.sigmoid(wide)
        remainder = self.remainder
        if remainder is None:
            remainder = torch.ones_like(probability)
        # 1 while a position still computes, 0 once it has halted.
        running = (remainder > 0).to(probability.dtype)
        ends = running
        if not last:
            ends = running * (remainder - probability <= self.least).to(probability.dtype)
        # A position's last step counts by the remainder, earlier ones by their probability.
        share = (ends * remainder + (running - ends) * probability).to(after.dtype)
        # N + R of Graves 2016: each step counts 1, and the remainder comes on top.
        spent = running + ends * remainder
        if self.mean is None or self.steps is None:
            self.mean = share * after
            self.steps = spent
        else:
            self.mean = self.mean + share * after
            self.steps = self.steps + spent
        self.remainder = remainder * (1 - ends) - (running - ends) * probability

    def ponder_cost(self) -> Tensor:
        """The ponder cost: the mean number of steps of a position, times `cost`."""
        assert self.steps is not None
        return self.cost * self.steps.mean()


class UniversalStack(Stack):
    """A stack of one shared block with timing signals and halting."""

    def __init__(
        self,
        blocks: Sequence[AnyBlock],
        layer_types: Sequence[LayerType],
        final_norm: Norm | None,
        universal: Universal,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(blocks, layer_types, final_norm, dropout=dropout)
        self.universal = universal

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        memory: EncoderOutput | None = None,
    ) -> Tensor:
        """As `Stack.forward`; embeddings of the step and of the positions are added at each step,
        and the outputs of the steps are weighted by the halting probabilities."""
        context = context or Context()
        inputs = self.layer_inputs(x, padding_mask, context, memory)[0]
        ids = _row_positions(inputs.positions.ids, x)
        halting = self.universal.begin()
        x = context.probe.through("embedded", in_autocast_dtype(x))
        for step in range(self.layers):
            layer = context.layer(step)
            before = self.universal.add_timing(x, ids, step)
            x = self.apply_block(step, before, inputs, layer)
            if halting is not None:
                halting.add(before, x, last=step == self.layers - 1)
            x = context.layer_done(layer, x)
        if halting is not None:
            assert halting.mean is not None
            x = halting.mean
            if context.losses is not None:
                add_loss(context.losses, "ponder", halting.ponder_cost())
        return context.probe.through("output", self.finish(x, inputs.padding_mask))


def _row_positions(ids: Tensor, x: Tensor) -> Tensor:
    """The positions [T] or [B, T] of x [B, T, D].

    The beams of a sentence, which are rows of x, are queries of one row in attention: they are all
    at the same position.
    """
    rows, length, _ = x.shape
    if ids.shape[-1] == length:
        return ids
    return ids[:length] if ids.ndim == 1 else ids.reshape(rows, length)
