"""A language model whose tokens are words, and then the patches of an image (DALL-E)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.image import ImageProcessor, Picture, read_image_processor
from regard.data.patch_codebook import FILE, PatchCodebook
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import DecodingOptions, Limit, Sampling, Strategy, choose_strategy
from regard.models.base import Files, TokenizerModel
from regard.models.tasks import one_or_many
from regard.system import disk
from regard.wirings.decoder import Decoder

if TYPE_CHECKING:
    from regard.look.inspectable import Reading

_IMAGES_AT_ONCE = 64
_USUAL = Sampling(top_p=0.95)
_PAD = "·"  # the name of padding between the words and the image


@dataclass(frozen=True, eq=False)
class DrawnImage:
    """An image that a model drew of a text."""

    text: str
    pixels: NDArray[np.uint8] = field(repr=False)  # [H, W, 3]

    def png(self) -> bytes:
        """A PNG file."""
        from PIL import Image

        file = BytesIO()
        Image.fromarray(self.pixels).save(file, "PNG")
        return file.getvalue()

    def save(self, path: str | Path) -> None:
        """Writes a PNG file."""
        disk.write_file(Path(path), self.png())


class ImageGenerator(TokenizerModel):
    """Draws what a text names; made by `regard.load(folder)`.

    A row is the tokens of the text, padded to the same length in all rows, and one token for each
    patch of the image: its number in the codebook, behind the tokens of words.
    """

    evaluations = ("draw",)
    model: Decoder
    spec: kinds.Decoder

    @cached_property
    def codebook(self) -> PatchCodebook:
        """The patches that its image tokens stand for."""
        assert self.folder is not None, "a new model is given its codebook"
        return PatchCodebook.open(self.folder)

    @cached_property
    def image_processor(self) -> ImageProcessor:
        """How an image gets the size of those that it draws."""
        assert self.folder is not None, "a new model is given its image processor"
        return read_image_processor(self.folder)

    def files(self) -> Files:
        processor = {"preprocessor_config.json": self.image_processor.to_config()}
        return {**super().files(), **processor, FILE: self.codebook.to_dict()}

    @property
    def image_length(self) -> int:
        """The tokens of an image."""
        return (self.image_processor.side // self.codebook.patch) ** 2

    @property
    def words(self) -> int:
        """The ids of words; those of patches follow."""
        return self.spec.vocab_size - len(self.codebook)

    def prompts(self, texts: Sequence[str]) -> Tensor:
        """Texts as tokens of one length, [B, T]; longer ones are cut, as CLIP does it."""
        length = (self.spec.max_length or 0) - self.image_length
        rows = [one.ids for one in self.tokenizer.encode_with_template([*texts], length)]
        pad = self.tokenizer.special_token_id("pad") or 0
        return torch.tensor([row + [pad] * (length - len(row)) for row in rows])

    def image_tokens(self, images: Tensor) -> Tensor:
        """The ids of the patches of images, bytes [B, 3, H, W]: [B, N]"""
        return self.codebook.encode(images) + self.words

    # ------------------------------------------------------------------ drawing

    @one_or_many
    def draw(
        self,
        texts: list[str],
        strategy: Strategy | None = None,
        **options: Unpack[DecodingOptions],
    ) -> list[DrawnImage]:
        """An image of each text; sampled (`top_p=0.95`), unless a `strategy` or its keywords say
        otherwise. Equal texts of a list get different images.
        """
        if not texts:
            return []
        strategy = choose_strategy(strategy, options) or _USUAL
        prompts = self.prompts(texts)
        length = self.image_length
        settings = DecodingSettings(
            strategy, Limit.fixed(length), batch_tokens=_IMAGES_AT_ONCE * prompts.shape[1]
        )
        special_tokens = SpecialTokens(0, None, -1, banned=tuple(range(self.words)))
        results = decode(self.model, prompts.tolist(), special_tokens, settings)
        tokens = torch.tensor([hypotheses[0].tokens for hypotheses in results])  # [B, N]
        images = self.codebook.decode(tokens - self.words)
        return [DrawnImage(text, image) for text, image in zip(texts, images, strict=True)]

    @torch.inference_mode()
    def nlls(self, texts: Sequence[str], images: Sequence[Picture]) -> list[float]:
        """−log p of the tokens of each image, of the text in its place."""
        self.model.eval()
        values: list[float] = []
        for start in range(0, len(texts), _IMAGES_AT_ONCE):
            part = slice(start, start + _IMAGES_AT_ONCE)
            prompts = self.prompts(texts[part])
            tokens = self.image_tokens(self._bytes(images[part]))
            # Teacher forcing: each position predicts the next token.
            row = torch.cat([prompts, tokens], dim=1).to(self.device)  # [B, T + N]
            hidden, _ = self.model(row[:, :-1])
            logits = self.model.head(hidden[:, -self.image_length :]).float()  # [B, N, V]
            scores = require_finite(logits, self.model).log_softmax(dim=-1)
            of_labels = scores.gather(-1, row[:, -self.image_length :, None])  # [B, N, 1]
            values += (-of_labels.double().sum(dim=(1, 2))).tolist()
        return values

    def _bytes(self, images: Sequence[Picture]) -> Tensor:
        """[B, 3, H, W]"""
        resized = np.stack([self.image_processor.resized(image) for image in images])
        return torch.from_numpy(resized).permute(0, 3, 1, 2)

    # ------------------------------------------------------------------ for `regard.look`

    def read_text(self, text: str) -> Reading:
        """A text and the image that is drawn of it; behind a tab, the file of another image."""
        from regard.look.backdrop import ImageBackdrop
        from regard.look.inspectable import Reading

        name, _, file = text.partition("\t")
        shown: Any = Path(file) if file else self.draw(name).pixels
        prompt = self.prompts([name])
        tokens = self.image_tokens(self._bytes([shown]))
        pixels = self.codebook.decode(tokens - self.words)[0]
        backdrop = ImageBackdrop(pixels, self.codebook.patch, prompt.shape[1])
        pad = self.tokenizer.special_token_id("pad") or 0
        words = self.tokenizer.tokens(prompt[0].tolist())
        named = [_PAD if i == pad else word for i, word in zip(prompt[0], words, strict=True)]
        names = (*named, *(f"patch {i}" for i in range(self.image_length)))
        return Reading(torch.cat([prompt, tokens], dim=1), names, backdrop=backdrop)
