"""Variants of the models: decoder layers that attend to the encoder layer of their own height, and
a language model whose chunks change when the text grows (Reformer)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.core.cache import DecoderState, LayerCache
from regard.core.context import Context
from regard.core.encoder_output import EncoderOutput
from regard.core.stack import Stack
from regard.model import Decoder, EncoderDecoder, Prompt


class LayerMatchedEncoderDecoder(EncoderDecoder):
    """Decoder layer i attends to what encoder layer i made."""

    encoder: Stack

    def encode(
        self, source: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> EncoderOutput:
        layers: list[Tensor] = []
        context = dataclasses.replace(context or Context(), layer_outputs=layers)
        memory = super().encode(source, padding_mask, context)
        finished = [self.encoder.finish(layer) for layer in layers[:-1]]
        return memory._replace(layers=(*finished, memory.hidden))


@dataclass
class TokenHistory:
    """The tokens so far, and nothing made of them: the cache of a model that computes a text
    anew."""

    tokens: Tensor  # [B, T]

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def stored_rows(self) -> int:
        return len(self.tokens)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New positions as they are: they are all positions."""
        return k, v

    def append(self, tokens: Tensor) -> Tensor:
        """All tokens up to now."""
        self.tokens = torch.cat([self.tokens, tokens], dim=1)
        return self.tokens

    def select(self, rows: Tensor) -> None:
        self.tokens = self.tokens.index_select(0, rows)


class RecomputingDecoder(Decoder):
    """A language model that nothing can be cached for: a text that grows is cut into chunks anew,
    so every step computes the whole text."""

    def start(self, prompt: Prompt, *, width: int = 1, capacity: int) -> DecoderState:
        history = TokenHistory(prompt.tokens[:, :-1])
        length = history.tokens.shape[1]
        state = DecoderState(
            [LayerCache(history)], 1, prompt.padding_mask, length, probe=prompt.probe
        )
        state.widen(width, prompt.tokens.device)
        return state

    def advance(self, tokens: Tensor, state: DecoderState) -> Tensor:
        history = state.layers[0].self_attention
        assert isinstance(history, TokenHistory)
        new = tokens.shape[1]
        padding_mask = state.row_padding_mask()
        hidden = self._recompute(history.append(tokens), padding_mask, Context(probe=state.probe))
        state.advance(new)
        return hidden[:, -new:]

    def _recompute(self, tokens: Tensor, padding_mask: Tensor | None, context: Context) -> Tensor:
        """Hidden states of whole texts. Padding would change what is in a chunk, so rows that begin
        at the same position are read together, from there on."""
        if padding_mask is None:
            hidden: Tensor = self(tokens, None, context)[0]
            return hidden
        first_token = padding_mask.long().argmax(dim=1)
        out: Tensor | None = None
        for begin in first_token.unique().tolist():
            rows = first_token == begin
            hidden = self(tokens[rows, begin:], None, context)[0]
            if out is None:
                out = hidden.new_zeros(*tokens.shape, hidden.shape[-1])
            out[rows, begin:] = hidden
        assert out is not None
        return out
