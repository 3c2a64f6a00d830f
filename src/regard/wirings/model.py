"""The models: encoder–decoders, encoder, decoder and dual encoder, each in a file of its own."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.wirings.decoder import Decoder, Prompt
from regard.wirings.dual_encoder import DualEncoder
from regard.wirings.encoder import Encoder
from regard.wirings.encoder_decoder import EncoderDecoder
from regard.wirings.series_encoder_decoder import SeriesEncoderDecoder

__all__ = [
    "Decoder",
    "DualEncoder",
    "Encoder",
    "EncoderDecoder",
    "Function",
    "Prompt",
    "SeriesEncoderDecoder",
]


class Function(nn.Module):
    """Adapter for exporters, which take a module of tensors: a model and one call of it."""

    def __init__(self, model: nn.Module, call: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.call(self.model, *inputs)
