"""The decoder alone: a language model (GPT, LLaMA)."""

# Letters of shapes: B rows of a batch, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from regard.core.caches.kv_cache import DecoderState
from regard.core.context import AuxiliaryLosses, Context
from regard.core.frontends.embedding import Embedding
from regard.core.output import Inputs, Outputs
from regard.core.probe import NO_PROBE, NullProbe
from regard.core.side import Side
from regard.wirings.core_model import Split, bool_mask
from regard.wirings.generative import Generative


class Prompt(NamedTuple):
    """What a language model goes on from: tokens, with left padding in the shorter rows."""

    tokens: Tensor  # [B, T]
    padding_mask: Tensor | None  # [B, T] bool; None when nothing is padded
    probe: NullProbe = NO_PROBE  # that decoding from here goes on with


class Decoder(Generative):
    """A language model, unless its heads say otherwise: each position has seen what came before."""

    padding_side = "left"  # so that all rows of a batch continue at the same position

    def __init__(self, tokens: Embedding, stack: Side, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.tokens = tokens
        self.stack = stack
        self.add_heads(heads)

    def stacks(self) -> dict[str, Side]:
        return {"decoder": self.stack}

    def front_ends(self) -> dict[str, nn.Module]:
        return {"decoder": self.tokens}

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        **more: Tensor,
    ) -> tuple[Tensor, AuxiliaryLosses]:
        """Hidden states [B, T, D] and auxiliary losses. Padding may stand before or after a row's
        tokens. The context's state, if any, is what layers carry on from segment to segment."""
        context = (context or Context()).scope("decoder")
        x = self.tokens(tokens, padding_mask, context, **more)
        hidden = self.stack(x, padding_mask, context)
        return hidden, dict(context.losses or {})

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        more = {"segments": inputs["token_type_ids"]} if "token_type_ids" in inputs else {}
        hidden, _ = self(inputs["input_ids"], bool_mask(inputs), context, **more)
        return hidden

    def step_by_step(self, inputs: Inputs, split: Split) -> Outputs:
        if not self.writes:
            return {}
        tokens = inputs["input_ids"]  # [B, T]
        # `start` leaves out the last token of a prompt: with one token the cache is empty.
        return self._steps(self.encode(tokens[:, :1]), tokens, split)

    def encode(
        self, tokens: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> Prompt:
        """A prompt is read when decoding starts; there is nothing to prepare."""
        return Prompt(tokens, padding_mask, (context or Context()).probe)

    def start(self, prompt: Prompt, *, width: int = 1, capacity: int) -> DecoderState:
        """Prefill: the state after all of the prompt but its last token.

        `capacity` is the number of tokens that follow the prompt.
        """
        rows, length = prompt.tokens.shape
        caches = self.stack.start(rows, length + capacity)
        state = DecoderState(caches, 1, prompt.padding_mask, probe=prompt.probe)
        # The last token is left out: the first `step` takes it, and gives the first new logits.
        if length > 1:
            self.advance(prompt.tokens[:, :-1], state)
        # The prompt is computed once; its beams begin with equal caches.
        state.widen(width, prompt.tokens.device)
        return state

    def step_padding(self, state: DecoderState, new: int) -> tuple[Tensor | None, Tensor | None]:
        # Left padding: positions are counted from a row's first token.
        return state.row_padding_mask(), state.key_padding_mask(new)
