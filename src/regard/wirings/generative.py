"""Models that write a text token by token: what decoding asks of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.core.caches.kv_cache import DecoderState
from regard.core.context import Context
from regard.core.heads.head import LMHead
from regard.core.output import Output, Outputs
from regard.wirings.core_model import CoreModel, Split


class Generative(CoreModel):
    """Abstract: a model that writes a text token by token, with a decoder alone or behind an
    encoder, if it has a language-model head. Decoding is `encode` once, `start`, and `step` by
    `step`."""

    padding_side: ClassVar[str]  # of the shorter rows in a batch of sources
    keeps_cache: ClassVar[bool] = True  # of what its decoder has computed, from step to step
    head: LMHead

    @property
    def writes(self) -> bool:
        return self.lm_head is not None

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
