"""What every model answers for itself: its inputs, front ends, stacks and heads, by name.

The wirings and the baselines speak it, so that nobody else asks which kind a model is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from regard.core.context import Context
from regard.core.output import Output, OutputOptions, Outputs
from regard.core.side import Side

if TYPE_CHECKING:
    from regard.core.caches.kv_cache import DecoderState
    from regard.core.frontends.lagged_values import Covariates
    from regard.core.heads.head import LMHead
    from regard.spec.inputs import Input


Split = Callable[[Tensor], Sequence[Tensor]]  # a sequence [B, T, …] in pieces


def bool_mask(inputs: Mapping[str, Tensor], name: str = "attention_mask") -> Tensor | None:
    """Transformers' mask of this name, True at what is no padding, if there is one."""
    return inputs[name].bool() if name in inputs else None


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

    @property
    def writes(self) -> bool:
        """Whether it writes a text token by token: whether it is `Generative`."""
        return False

    @property
    def reads_target(self) -> bool:
        """Whether it writes behind an encoder, and reads its target by teacher forcing."""
        return self.writes and "encoder" in self.stacks()

    def own_forecast(
        self, inputs: Tensor, side_inputs: Mapping[str, Tensor], context: Context
    ) -> Tensor | None:
        """What its decoder reads where no target is given, if that needs no search: a forecast."""
        return None

    def sample(
        self, values: Tensor, observed: Tensor | None, covariates: Covariates, *, count: int
    ) -> Tensor:
        """Trajectories [B, count, H, C] that are drawn from the distributions of a forecast."""
        raise NotImplementedError

    @abstractmethod
    def hidden_states(self, inputs: Mapping[str, Tensor], context: Context) -> Tensor:
        """The hidden states of the last stack [B, T, D], of inputs by name."""

    def head_output(self, hidden: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """What the head makes of hidden states: logits, forecasts, a vector; without a head they
        are as they were."""
        return hidden

    @abstractmethod
    def outputs(self, inputs: Mapping[str, Tensor], options: OutputOptions) -> Outputs:
        """The outputs of inputs by name, under the names and in the order of transformers."""

    def step_by_step(self, inputs: Mapping[str, Tensor], split: Split) -> Outputs:
        """What decoding from caches gives, in pieces of the sequence that it is given; {} of a
        model without caches."""
        return {}

    def check_values(self, inputs: Mapping[str, Tensor]) -> None:
        """Refuses numbers that the model cannot read; asking for them waits for the device."""

    def _main(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The first input."""
        return inputs[self.inputs[0].name]

    def _children(self, *names: str) -> dict[str, nn.Module]:
        """Those of these modules that the model has."""
        named = dict(self.named_children())
        return {name: named[name] for name in names if name in named}


class Generative(CoreModel):
    """Abstract: a model that writes a text token by token, with a decoder alone or behind an
    encoder. Decoding is `encode` once, `start`, and `step` by `step`."""

    padding_side: ClassVar[str]  # of the shorter rows in a batch of sources
    keeps_cache: ClassVar[bool] = True  # of what its decoder has computed, from step to step
    head: LMHead

    @property
    def lm_head(self) -> LMHead:
        return self.head

    @property
    def writes(self) -> bool:
        return True

    def head_output(self, hidden: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.head(hidden)

    @abstractmethod
    def encode(
        self, source: Tensor, padding_mask: Tensor | None = None, context: Context | None = None, /
    ) -> Any:
        """What decoding starts from: the encoder output, or the prompt itself."""

    @abstractmethod
    def start(self, encoded: Any, /, *, width: int = 1, capacity: int) -> DecoderState:
        """The state before the first of `capacity` tokens, for `width` rows (beams) a sentence."""

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """tokens [rows, T], the next of each row → logits [rows, T, V]; advances the state."""
        return self.head(self.advance(tokens, state))

    def advance(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """As `step`, without the head: nobody asks for the logits of a long prompt."""
        context = Context.decoding(state)
        row_padding, key_padding = self.step_padding(state, tokens.shape[1])
        x = self.front_ends()["decoder"](tokens, row_padding, context)  # [rows, T, D]
        # Keys and values of an encoder output are in the state's caches already.
        hidden: Tensor = self.stacks()["decoder"](x, key_padding, context)
        state.advance(tokens.shape[1])
        return hidden

    def step_padding(self, state: DecoderState, new: int) -> tuple[Tensor | None, Tensor | None]:
        """The padding masks of the next `new` tokens: what the embedding counts positions by, and
        that of all keys. None where the decoder reads no prompt."""
        return None, None

    def _steps(self, encoded: Any, tokens: Tensor, split: Split) -> Outputs:
        """The logits of tokens [B, T] that are read in pieces."""
        state = self.start(encoded, capacity=tokens.shape[1])
        logits = [self.step(piece, state) for piece in split(tokens)]
        return {"logits": Output(torch.cat(logits, dim=1))}
