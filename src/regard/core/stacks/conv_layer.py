"""DeBERTa v2's convolution in parallel to the first block."""

from __future__ import annotations

from torch import Tensor, nn

from regard import spec
from regard.core.block import LayerInputs
from regard.core.context import LayerContext
from regard.core.dropout import Dropout
from regard.core.feedforward import ACTIVATIONS
from regard.core.masks.attention_mask import AttentionMask
from regard.core.norm import Norm
from regard.core.stack import Stack, StackParts


class ConvLayer(nn.Module):
    """norm(block(x) + activation(convolution(x))): neighbours are mixed by their positions
    alone."""

    def __init__(self, part: spec.ConvLayer, d_model: int, norm: Norm) -> None:
        super().__init__()
        padding = part.width // 2  # it keeps the length: the width is odd
        self.conv = nn.Conv1d(d_model, d_model, part.width, padding=padding, groups=part.groups)
        self.activation = ACTIVATIONS[part.activation]
        self.norm = norm
        self.dropout = Dropout(part.dropout)

    def forward(self, x: Tensor, block: Tensor, mask: AttentionMask) -> Tensor:
        """x [B, T, D] is the input of the first block, `block` its output. Padding, which
        nobody may attend to, counts as zeros."""
        visible = mask.allowed.any(dim=-2)[:, 0, :, None]  # [B or 1, T, 1]
        mixed = self.conv((x * visible).mT).mT  # [B, T, D]
        # Dropout before the activation, as in Hugging Face's `ConvLayer`.
        return self.norm(block + self.activation(self.dropout(mixed)))


class ConvStack(Stack):
    """A stack with a convolution in parallel to its first block."""

    def __init__(self, parts: StackParts, conv_layer: ConvLayer) -> None:
        super().__init__(parts)
        self.conv_layer = conv_layer

    def apply_block(
        self, number: int, x: Tensor, inputs: LayerInputs, context: LayerContext
    ) -> Tensor:
        out = super().apply_block(number, x, inputs, context)
        if number > 0:
            return out
        return self.conv_layer(x, out, inputs.mask)
