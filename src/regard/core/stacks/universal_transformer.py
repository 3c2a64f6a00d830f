"""The Universal Transformer (Dehghani et al. 2019): one layer applied again and again, with
adaptive computation time (Graves 2016)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard import spec
from regard.core.block import LayerInputs
from regard.core.context import Context
from regard.core.linear import Linear
from regard.core.positions.positional_encoding import sinusoids
from regard.core.stack import Stack, StackParts


class Universal(nn.Module):
    """Timing signals of the shared layer (sinusoids of position and step), and the halting unit."""

    def __init__(self, part: spec.Universal, d_model: int) -> None:
        super().__init__()
        self.spec = part
        self.d_model = d_model
        self.halt = Linear(d_model, 1) if part.halts else None

    def extra_repr(self) -> str:
        return f"timing={self.spec.timing}, halting_threshold={1 - self.spec.least}"

    def add_timing(self, x: Tensor, positions: Tensor, step: int) -> Tensor:
        """x [B, T, D] with sinusoids of the `positions` [T] or [B, T] and of the step."""
        if not self.spec.timing:
            return x
        flat = positions.reshape(-1)
        signal = sinusoids(flat, self.d_model, "halves", 10_000.0).view(*positions.shape, -1)
        # Positions and steps have the same sinusoids (Dehghani et al. 2019).
        steps = torch.full_like(flat[:1], step)
        signal = signal + sinusoids(steps, self.d_model, "halves", 10_000.0)
        return x + signal.to(x.dtype)

    def begin(self) -> Halting | None:
        return None if self.halt is None else Halting(self.halt, self.spec)


class Halting:
    """Adaptive computation time: each position stops when its probabilities of halting sum up to
    nearly one, and the output is the mean of its steps by these. All steps are made, and those
    after the stop weigh nothing."""

    def __init__(self, halt: Linear, part: spec.Universal) -> None:
        self.halt = halt
        self.spec = part
        # At first one number for all positions, then [B, T, D], [B, T, 1] and [B, T, 1].
        self.mean = torch.zeros(())
        self.remainder = torch.ones(())  # what is not given away yet
        self.steps = torch.zeros(())  # steps made, and the remainder at the last

    def add(self, before: Tensor, after: Tensor, *, last: bool) -> None:
        """One step, from `before` to `after` [B, T, D]; the last takes all that remains."""
        logits = self.halt(before)  # [B, T, 1]
        # In float32 at least: a model in float64 halts in float64.
        wide = logits if logits.dtype == torch.float64 else logits.float()
        probability = torch.sigmoid(wide)
        remainder = self.remainder
        # 1 while a position still computes, 0 once it has halted.
        running = (remainder > 0).to(probability.dtype)
        ends = running
        if not last:
            ends = running * (remainder - probability <= self.spec.least).to(probability.dtype)
        # A position's last step counts by the remainder, earlier ones by their probability.
        share = (ends * remainder + (running - ends) * probability).to(after.dtype)
        self.mean = self.mean + share * after
        # N + R of Graves 2016: each step counts 1, and the remainder comes on top.
        self.steps = self.steps + running + ends * remainder
        self.remainder = remainder * (1 - ends) - (running - ends) * probability


class UniversalStack(Stack):
    """A stack of one shared block with timing signals and halting."""

    def __init__(self, parts: StackParts, universal: Universal) -> None:
        super().__init__(parts)
        self.universal = universal

    def apply_blocks(self, x: Tensor, inputs: Sequence[LayerInputs], context: Context) -> Tensor:
        """Embeddings of the step and of the positions are added at each step, and the outputs of
        the steps are weighted by the halting probabilities."""
        ids = inputs[0].positions.ids  # [T] or [B, T]
        rows, length, _ = x.shape
        # The beams of a sentence, which are rows of x, are queries of one row in attention: they
        # are all at the same position.
        if ids.shape[-1] != length and ids.ndim == 1:
            ids = ids[:length]
        elif ids.shape[-1] != length:
            ids = ids.reshape(rows, length)
        halting = self.universal.begin()
        for step in range(self.layers):
            layer = context.layer(step)
            before = self.universal.add_timing(x, ids, step)
            x = self.apply_block(step, before, inputs[step], layer)
            if halting is not None:
                halting.add(before, x, last=step == self.layers - 1)
            x = context.layer_done(layer, x)
        if halting is None:
            return x
        # The ponder cost: the mean number of steps of a position.
        layer.add_loss("ponder", halting.spec.cost * halting.steps.mean())
        return halting.mean
