"""The dual encoder: two towers and one space of vectors (CLIP, SigLIP)."""

# Letters of shapes: B rows of a batch, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.context import AuxiliaryLosses, Context
from regard.core.output import Inputs, Output, OutputOptions, Outputs
from regard.core.side import Side
from regard.wirings.core_model import CoreModel, bool_mask
from regard.wirings.encoder import Encoder


class DualEncoder(CoreModel):
    """Dual encoder (CLIP, Radford et al. 2021): texts and images as vectors of one space.

    With a `bias`, pairs are judged one by one, by a sigmoid (SigLIP, Zhai et al. 2023).
    """

    def __init__(
        self, text: Encoder, image: Encoder, scale: float, bias: float | None = None
    ) -> None:
        super().__init__()
        self.text = text
        self.image = image
        self.scale = nn.Parameter(torch.tensor(scale))  # logit scale of the cosines, as a logarithm
        self.bias = None if bias is None else nn.Parameter(torch.tensor(bias))

    def stacks(self) -> dict[str, Side]:
        return {"text.encoder": self.text.stack, "image.encoder": self.image.stack}

    def front_ends(self) -> dict[str, nn.Module]:
        return {"text.encoder": self.text.input, "image.encoder": self.image.input}

    def texts(
        self, tokens: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> Tensor:
        """tokens [B, T] → vectors of length 1: [B, width]"""
        context = (context or Context()).scope("text")
        return functional.normalize(self.text.vector(tokens, padding_mask, context), dim=-1)

    def images(self, pixels: Tensor, context: Context | None = None) -> Tensor:
        """pixels [B, channels, size, size] → vectors of length 1: [B, width]"""
        context = (context or Context()).scope("image")
        return functional.normalize(self.image.vector(pixels, None, context), dim=-1)

    def forward(
        self,
        tokens: Tensor,
        pixels: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, AuxiliaryLosses]:
        """Logits of each text with each image [texts, images], and auxiliary losses (none here)."""
        texts = self.texts(tokens, padding_mask, context)  # [texts, width]
        images = self.images(pixels, context)  # [images, width]
        return self.logits(texts, images), {}

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        """The vectors of texts or of images, whichever there are: [B, width]."""
        if "pixel_values" in inputs:
            return self.images(inputs["pixel_values"], context)
        return self.texts(inputs["input_ids"], bool_mask(inputs), context)

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        texts = self.texts(inputs["input_ids"], bool_mask(inputs), options.context)  # [N, D]
        images = self.images(inputs["pixel_values"], options.context)  # [M, D]
        logits = self.logits(texts, images)  # [N, M]
        return {
            "logits_per_image": Output(logits.mT),
            "logits_per_text": Output(logits),
            "text_embeds": Output(texts),
            "image_embeds": Output(images),
        }

    def logits(self, texts: Tensor, images: Tensor) -> Tensor:
        """Scaled cosines of unit vectors, plus the bias if there is one: [texts, images]."""
        logits = texts @ images.mT * self.scale.exp()
        return logits if self.bias is None else logits + self.bias
