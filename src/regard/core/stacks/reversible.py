"""Reversible layers: two streams updated in turn, so that inputs follow from outputs
(RevNet, Gomez et al. 2017; Reformer, Kitaev et al. 2020).

One sublayer maps (a, b) to (b, a + f(b)); knowing that, f is computed again and taken away. The
stored activations of a whole stack are then those of one sublayer, for the price of a second
forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.core.block import AnyBlock, LayerInputs
from regard.core.context import Context, LayerContext
from regard.core.norm import normalize
from regard.core.residual import SequentialResidual, Sublayer
from regard.core.stack import Stack, StackParts


class ReversibleBlock(AnyBlock):
    """Self-attention, cross-attention if there is one, feed-forward; both streams side by side,
    [B, T, 2·D]."""

    residual: SequentialResidual

    def forward(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        first, second = x.chunk(2, dim=-1)  # [B, T, D] each
        for step in self.steps(inputs, context):
            first, second = second, first + step(second)
        return torch.cat([first, second], dim=-1)

    def steps(self, inputs: LayerInputs, context: LayerContext) -> list[Sublayer]:
        """The functions of the sublayers, each added to the other stream, in order."""
        sublayers = [
            partial(self.self_attention, inputs=inputs, context=context),
            partial(self.cross_attention, inputs=inputs, context=context),
            partial(self.feed_forward, context=context),
        ]
        if self.cross is None:
            del sublayers[1]
        added = partial(_added, padding_mask=context.padding_mask)
        return list(map(added, self.residual.each, sublayers))


def _added(connection: Any, sublayer: Sublayer, padding_mask: Tensor | None) -> Sublayer:
    """What a sublayer adds to the other stream: Dropout(Sublayer(norm(x)))."""
    return lambda x: connection.dropout(sublayer(normalize(connection.norm, x, padding_mask)))


class ReversibleStack(Stack):
    """A stack of reversible blocks, which `gives` the `mean` of both streams, or `both`. In
    training, activations are computed again from the outputs."""

    def __init__(self, parts: StackParts, gives: str) -> None:
        super().__init__(parts)
        self.gives = gives

    def residual_dtype(self, x: Tensor) -> Tensor:
        """As wide as it is: what is added must be taken away again."""
        return x

    def apply_blocks(self, x: Tensor, inputs: Sequence[LayerInputs], context: Context) -> Tensor:
        """On two streams: x [B, T, D] → [B, T, 2·D]."""
        x = self.residual_stream(x)
        # Whoever watches needs the activations of each layer, which are not kept otherwise.
        watched = context.probe.active or context.layer_outputs is not None
        if self.training and context.state is None and not watched:
            return self._without_activations(x, inputs, context)
        return super().apply_blocks(x, inputs, context)

    def residual_stream(self, embedded: Tensor) -> Tensor:
        """Both streams begin as the same: [B, T, 2·D]."""
        return torch.cat([embedded, embedded], dim=-1)

    def finish(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """The mean of both streams, or both, normalised."""
        if self.gives == "mean":
            first, second = x.chunk(2, dim=-1)
            x = (first + second) / 2
        return super().finish(x, padding_mask)

    def _without_activations(
        self, x: Tensor, inputs: Sequence[LayerInputs], context: Context
    ) -> Tensor:
        steps: list[Sublayer] = []
        memories: dict[int, Tensor] = {}  # layers may attend to the same one
        for number, each in enumerate(inputs):
            block = cast(ReversibleBlock, self.block(number))
            layer = context.layer(number)._replace(padding_mask=each.padding_mask)
            steps += block.steps(each, layer)
            if each.memory is not None:
                memories[id(each.memory)] = each.memory
        inputs_besides = (*self.blocks.parameters(), *memories.values())
        return _Reversible.apply(x, steps, *inputs_besides)


# ------------------------------------------------------------------ the backward pass


class _Reversible(torch.autograd.Function):
    """All `steps` on both streams [B, T, 2·D], saving nothing but the end; `inputs` is all that
    gradients must reach besides x: parameters, and an encoder memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: list[Sublayer], *inputs: Tensor) -> Tensor:
        ctx.steps = steps
        ctx.rng_states = []
        ctx.autocast = _autocast(x)
        first, second = x.chunk(2, dim=-1)
        for step in steps:
            # Dropout must draw the same again when the step is repeated.
            ctx.rng_states.append(_rng_state(x))
            first, second = second, first + step(second)
        out = torch.cat([first, second], dim=-1)
        # The activations of all steps follow from the output.
        ctx.save_for_backward(out, *inputs)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        out, *inputs = ctx.saved_tensors
        wanted = [i for i, x in enumerate(inputs) if x.requires_grad]
        grads: list[Tensor | None] = [None] * len(inputs)
        first, second = out.chunk(2, dim=-1)
        grad_first, grad_second = grad_out.chunk(2, dim=-1)
        # Restored at the end: later draws do not depend on this backward pass.
        rng_state_now = _rng_state(out)
        for step, rng_state in zip(reversed(ctx.steps), reversed(ctx.rng_states), strict=True):
            _set_rng_state(rng_state, out)  # so that the same is dropped again
            with torch.enable_grad(), ctx.autocast():
                argument = first.detach().requires_grad_()
                added = step(argument)
            outputs = [argument, *(inputs[i] for i in wanted)]
            found = torch.autograd.grad(added, outputs, grad_second, allow_unused=True)
            for i, grad in zip(wanted, found[1:], strict=True):
                if grad is not None:
                    grads[i] = grad if grads[i] is None else grads[i] + grad  # type: ignore[operator]
            # (b, a + f(b)) came out: b is there, and f(b) is now too.
            first, second = second - added.detach(), argument.detach()
            # b goes to both outputs: as it is to the first, through f to the second.
            grad_first, grad_second = grad_second, grad_first + found[0]
        _set_rng_state(rng_state_now, out)
        return torch.cat([grad_first, grad_second], dim=-1), None, *grads


RngState = tuple[Tensor, Tensor | None]


def _rng_state(x: Tensor) -> RngState:
    """The state of the CPU's and the device's generators."""
    cuda = torch.cuda.get_rng_state(x.device) if x.is_cuda else None
    return torch.get_rng_state(), cuda


def _set_rng_state(state: RngState, x: Tensor) -> None:
    cpu, cuda = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, x.device)


def _autocast(x: Tensor) -> Callable[[], AbstractContextManager[Any]]:
    """Gradients are computed outside of autocast: what was on is put on again."""
    kind = x.device.type
    enabled = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)
