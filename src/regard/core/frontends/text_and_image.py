"""One sequence of a text and an image (Kim et al. 2021, ViLT)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.context import Context
from regard.core.frontends.embedding import Embedding, Table
from regard.core.frontends.patch_embedding import Patches
from regard.core.side import FrontEnd

_TEXT, _IMAGE = 0, 1  # rows of the embedding of modalities


class TextAndImage(FrontEnd):
    """Embeddings of tokens and behind them of patches, each with the vector of its modality.

    Images of other sizes than the model's are read too, and padded ones with a mask of their
    pixels: the positions are interpolated, bilinearly, to the part of an image that is none of
    padding.
    """

    meets_padding = True

    def __init__(self, text: Embedding, image: Patches, modalities: Table) -> None:
        super().__init__()
        self.text = text
        self.image = image
        self.modalities = modalities

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        *,
        pixels: Tensor,
        pixel_mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, T] and pixels [B, channels, height, width] → [B, T + extras + patches, D]."""
        text = self.text(tokens, None, context, segments=segments) + self.modalities.weight[_TEXT]
        patches = self.image.embed(pixels)  # [B, patches, D]
        extras = torch.stack(list(self.image.extras)).expand(len(patches), -1, -1)
        image = torch.cat([extras, patches], dim=1)
        image = image + self._positions(pixels, pixel_mask)
        image = self.image.dropout(image) + self.modalities.weight[_IMAGE]
        return torch.cat([text, image], dim=1)

    def joint_mask(
        self, tokens: Tensor, padding_mask: Tensor | None, more: dict[str, Tensor]
    ) -> Tensor | None:
        pixel_mask = more.get("pixel_mask")
        # Without the image, a head asks that reads the first position alone.
        if "pixels" not in more or (padding_mask is None and pixel_mask is None):
            return None
        if padding_mask is None:
            padding_mask = torch.ones_like(tokens, dtype=torch.bool)
        # The class token is none of padding: [B, extras + patches]
        patches = self._patch_mask(more["pixels"], pixel_mask).flatten(1)
        shown = functional.pad(patches, (len(self.image.extras), 0), value=True)
        return torch.cat([padding_mask, shown], dim=1)

    def _patch_mask(self, pixels: Tensor, pixel_mask: Tensor | None) -> Tensor:
        """[B, rows, columns], True at patches whose first pixel is none of padding."""
        grid = self.image.grid(pixels)
        if pixel_mask is None:
            return torch.ones(len(pixels), *grid, dtype=torch.bool, device=pixels.device)
        return functional.interpolate(pixel_mask[:, None].float(), size=grid)[:, 0].bool()

    def _positions(self, pixels: Tensor, pixel_mask: Tensor | None) -> Tensor:
        """The positions of the patches of each image: [B or 1, extras + patches, D]."""
        assert self.image.position is not None, "an image of this front end has positions"
        extras = len(self.image.extras)
        side = self.image.side
        table = self.image.position.rows(extras + side**2)
        shown = self._patch_mask(pixels, pixel_mask)
        # Without a mask no value is read: a captured step may not wait for the device.
        if shown.shape[1:] == (side, side) and (pixel_mask is None or bool(shown.all())):
            return table[None]
        square = table[extras:].unflatten(0, (side, side)).permute(2, 0, 1)[None].float()
        heights = shown[:, :, 0].sum(dim=1).tolist()
        widths = shown[:, 0].sum(dim=1).tolist()
        rows = []
        for size in zip(heights, widths, strict=True):
            scaled = functional.interpolate(square, size, mode="bilinear", align_corners=True)
            missing = (0, shown.shape[2] - size[1], 0, shown.shape[1] - size[0])
            rows.append(functional.pad(scaled, missing).flatten(2).mT)  # [1, patches, D]
        patches = torch.cat(rows).to(table.dtype)
        return torch.cat([table[:extras].expand(len(patches), -1, -1), patches], dim=1)
