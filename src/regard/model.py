"""The wirings. A forward names the stations of the drawing in the paper, bottom to top."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.core.embed import Embedding, LanguageHead
from regard.core.pattern import Causal, Everything, Padding, Pattern, Sight
from regard.core.stack import Stack
from regard.core.state import State
from regard.core.trace import Trace


class Encoded(NamedTuple):
    """What the encoder made of a batch of sources: the memory, and which of its positions are real."""

    memory: Tensor  # [B, S, D]
    real: Tensor | None  # [B, S] bool; None when nothing is padded


class EncoderDecoder(nn.Module):
    """Figure 1 of "Attention Is All You Need"."""

    def __init__(
        self, source: Embedding, target: Embedding, encoder: Stack, decoder: Stack, head: LanguageHead
    ) -> None:
        super().__init__()
        self.source = source
        self.target = target
        self.encoder = encoder
        self.decoder = decoder
        self.head = head

    def encode(self, source: Tensor, real: Tensor | None = None, trace: Trace | None = None) -> Encoded:
        """source [B, S] token ids; `real` [B, S] is True at tokens and False at padding."""
        x = self.source(source)
        sight = _sight(self.encoder.pattern & _padding(real), source)
        return Encoded(self.encoder(x, sight, trace=trace.scope("encoder") if trace else None), real)

    def decode(self, target: Tensor, encoded: Encoded, trace: Trace | None = None) -> Tensor:
        """target [B, T] token ids → hidden states [B, T, D]; position t has seen targets up to t and the whole memory."""
        x = self.target(target)
        sight = _sight(self.decoder.pattern, target)
        over_memory = _sight(_padding(encoded.real), encoded.memory[:, :, 0])
        return self.decoder(x, sight, encoded.memory, over_memory, trace=trace.scope("decoder") if trace else None)

    def forward(
        self, source: Tensor, target: Tensor, real: Tensor | None = None, trace: Trace | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Hidden states [B, T, D], from which `head` makes logits, and auxiliary losses (none here)."""
        return self.decode(target, self.encode(source, real, trace), trace), {}

    def start(self, encoded: Encoded, *, width: int = 1, capacity: int) -> State:
        """The state before the first token, for `width` rows a sentence."""
        rows = encoded.memory.shape[0] * width
        return State(self.decoder.start(rows, capacity, encoded.memory), width, encoded.real)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """tokens [rows, T], the next of each row → logits [rows, T, V]; advances the state."""
        x = self.target(tokens, state.position)
        seen = state.position + tokens.shape[1]
        keys = torch.arange(seen, device=tokens.device)
        # One new token may look at all there is; several at once are still in causal order among themselves.
        pattern: Pattern = Everything() if tokens.shape[1] == 1 else Causal()
        sight = Sight(pattern, keys[state.position :], keys)
        memory = state.layers[0].memory
        assert memory is not None
        over_memory = _sight(_padding(state.real), memory.k[:, 0, :, 0])
        x = self.decoder(x, sight, None, over_memory, states=state.layers)
        state.position = seen
        return self.head(x)


def _padding(real: Tensor | None) -> Pattern:
    return Everything() if real is None else Padding(real)


def _sight(pattern: Pattern, like: Tensor) -> Sight:
    """A pattern over the rows and positions of `like` [B, S]."""
    positions = torch.arange(like.shape[1], device=like.device)
    return Sight(pattern, positions, positions, batch=like.shape[0])
