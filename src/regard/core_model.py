"""What every model answers for itself: its inputs, front ends, stacks and heads, by name.

The wirings and the baselines speak it, so that nobody else asks which kind a model is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from regard.core.side import Side

if TYPE_CHECKING:
    from regard.spec.inputs import Input


class CoreModel(nn.Module, ABC):
    """A model of tensors, without a tokenizer. `forward` gives hidden states and auxiliary losses,
    what stands on top is applied to them.
    """

    # The arguments of its call, as transformers names and orders them; set by the builder.
    inputs: tuple[Input, ...] = ()

    @abstractmethod
    def stacks(self) -> dict[str, Side]:
        """The stacks, or what replaces them, by their probe names, in forward order."""

    def front_ends(self) -> dict[str, nn.Module]:
        """What makes vectors of the input of a stack, by the name of that stack."""
        return {}

    def heads(self) -> dict[str, nn.Module]:
        """The modules that stand on the hidden states, by their names in the model."""
        return {}

    @property
    def lm_head(self) -> Callable[[Tensor], Tensor] | None:
        """What makes logits over the vocabulary of hidden states [..., D], if there is one."""
        return None

    def _children(self, *names: str) -> dict[str, nn.Module]:
        """Those of these modules that the model has."""
        named = dict(self.named_children())
        return {name: named[name] for name in names if name in named}
