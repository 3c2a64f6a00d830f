"""Variants of the models: layer-matched and gated cross-attention, decoding without a KV cache.

Without a cache decode language models whose chunks change when the text grows (Reformer).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.core.caches.kv_cache import Cache, DecoderState, LayerCache
from regard.core.context import Context
from regard.core.encoder_output import EncoderOutput
from regard.core.output import Inputs, Outputs
from regard.core.stack import Stack
from regard.core.stacks.gated_cross_attention import Resampler
from regard.wirings.core_model import Split
from regard.wirings.decoder import Decoder, Prompt
from regard.wirings.encoder_decoder import EncoderDecoder


class LayerMatchedEncoderDecoder(EncoderDecoder):
    """Encoder–decoder whose decoder layer i attends to the output of encoder layer i."""

    encoder: Stack

    def encode(
        self, source: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> EncoderOutput:
        layers: list[Tensor] = []  # filled by the stack: [B, S, D] of each layer
        context = dataclasses.replace(context or Context(), layer_outputs=layers)
        memory = super().encode(source, padding_mask, context)
        # The last layer is finished (final norm and dropout) already: it is the output.
        finished = [self.encoder.finish(layer, memory.padding_mask) for layer in layers[:-1]]
        return memory._replace(layers=(*finished, memory.hidden))


class ImageReadingDecoder(EncoderDecoder):
    """A language model that reads images by gated cross-attention (Flamingo): one or several of
    each text, [B, C, H, W] or [B, images, C, H, W]."""

    resampler: Resampler | None  # set by the builder

    def encode(
        self, source: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> EncoderOutput:
        context = context or Context()
        images = source if source.dim() == 4 else source.flatten(0, 1)
        memory = super().encode(images, padding_mask, context)
        hidden = memory.hidden if self.resampler is None else self.resampler(memory.hidden)
        # [B · images, S, D] → [B, images · S, D]
        return memory._replace(hidden=hidden.reshape(len(source), -1, hidden.shape[-1]))

    def visible_memory(self, memory: EncoderOutput, inputs: Inputs) -> EncoderOutput:
        mask = inputs.get("image_attention_mask")  # [B, T, images]
        if mask is None:
            return memory
        positions = memory.hidden.shape[1] // mask.shape[2]
        return memory._replace(visible=mask.bool().repeat_interleave(positions, dim=2))


@dataclass
class TokenHistory(Cache):
    """Cache of token ids, for a model that recomputes the text at every step."""

    row_tensors = ("tokens",)
    tokens: Tensor  # [B, T]

    def append(self, tokens: Tensor) -> Tensor:
        """All tokens up to now."""
        self.tokens = torch.cat([self.tokens, tokens], dim=1)
        return self.tokens


class RecomputingDecoder(Decoder):
    """Language model without a KV cache: every step recomputes the whole text.

    A text that grows is cut into chunks anew, so nothing of the last step stays valid.
    """

    keeps_cache = False

    def step_by_step(self, inputs: Inputs, split: Split) -> Outputs:
        return {}

    def start(self, prompt: Prompt, *, width: int = 1, capacity: int) -> DecoderState:
        # Nothing is computed yet: the first step reads the prompt together with its token.
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
        return hidden[:, -new:]  # [rows, new, D]: callers know the earlier ones

    def _recompute(self, tokens: Tensor, padding_mask: Tensor | None, context: Context) -> Tensor:
        """Hidden states of whole texts [rows, T, D].

        Padding would change what is in a chunk. So it is cut off, and rows whose texts begin at
        the same position are computed together.
        """
        if padding_mask is None:
            return self(tokens, None, context)[0]
        first_token = padding_mask.long().argmax(dim=1)  # [rows]: argmax gives the first True
        out: Tensor | None = None
        for begin in first_token.unique().tolist():
            rows = first_token == begin
            hidden = self(tokens[rows, begin:], None, context)[0]
            if out is None:  # only now are dtype and width known
                out = hidden.new_zeros(*tokens.shape, hidden.shape[-1])
            out[rows, begin:] = hidden
        assert out is not None
        return out
