"""Source of images that are drawn of texts: both as tokens of one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data.batching import Rows
from regard.data.generated.scenes import Scene
from regard.data.image import ImageProcessor, new_image_processor
from regard.data.labelled import LabelledImage, read_captions
from regard.data.padding import IGNORED
from regard.data.patch_codebook import FILE, PatchCodebook, fit_codebook
from regard.data.text.tokenizer import Tokenizer
from regard.models import ImageGenerator, Model
from regard.training import model_spec
from regard.training.data.image_sources import CLIP_TOKENS, SceneImages
from regard.training.data.labelled_text import encoder_tokenizer
from regard.training.data.source import text_model_files
from regard.training.data.stored_items import ItemData
from regard.training.recipe.options import ImageTokens, parse_image_tokens
from regard.training.setup import Setup


class DrawnTokens(NamedTuple):
    """What texts and images become: ids of words, and of patches behind them."""

    tokenizer: Tokenizer
    codebook: PatchCodebook


class DrawnImages(SceneImages):
    """Images with the texts that they are drawn of."""

    model_class = ImageGenerator
    default_flip = 0.0  # texts tell left from right
    default_padding = 0.0  # crops are black outside of an image, which would be drawn too
    read = staticmethod(read_captions)
    model: ImageGenerator

    def __init__(self, model: ImageGenerator, data: ItemData, setup: Setup) -> None:
        tokens: DrawnTokens = data.vocabulary
        assert data.processor is not None, "prepared with the images"
        # A new model has no folder that says so.
        model.image_processor = data.processor
        model.codebook = tokens.codebook
        super().__init__(model, data, setup)
        self.prompts = {name: model.prompts(items.texts) for name, items in data.sets.items()}
        codes = tokens.codebook.codes.to(setup.device)
        self.codebook = replace(tokens.codebook, codes=codes)

    # --- preparing a run --------------------------------------------------------------------------

    @staticmethod
    def of_scene(one: Scene) -> LabelledImage:
        return LabelledImage(one.image, one.caption)

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> ItemData:
        data = super().prepare(setup, base)
        if base is not None:
            return replace(data, vocabulary=DrawnTokens(base.tokenizer, base.codebook))
        train = data.sets["train"]
        tokenizer = encoder_tokenizer(
            setup, lambda: train.texts, default="bpe", template=CLIP_TOKENS
        )
        folder = setup.run_folder.folder
        if not (folder / FILE).is_file():
            wanted = _image_tokens(setup)
            seed = setup.recipe.train.seed
            fit_codebook(train.values, wanted.patch, wanted.codes, seed).save(folder)
        return replace(data, vocabulary=DrawnTokens(tokenizer, PatchCodebook.open(folder)))

    @classmethod
    def image_processor(cls, setup: Setup) -> ImageProcessor:
        return new_image_processor("vit", _image_tokens(setup).size)

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: ItemData) -> Model:
        tokenizer, codebook = data.vocabulary
        size = len(tokenizer) + len(codebook)
        model_spec.check_vocabulary("vocabulary", description.tokens, size)
        return ImageGenerator(model, description, tokenizer, config)

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        return {**super().files(model, setup), **text_model_files(model, setup)}

    # --- batches ----------------------------------------------------------------------------------

    @property
    def positions(self) -> int:
        return self.model.spec.max_length or 0

    def units(self, split: str, rows: Rows) -> int:
        return len(rows) * self.model.image_length

    def targets(self, split: str, rows: Rows) -> dict[str, Tensor]:
        """`prompt` [B, T]: the words of each text."""
        return {"prompt": self.prompts[split][torch.as_tensor(rows)]}

    def row_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`tokens` and `labels` [B, T + N − 1] of a batch; words are given, not learnt."""
        # On the device, behind the augmentation: an epoch has other tokens than the one before.
        patches = self.codebook.encode(self.augmented(tensors)) + self.model.words  # [B, N]
        tokens = torch.cat([tensors["prompt"], patches], dim=1)
        labels = tokens[:, 1:].clone()
        labels[:, : -patches.shape[1]] = IGNORED
        return {"tokens": tokens[:, :-1], "labels": labels}


def _image_tokens(setup: Setup) -> ImageTokens:
    return parse_image_tokens(setup.recipe.tokens.image_tokens)
